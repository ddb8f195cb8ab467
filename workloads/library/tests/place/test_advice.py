import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from holdfast.contract.capacity import Capacity, Placement
from holdfast.contract.errors import InputError, Unjudged
from holdfast.place import advice, ask, choose, emit, hazard, job, outages, prices, traces
from holdfast.place.advice import World
from holdfast.place.job import Job
from holdfast.place.location import Location
from workloads.library.tests.place.worlds import A100, A100_80, H100, L4, REGION, by, option, world


def picked(asked: Job, there: World, region: str = REGION) -> advice.Option:
    return choose.choose(asked, advice.options(asked, there, region))


@pytest.mark.parametrize(
    ("name", "gpus", "machine", "nodes"),
    [
        ("l4", 1, "g2-standard-8", 1), ("l4", 8, "g2-standard-96", 1), ("a100", 8, "a2-highgpu-8g", 1),
        ("a100", 16, "a2-highgpu-8g", 2), ("a100", 3, "a2-highgpu-1g", 3), ("h100", 64, "a3-highgpu-8g", 8),
        ("a100-80", 4, "a2-ultragpu-4g", 1),
    ],
)  # fmt: skip
def test_gpus_become_the_largest_machines_that_fit(name: str, gpus: int, machine: str, nodes: int) -> None:
    asked = Job(accelerator=job.accelerator(name), gpus=gpus, hours=1)
    assert (asked.machine.name, asked.nodes) == (machine, nodes)


@pytest.mark.parametrize(
    ("text", "hours"),
    [("30s", 30 / 3600), ("5m", 1 / 12), ("72h", 72), ("3d", 72), ("1.5h", 1.5), ("none", math.inf)],
)
def test_durations_are_read(text: str, hours: float) -> None:
    assert job.duration_h(text, "deadline") == pytest.approx(hours)


@pytest.mark.parametrize("text", ["", "soon", "-3h", "3w", "1h30m", "30", "1.5"])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="deadline"):
        job.duration_h(text, "deadline")


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"hours": 0}, "hours"), ({"hours": -1}, "hours"), ({"hours": math.inf}, "hours"), ({"gpus": 0}, "GPUs"),
        ({"hours": math.nan}, "hours"), ({"hours": 10_001}, "hours"), ({"checkpoint_h": 0}, "checkpoint"), ({"restart_h": -1}, "restart"),
        ({"deadline_h": 10.05}, "impossible deadline"),
    ],
)  # fmt: skip
def test_impossible_jobs_are_refused(wrong: dict[str, float], what: str) -> None:
    with pytest.raises(InputError, match=what):
        Job(**{"accelerator": L4, "gpus": 1, "hours": 10.0} | wrong)  # type: ignore[arg-type]


def test_an_unknown_gpu_gets_the_nearest_name() -> None:
    with pytest.raises(InputError, match="did you mean h100"):
        job.accelerator("h10")


def test_an_unknown_region_gets_those_that_have_prices() -> None:
    with pytest.raises(InputError, match="europe-west4, me-west1, us-central1"):
        advice.options(Job(accelerator=A100, gpus=1, hours=1), world(), "mars-north1")


def test_no_option_is_dropped_when_its_price_is_missing() -> None:
    there = world()
    table = replace(there.prices, skus=tuple(s for s in there.prices.skus if s.capacity is not Capacity.ON_DEMAND))
    options = by(advice.options(Job(accelerator=A100, gpus=1, hours=5), replace(there, prices=table), REGION))
    assert set(options) == set(Placement)
    for placement in (Placement.ON_DEMAND, Placement.HYBRID):
        assert "no on-demand price of a2-highgpu-1g in us-central1" in options[placement].refused
    assert not options[Placement.SPOT].refused


def test_no_option_with_a_price_is_not_judged() -> None:
    empty = replace(world().prices, skus=tuple(s for s in world().prices.skus if s.part == prices.GPU))
    asked = Job(accelerator=A100, gpus=1, hours=5)
    with pytest.raises(Unjudged, match="no spot price"):
        picked(asked, replace(world(), prices=empty))


@pytest.mark.parametrize(
    ("accelerator", "churn", "placement"),
    [
        (L4, 0.05, Placement.SPOT),  # flex-start has no discount there
        (A100, 0.02, Placement.SPOT),
        (A100, 0.5, Placement.FLEX_START),  # 5 % dearer than Spot, undisturbed
        (H100, 0.2, Placement.SPOT),
        (A100_80, 0.01, Placement.FLEX_START),  # Spot is dearer there
    ],
)
def test_the_cheapest_capacity_depends_on_gpu_and_churn(accelerator: str, churn: float, placement: Placement) -> None:
    asked = Job(accelerator=accelerator, gpus=1, hours=100)
    # A queue as short as an outage leaves the choice to money.
    there = world(churn, flex_waits=outages.lognormal(0.3, 0.1), outages=outages.lognormal(0.02, 0.01))
    assert picked(asked, there).placement is placement


def test_the_answer_turns_at_the_churn_that_is_printed() -> None:
    asked = Job(accelerator=A100, gpus=1, hours=400)
    flip = choose.limits(asked, world(), REGION)
    assert flip is not None
    assert flip.against is Capacity.FLEX_START
    for factor, cheaper in ((0.5, Placement.SPOT), (2.0, Placement.FLEX_START)):
        options = by(advice.options(asked, world(flip.churn_per_hour * factor), REGION))
        pair = (options[Placement.SPOT], options[Placement.FLEX_START])
        assert min(pair, key=lambda o: o.mean_usd).placement is cheaper


def test_each_limit_makes_spot_cost_as_much_as_its_rival() -> None:
    asked = Job(accelerator=A100, gpus=8, hours=200)
    flip = choose.limits(asked, world(0.05), REGION)
    assert flip is not None
    assert 0.09 < flip.churn_per_hour < 0.11
    at_limit = (
        (asked, world(flip.churn_per_hour)),
        (replace(asked, restart_h=flip.restart_h), world(0.05)),
        (replace(asked, checkpoint_h=flip.checkpoint_h), world(0.05)),
    )
    for edge, there in at_limit:
        again = choose.limits(edge, there, REGION)
        assert again is not None
        assert again.churn_per_hour == pytest.approx(there.churn.per_hour, rel=0.05)


def test_of_equal_costs_the_one_that_is_late_less_often_is_taken() -> None:
    queue, hybrid = option(Placement.FLEX_START, 100.0, 70, late=0.005), option(Placement.HYBRID, 100.9, 70)
    dated = Job(accelerator=L4, gpus=1, hours=40, deadline_h=72)
    assert choose.choose(dated, [queue, hybrid]) is hybrid
    assert choose.choose(dated, [queue, replace(hybrid, usd=np.array([101.1]))]) is queue
    assert choose.choose(replace(dated, deadline_h=math.inf), [queue, hybrid]) is queue
    assert (
        choose.choose(dated, [replace(queue, lateness=np.array([0.02])), option(Placement.ON_DEMAND, 900.0, 41)]).usd[0]
        == 900.0
    )


def test_waiting_for_spot_alone_is_for_deadlines_that_nothing_else_watches() -> None:
    spot, hybrid = option(Placement.SPOT, 100.0, 70), option(Placement.HYBRID, 130.0, 70)
    dated = Job(accelerator=L4, gpus=1, hours=40, deadline_h=72)
    assert choose.choose(dated, [spot, hybrid]) is hybrid
    assert choose.choose(replace(dated, deadline_h=math.inf), [spot, hybrid]) is spot
    assert choose.choose(dated, [spot, replace(hybrid, refused="not sold")]) is spot
    assert choose.choose(dated, [spot, replace(hybrid, lateness=np.array([0.5]))]) is spot


@pytest.mark.parametrize(
    ("usd", "text"),
    [
        (100.2, "as dear as on-demand"),
        (99.8, "as dear as on-demand"),
        (42.0, "58% below on-demand"),
        (110.0, "10% above on-demand"),
    ],
)
def test_savings_have_a_side_and_are_never_minus_nothing(usd: float, text: str) -> None:
    assert choose.below(usd, 100.0) == text


def test_a_little_money_is_paid_for_a_much_earlier_bad_case() -> None:
    spot, flex = option(Placement.SPOT, 100.0, 100), option(Placement.FLEX_START, 104.0, 89)
    asked = Job(accelerator=A100, gpus=1, hours=80)
    assert choose.choose(asked, [spot, flex]) is flex
    assert choose.choose(asked, [spot, replace(flex, finish_h=np.array([91.0]))]) is spot
    assert choose.choose(asked, [spot, replace(flex, usd=np.array([106.0]))]) is spot


def test_a_tight_deadline_takes_what_is_never_late() -> None:
    asked = Job(accelerator=L4, gpus=1, hours=40, deadline_h=42)
    options = by(advice.options(asked, world(0.3), REGION))
    assert options[Placement.SPOT].late > 0.3
    assert options[Placement.HYBRID].late == 0.0
    assert picked(asked, world(0.3)).placement is Placement.HYBRID


def test_a_job_that_cannot_resume_does_not_go_to_spot_under_churn() -> None:
    asked = Job(accelerator=A100, gpus=1, hours=60, checkpoint_h=math.inf)
    assert picked(asked, world(0.1)).placement is Placement.FLEX_START
    longer = replace(asked, hours=300)
    options = by(advice.options(longer, world(0.1), REGION))
    assert "longer than the 168 h" in options[Placement.FLEX_START].refused
    assert picked(longer, world(0.1)).placement is Placement.ON_DEMAND


def test_a_job_that_churn_never_lets_finish_is_refused_not_priced() -> None:
    asked = Job(accelerator=L4, gpus=1, hours=50, restart_h=2.0)
    spot = by(advice.options(asked, world(5.0), REGION))[Placement.SPOT]
    assert "over 4 machine-hours for an hour of work" in spot.refused


def test_batch_hardly_notices_churn_where_training_without_checkpoints_would_not_end() -> None:
    asked = Job(accelerator=L4, gpus=4, hours=50, batch=True)
    calm, rough = (by(advice.options(asked, world(c), REGION))[Placement.SPOT].mean_usd for c in (0.01, 0.3))
    assert rough < 1.06 * calm


def test_a_gang_is_stopped_by_each_of_its_nodes_and_survivors_are_billed() -> None:
    one, eight = (Job(accelerator=H100, gpus=8 * n, hours=20) for n in (1, 8))
    there = world(0.05, outages=outages.lognormal(1.0, 0.3))
    alone, gang = (by(advice.options(j, there, REGION))[Placement.SPOT] for j in (one, eight))
    assert gang.evictions > 5 * alone.evictions
    assert gang.mean_usd / 8 > 1.2 * alone.mean_usd
    clumped = by(advice.options(eight, replace(there, together=8.0), REGION))[Placement.SPOT]
    assert clumped.evictions == pytest.approx(alone.evictions, rel=0.15)


def test_the_survivor_of_two_nodes_is_billed_for_the_outage(tmp_path: Path) -> None:
    # Both nodes for 2 h, then one or none for 2 h, and so on; 1.9 h of work with a restart of 1 h need two spells.
    (tmp_path / "t.json").write_text(json.dumps({"metadata": {"gap_seconds": 3600}, "data": [2, 2, 1, 0] * 50}))
    asked = Job(accelerator=A100, gpus=16, hours=1.9, checkpoint_h=1e-9, restart_h=1.0)
    trace = traces.load(tmp_path / "t.json", machines=2)
    recorded = replace(traces.Recorded.of([trace]), hours=np.array([1e-9]))
    spot = by(advice.options(asked, world(recorded=recorded), REGION))[Placement.SPOT]
    assert spot.finish_at(50) == pytest.approx(5.9, abs=0.01)
    # The survivor waits as long as the autoscaler leaves it there.
    assert spot.usd_at(50) == pytest.approx(spot.usd_per_hour * (3.9 + advice.KEEP_H / 2), rel=0.01)


def test_the_spread_of_the_answer_includes_the_doubt_about_churn() -> None:
    asked = Job(accelerator=A100, gpus=1, hours=100)
    sure, unsure = world(0.1), replace(world(), churn=hazard.prior(A100))
    spread = [
        np.ptp(np.percentile(by(advice.options(asked, w, REGION))[Placement.SPOT].usd, [5, 95])) for w in (sure, unsure)
    ]
    assert spread[1] > 1.3 * spread[0]


def test_a_queue_with_a_way_out_is_never_late_and_states_how_long_it_waits() -> None:
    asked = Job(accelerator=H100, gpus=8, hours=100, deadline_h=104)
    options = advice.options(asked, world(0.5), REGION)
    plain, safe = (o for o in options if o.placement is Placement.FLEX_START)
    assert plain.late > 0.02
    assert safe.late == 0.0
    assert plain.mean_usd < safe.mean_usd < by(options)[Placement.ON_DEMAND].mean_usd
    assert choose.choose(asked, options) is safe
    rules = emit.compute_class(asked, safe)["spec"]["priorities"]
    assert ["flexStart" in rule for rule in rules] == [True, False]
    assert rules[0]["capacityCheckWaitTimeSeconds"] == round((4 - 2 * asked.restart_h) * 3600)


def test_without_a_rival_no_flip_point_is_stated() -> None:
    there = world()
    only = tuple(s for s in there.prices.skus if s.capacity is Capacity.SPOT)
    there = replace(there, prices=replace(there.prices, skus=only))
    asked = Job(accelerator=A100, gpus=1, hours=5)
    assert choose.limits(asked, there, REGION) is None
    rows = advice.options(asked, there, REGION)
    assert "no flip point, a price is missing" in choose.reason(asked, there, rows, choose.choose(asked, rows), None)


def test_another_sample_does_not_undo_the_choice_of_the_standard_one() -> None:
    asked, there = Job(accelerator=L4, gpus=1, hours=10), world()
    standard = picked(asked, there)
    other = replace(option(Placement.HYBRID, 1.0, 10), policy="cheaper by chance")
    rows = [replace(standard, usd=np.array([2.0])), other]
    assert choose.choose(asked, rows) is other
    settled = ask._settled(asked, replace(there, seed=7), rows, Location())  # pyright: ignore[reportPrivateUsage]
    assert settled is rows[0]
