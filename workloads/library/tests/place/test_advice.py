import math
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from holdfast.cost import prices
from holdfast.place import (
    advice,
    job,
    losses,
    policies,
    preemption_rate,
    recommendation,
    scenarios,
)
from holdfast.place.job import Job
from holdfast.place.options import Option, World
from holdfast.support.errors import InputError, Unjudged
from holdfast.vocabulary.capacity import Capacity, Placement
from workloads.library.tests.place.worlds import (
    A100,
    A100_80,
    H100,
    L4,
    REGION,
    by,
    list_by_placement,
    option,
    select_skus,
    world,
)


def recommend(question: Job, beliefs: World, region: str = REGION) -> Option:
    return recommendation.choose(question, advice.options(question, beliefs, region))


@pytest.mark.parametrize(
    ("name", "gpus", "machine", "nodes"),
    [
        ("l4", 1, "g2-standard-8", 1),
        ("l4", 8, "g2-standard-96", 1),
        ("a100", 8, "a2-highgpu-8g", 1),
        ("a100", 16, "a2-highgpu-8g", 2),
        ("a100", 3, "a2-highgpu-1g", 3),
        ("h100", 64, "a3-highgpu-8g", 8),
        ("a100-80", 4, "a2-ultragpu-4g", 1),
    ],
)
def test_gpus_become_the_largest_machines_that_fit(
    name: str, gpus: int, machine: str, nodes: int
) -> None:
    question = Job(
        accelerator=job.parse_accelerator(name),
        gpus=gpus,
        hours=1,
    )
    assert question.machine.name == machine
    assert question.nodes == nodes


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"hours": 0}, "hours"),
        ({"hours": -1}, "hours"),
        ({"hours": math.inf}, "hours"),
        ({"gpus": 0}, "GPUs"),
        ({"hours": math.nan}, "hours"),
        ({"hours": 10_001}, "hours"),
        ({"checkpoint_h": 0}, "checkpoint"),
        ({"restart_h": -1}, "restart"),
        ({"deadline_h": 10.05}, "impossible deadline"),
    ],
)
def test_impossible_jobs_are_refused(wrong: dict[str, float], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        Job(
            **{
                "accelerator": L4,
                "gpus": 1,
                "hours": 10.0,
            }
            | wrong
        )  # type: ignore[arg-type]


def test_no_option_is_dropped_when_its_price_is_missing() -> None:
    question = Job(accelerator=A100, gpus=1, hours=5)
    partial = select_skus(world(), lambda sku: sku.capacity is not Capacity.ON_DEMAND)
    options = by(advice.options(question, partial, REGION))
    assert set(options) == set(Placement)
    for placement in (Placement.ON_DEMAND, Placement.HYBRID):
        assert "no on-demand price of a2-highgpu-1g in us-central1" in options[placement].refused
    assert not options[Placement.SPOT].refused
    without_hosts = select_skus(partial, lambda sku: sku.part == prices.GPU)
    with pytest.raises(Unjudged, match="no spot price"):
        recommend(question, without_hosts)


@pytest.mark.parametrize(
    ("accelerator", "churn", "placement"),
    [
        (L4, 0.05, Placement.SPOT),  # flex-start has no discount there
        (A100, 0.02, Placement.SPOT),
        (A100, 0.5, Placement.FLEX_START),  # 5 % above Spot, undisturbed
        (H100, 0.2, Placement.SPOT),
        (A100_80, 0.01, Placement.FLEX_START),  # Spot costs more there
    ],
)
def test_the_cheapest_capacity_depends_on_gpu_and_churn(
    accelerator: str, churn: float, placement: Placement
) -> None:
    question = Job(accelerator=accelerator, gpus=1, hours=100)
    assert recommend(question, world(churn, spot_wait_h=0.02)).placement is placement


SPOT = Placement.SPOT
FLEX = Placement.FLEX_START
MIX = Placement.HYBRID
DEMAND = Placement.ON_DEMAND
EARLY = option(FLEX, 100.0, 70, late=0.005)
LATE_AT_WORST = [option(SPOT, 100.0, 70, worst_late=0.5), option(MIX, 130.0, 70)]


@pytest.mark.parametrize(
    ("deadline_h", "rows", "taken"),
    [
        (72, [EARLY, option(MIX, 100.9, 70)], MIX),
        (72, [EARLY, option(MIX, 101.1, 70)], FLEX),
        (math.inf, [EARLY, option(MIX, 100.9, 70)], FLEX),
        (72, [option(FLEX, 100.0, 70, late=0.02), option(DEMAND, 900.0, 41)], DEMAND),
        (72, LATE_AT_WORST, MIX),
        (math.inf, LATE_AT_WORST, SPOT),
        (math.inf, [option(SPOT, 100.0, 100), option(FLEX, 104.0, 89)], FLEX),
        (math.inf, [option(SPOT, 100.0, 100), option(FLEX, 104.0, 91)], SPOT),
        (math.inf, [option(SPOT, 100.0, 100), option(FLEX, 106.0, 89)], SPOT),
    ],
    ids=[
        "late less often at an equal cost",
        "costs more",
        "no deadline, the first of equals",
        "too often late",
        "late in the worst scenario",
        "late without a deadline",
        "a little money for a much earlier end",
        "not much earlier",
        "too much money",
    ],
)
def test_the_cheapest_that_keeps_the_deadline_is_taken(
    deadline_h: float, rows: list[Option], taken: Placement
) -> None:
    assert (
        recommendation.choose(
            Job(
                accelerator=L4,
                gpus=1,
                hours=40,
                deadline_h=deadline_h,
            ),
            rows,
        ).placement
        is taken
    )


def test_where_no_row_keeps_the_deadline_each_says_why() -> None:
    rows = [LATE_AT_WORST[0], replace(LATE_AT_WORST[1], refused="not sold")]
    with pytest.raises(Unjudged, match=r"50% late in the worst scenario.*not sold"):
        recommendation.choose(
            Job(
                accelerator=L4,
                gpus=1,
                hours=40,
                deadline_h=72,
            ),
            rows,
        )


def test_a_tight_deadline_takes_what_is_never_late() -> None:
    question = Job(
        accelerator=L4,
        gpus=1,
        hours=40,
        deadline_h=42,
    )
    options = by(advice.options(question, world(0.3), REGION))
    assert options[Placement.SPOT].late > 0.3
    assert options[Placement.HYBRID].late == 0.0
    assert recommend(question, world(0.3)).placement is Placement.HYBRID


def test_a_queue_with_a_way_out_is_never_late() -> None:
    question = Job(
        accelerator=H100,
        gpus=8,
        hours=100,
        deadline_h=104,
    )
    options = advice.options(question, world(0.5), REGION)
    plain, safe = list_by_placement(options, Placement.FLEX_START)
    assert plain.late > 0.02
    assert safe.late == 0.0
    assert plain.mean_usd < safe.mean_usd < by(options)[Placement.ON_DEMAND].mean_usd
    assert recommendation.choose(question, options) is safe


def test_a_job_that_cannot_resume_does_not_go_to_spot_under_churn() -> None:
    question = Job(
        accelerator=A100,
        gpus=1,
        hours=60,
        checkpoint_h=math.inf,
    )
    assert recommend(question, world(0.1)).placement is Placement.FLEX_START
    longer = replace(question, hours=300)
    options = by(advice.options(longer, world(0.1), REGION))
    assert "longer than the 168 h" in options[Placement.FLEX_START].refused
    assert recommend(longer, world(0.1)).placement is Placement.ON_DEMAND


def test_batch_takes_the_least_host_per_gpu_and_hardly_notices_churn() -> None:
    question = Job(
        accelerator=L4,
        gpus=4,
        hours=50,
        batch=True,
    )
    assert question.machine.name == "g2-standard-8"
    calm = by(advice.options(question, world(0.01), REGION))[Placement.SPOT].mean_usd
    rough = by(advice.options(question, world(0.3), REGION))[Placement.SPOT].mean_usd
    assert rough < 1.06 * calm


def test_gang_stops_with_each_node_group_and_pays_survivors() -> None:
    single_node = Job(accelerator=H100, gpus=8, hours=20)
    eight_nodes = Job(accelerator=H100, gpus=64, hours=20)
    beliefs = world(0.05, spot_wait_h=0.3)
    alone = by(advice.options(single_node, beliefs, REGION))[Placement.SPOT]
    gang = by(advice.options(eight_nodes, beliefs, REGION))[Placement.SPOT]
    assert gang.usual.evictions > 3 * alone.usual.evictions
    assert gang.mean_usd / 8 > 1.1 * alone.mean_usd
    # In a queue each node works for itself.
    queue = by(advice.options(replace(eight_nodes, batch=True), beliefs, REGION))[Placement.SPOT]
    assert queue.usual.evictions < 0.5 * gang.usual.evictions


def test_loss_groups_are_no_rarer_than_in_the_record() -> None:
    """Compares losses per hour in which the gang could start with those of single nodes."""
    groups: dict[int, int] = {}
    for nodes in range(1, 65):
        groups[nodes] = losses.count_groups(Job(accelerator=H100, gpus=8 * nodes, hours=1))
    assert groups.items() >= {1: 1, 2: 2, 6: 3, 7: 7, 12: 4, 64: 8}.items()
    assert (
        losses.count_groups(
            Job(
                accelerator=H100,
                gpus=512,
                hours=1,
                batch=True,
            )
        )
        == 1
    )

    def rate(nodes: int) -> float:
        losses = 0
        hours = 0
        for counts in scenarios.record().values():
            up = counts >= nodes
            if up.mean() >= scenarios.HOPELESS:
                losses += np.count_nonzero(up[:-1] & ~up[1:])
                hours += np.count_nonzero(up)
        return losses / hours

    for nodes in (4, 8, 16):
        assert 0.5 < rate(nodes) / rate(1) / groups[nodes] <= 1.0


def test_spread_includes_the_churn_uncertainty() -> None:
    question = Job(accelerator=A100, gpus=1, hours=100)
    sure = world(0.1)
    unsure = replace(world(), churn=preemption_rate.prior(A100))
    usd = []
    for w in (sure, unsure):
        options = by(advice.options(question, w, REGION))
        usd.append(options[Placement.SPOT].usual.usd)
    spread = []
    for costs in usd:
        spread.append(np.ptp(np.percentile(costs, [5, 95])))
    assert spread[1] > 1.3 * spread[0]


QUESTION = Job(accelerator=A100_80, gpus=1, hours=10)
BELIEFS = recommendation.make_world(QUESTION, "0.05")
CHEAPEST = "us-east5"


def test_answer_takes_the_cheapest_allowed_region_and_names_others() -> None:
    several = {"us-central1, EUROPE": ("us-central1", "europe-")}
    allowed = {
        "": "",
        "europe": "europe-",
        "us-central1": "us-central1",
    } | several
    for region, beginnings in allowed.items():
        answer = recommendation.answer(QUESTION, BELIEFS, region)
        usd = []
        answer_regions = {answer.region}
        for estimate in answer.elsewhere:
            usd.append(estimate.usd)
            answer_regions.add(estimate.region)
        priced_regions = set()
        for name in prices.load().regions(A100_80):
            if name.startswith(beginnings):
                priced_regions.add(name)
        assert answer_regions == priced_regions
        assert usd == sorted(usd)
        assert (answer.region == CHEAPEST) is (region == "")


@pytest.mark.parametrize("region", ["mars-north1", "us-east", "europe,,us", "u"])
def test_no_such_region_gets_those_that_have_prices(region: str) -> None:
    with pytest.raises(InputError, match="--anywhere") as refused:
        recommendation.answer(Job(accelerator=A100, gpus=1, hours=1), BELIEFS, region)
    assert "europe-west4, me-west1, us-central1" in refused.value.allowed


@pytest.mark.parametrize("nodes", [2, 3, 4, 6, 9, 16])
def test_a_loss_needs_the_bucket_as_often_as_it_takes_two_neighbors(nodes: int) -> None:
    question = Job(
        accelerator=A100,
        gpus=8 * nodes,
        hours=40,
        sharded=nodes,
    )
    groups = [*combinations(range(nodes), nodes // losses.count_groups(question))]
    with_neighbors = 0
    for group in groups:
        with_neighbors += any((node + 1) % nodes in group for node in group)
    share = with_neighbors / len(groups)
    assert losses.neighbors_lost(question) == pytest.approx(share)
    interval_h, block_h = losses.find_save_interval(question, 0.1)
    upload_h, _ = losses.find_save_interval(replace(question, sharded=0), 0.1)
    assert interval_h == pytest.approx(share * upload_h + (1 - share) * 50 / 3600)
    assert block_h / interval_h == pytest.approx(0.02 + question.checkpoint_h / upload_h)


def test_a_shortened_job_costs_in_proportion_what_the_whole_one_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    question = Job(accelerator=H100, gpus=32, hours=150)
    beliefs = world(0.2)
    short = advice.on_spot(question, beliefs, "us-east4", policies.WAIT)[0]
    monkeypatch.setattr(advice, "MAX_LIVES", 100_000)
    whole = advice.on_spot(question, beliefs, "us-east4", policies.WAIT)[0]
    assert short.mean_usd == pytest.approx(whole.mean_usd, rel=0.05)
    assert short.usual.evictions == pytest.approx(whole.usual.evictions, rel=0.08)
    assert short.finish_at(50) == pytest.approx(whole.finish_at(50), rel=0.05)


def test_endless_spot_runs_are_refused_and_a_year_is_priced() -> None:
    endless = Job(
        accelerator=L4,
        gpus=1,
        hours=50,
        restart_h=2.0,
    )
    assert (
        "over 4 machine-hours"
        in advice.on_spot(endless, world(5.0), REGION, policies.WAIT)[0].refused
    )
    year = Job(accelerator=A100_80, gpus=8, hours=8_760)
    recommended = recommendation.choose(
        year, advice.options(year, recommendation.make_world(year), CHEAPEST)
    )
    assert recommended.placement is Placement.SPOT
    assert recommended.mean_usd == pytest.approx(120_771, rel=0.03)
    gang = replace(year, gpus=512)
    spot = advice.on_spot(gang, recommendation.make_world(gang), CHEAPEST, policies.WAIT)[0]
    assert "machine-hours" in spot.refused or spot.usual.evictions > 5_000


def test_an_hour_later_has_a_price_without_a_deadline() -> None:
    """A cheap job that is done after weeks loses to one that ends in two days, and says so."""
    question = Job(accelerator=H100, gpus=8, hours=40)
    beliefs = recommendation.make_world(question, "", 4.0, ("us-central1",))
    rows = advice.options(question, beliefs, REGION)
    (spot,) = list_by_placement(rows, Placement.SPOT)
    taken = recommendation.choose(question, rows)
    assert spot.mean_usd < taken.mean_usd
    assert spot.finish_at(50) > 2 * taken.finish_at(95)
    hour_usd = recommendation.later_usd(question, rows)
    on_demand = by(rows)[Placement.ON_DEMAND].usd_per_hour
    assert hour_usd == pytest.approx(0.1 * on_demand)
    assert spot.usd_with_time(hour_usd) > taken.usd_with_time(hour_usd)
    assert recommendation.later_usd(replace(question, deadline_h=900), rows) == 0.0
