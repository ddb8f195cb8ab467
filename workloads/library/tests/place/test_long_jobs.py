"""Jobs of days on gangs and of years: nothing may be refused for a limit of the simulation's own."""

import numpy as np
import pytest

from holdfast.contract.capacity import Placement
from holdfast.place import advice, ask, hazard, policies
from holdfast.place.job import Job
from workloads.library.tests.place.worlds import A100_80, H100, L4, world


@pytest.mark.parametrize(
    ("asked", "region", "usd"),
    [
        (Job(accelerator=L4, gpus=1, hours=8_760, batch=True), "us-east4", 2_998),
        (Job(accelerator=A100_80, gpus=8, hours=8_760), "us-east5", 120_771),
    ],
    ids=["a queue for a year", "training for a year"],
)
def test_a_year_on_spot_is_priced_not_refused(asked: Job, region: str, usd: float) -> None:
    options = advice.options(asked, ask.world_of(asked), region)
    chosen = ask.choose(asked, options)
    assert chosen.placement is Placement.SPOT
    assert chosen.mean_usd == pytest.approx(usd, rel=0.03)


def test_a_shortened_job_costs_in_proportion_what_the_whole_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Job(accelerator=H100, gpus=32, hours=150)
    there = world(0.2)
    short = advice.on_spot(asked, there, "us-east4", policies.WAIT)[0]
    monkeypatch.setattr(advice, "MAX_LIVES", 100_000)
    whole = advice.on_spot(asked, there, "us-east4", policies.WAIT)[0]
    assert short.mean_usd == pytest.approx(whole.mean_usd, rel=0.05)
    assert short.usual.evictions == pytest.approx(whole.usual.evictions, rel=0.08)
    assert short.finish_at(50) == pytest.approx(whole.finish_at(50), rel=0.05)


def test_a_gang_of_hundreds_is_answered_for_a_year() -> None:
    asked = Job(accelerator=A100_80, gpus=512, hours=8_760)
    spot = advice.on_spot(asked, ask.world_of(asked), "us-east5", policies.WAIT)[0]
    assert "evictions" not in spot.refused
    assert "machine-hours" in spot.refused or spot.usual.evictions > 5_000


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
    apart = np.mean([one_by_one(nodes, hours, churn, seed) for seed in range(200)])
    spans = hazard.gang_lives(np.random.default_rng(9), np.full(4_000, churn), units=nodes, per_path=200)
    together = np.mean(np.count_nonzero(np.cumsum(spans, axis=1) < hours, axis=1))
    assert together == pytest.approx(apart, rel=0.1)
    # As one machine that dies `nodes` times as often it would have seemed half as bad.
    alone = hazard.lifetimes(np.random.default_rng(9), np.full(4_000, churn * nodes), 200)
    assert np.mean(np.count_nonzero(np.cumsum(alone, axis=1) < hours, axis=1)) < 0.8 * apart


def test_gangs_that_have_run_for_long_lose_machines_at_the_mean_rate() -> None:
    spans = hazard.gang_lives(np.random.default_rng(3), np.full(4_000, 0.05), units=8, per_path=100, settled=True)
    lost = np.mean(np.count_nonzero(np.cumsum(spans, axis=1) < 20.0, axis=1))
    assert lost == pytest.approx(8 * 0.05 * 20, rel=0.06)
