"""Jobs of days on gangs and of years: nothing may be refused for a limit of the simulation's own."""

import numpy as np
import pytest

from holdfast.contract.capacity import Placement
from holdfast.place import advice, choose, hazard, outages, prices, spells
from holdfast.place.advice import World
from holdfast.place.job import Job

A100_80, L4, H100 = "nvidia-a100-80gb", "nvidia-l4", "nvidia-h100-80gb"


def world(accelerator: str, **changes: object) -> World:
    return World(prices=prices.load(), churn=hazard.prior(accelerator), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "region", "usd"),
    [
        (Job(accelerator=L4, gpus=1, hours=8_760, batch=True), "us-east4", 2_998),
        (Job(accelerator=A100_80, gpus=8, hours=8_760), "us-east5", 120_771),
    ],
    ids=["a queue for a year", "training for a year"],
)
def test_a_year_on_spot_is_priced_not_refused(asked: Job, region: str, usd: float) -> None:
    options = advice.options(asked, world(asked.accelerator), region)
    chosen = choose.choose(asked, options)
    assert chosen.placement is Placement.SPOT
    assert chosen.mean_usd == pytest.approx(usd, rel=0.03)


def test_a_shortened_job_costs_in_proportion_what_the_whole_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Job(accelerator=H100, gpus=32, hours=150)
    there = world(H100, outages=outages.lognormal(0.25, 0.08))
    short = advice.under(advice.Scene.of(asked, there, "us-east4"), advice.policies.WAIT)
    advice._spot_paths.cache_clear()  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(advice, "MAX_SPELLS", 100_000)
    whole = advice.under(advice.Scene.of(asked, there, "us-east4"), advice.policies.WAIT)
    advice._spot_paths.cache_clear()  # pyright: ignore[reportPrivateUsage]
    assert short.mean_usd == pytest.approx(whole.mean_usd, rel=0.05)
    assert short.evictions == pytest.approx(whole.evictions, rel=0.08)
    assert short.finish_at(50) == pytest.approx(whole.finish_at(50), rel=0.05)


def test_a_gang_of_hundreds_is_answered_for_a_year() -> None:
    asked = Job(accelerator=A100_80, gpus=512, hours=8_760)
    spot = advice.under(advice.Scene.of(asked, world(A100_80), "us-east5"), advice.policies.WAIT)
    assert "evictions" not in spot.refused
    assert "machine-hours" in spot.refused or spot.evictions > 10_000


def one_by_one(nodes: int, hours: float, churn: float, seed: int) -> float:
    """Evictions of a gang whose machines are followed each by itself, in plain steps."""
    rng = np.random.default_rng(seed)
    gone = hazard.lifetimes(rng, np.full(nodes, churn), 1)[:, 0]
    count = 0
    while (first := int(np.argmin(gone))) >= 0 and gone[first] < hours:
        count += 1
        gone[first] += hazard.lifetimes(rng, np.array([churn]), 1)[0, 0]
    return count


@pytest.mark.parametrize(("nodes", "hours"), [(4, 10.0), (16, 3.0)])
def test_a_gang_is_as_many_machines_of_their_own_ages(nodes: int, hours: float) -> None:
    churn = 0.05
    apart = np.mean([one_by_one(nodes, hours, churn, seed) for seed in range(400)])
    spans = spells.gang_spells(np.random.default_rng(9), np.full(4_000, churn), units=nodes, per_path=200)
    together = np.mean(np.count_nonzero(np.cumsum(spans, axis=1) < hours, axis=1))
    assert together == pytest.approx(apart, rel=0.06)
    # As one machine that dies `nodes` times as often it would have seemed half as bad.
    alone = hazard.lifetimes(np.random.default_rng(9), np.full(4_000, churn * nodes), 200)
    assert np.mean(np.count_nonzero(np.cumsum(alone, axis=1) < hours, axis=1)) < 0.8 * apart


def test_gangs_that_have_run_for_long_lose_machines_at_the_mean_rate() -> None:
    spans = spells.gang_spells(np.random.default_rng(3), np.full(4_000, 0.05), units=8, per_path=100, settled=True)
    lost = np.mean(np.count_nonzero(np.cumsum(spans, axis=1) < 20.0, axis=1))
    assert lost == pytest.approx(8 * 0.05 * 20, rel=0.06)


def test_larger_gangs_wait_longer_for_spot() -> None:
    waits = [outages.prior(H100, gang) for gang in (1, 4, 16)]
    at_once = [each.at_once for each in waits]
    assert at_once == sorted(at_once, reverse=True)
    assert at_once[0] == pytest.approx(0.77, abs=0.01)
    eight = outages.prior(H100, 8)
    assert "next to never in europe-west3-c" in eight.source
    # The 59 % of the record, without the zone that never had eight at once.
    assert eight.at_once * 12 / 13 == pytest.approx(0.59, abs=0.01)


def test_waits_are_drawn_as_recorded() -> None:
    waits = outages.prior(H100, 8, "us-central1")
    drawn = waits.draw(np.random.default_rng(1), 40_000, 2)
    assert drawn[:, 0].mean() == pytest.approx(waits.first_h.mean(), rel=0.05)
    assert drawn[:, 1].mean() == pytest.approx(waits.later_h.mean(), rel=0.05)
    assert set(waits.zones) == {"us-central1-a", "us-central1-b", "us-central1-c"}


def test_a_gang_stays_in_one_zone_and_single_nodes_do_not() -> None:
    calm, scarce = np.full(200, 16), np.tile([16, 0, 0, 0], 50)
    gang = outages.from_counts({"a": calm, "b": scarce}, 4, 1.0)
    single = outages.from_counts({"a": calm, "b": scarce}, 1, 1.0)
    spread = [np.std(each.draw(np.random.default_rng(2), 3_000, 40).mean(axis=1)) for each in (gang, single)]
    assert spread[0] > 3 * spread[1]


def test_the_record_states_where_it_comes_from_and_under_which_licence() -> None:
    import json

    body = json.loads(outages.RECORD.read_text())
    assert body["licence"] == "Apache-2.0"
    assert "skynomad-artifact" in body["source"]
    assert body["notice"]
    lengths = {len(counts) for counts in outages.record().values()}
    assert len(lengths) == 1
    assert lengths.pop() * body["gap_seconds"] == pytest.approx(14.68 * 86_400, rel=0.01)
