"""The churn at which Spot stops paying, and the churn that is measured. Of one GPU the first is held against the simulator in test_simulate."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from holdfast.contract.capacity import Capacity, Placement
from holdfast.place import advice, ask, break_even, hazard
from holdfast.place.churn import estimate
from holdfast.place.churn.cli import show
from holdfast.place.job import Job
from workloads.library.tests.place.worlds import A100, REGION, world


def test_the_printed_flip_of_a_gang_is_the_simulated_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advice, "RUNS", 8_000)
    asked = Job(accelerator=A100, gpus=32, hours=40.0)
    flip = break_even.flip(asked, world(0.1), REGION)
    assert flip is not None
    rows = advice.options(asked, world(flip.churn_per_hour), REGION)
    found = {o.placement: o.mean_usd for o in rows if not o.refused}
    rival = min(found[Placement.FLEX_START], found[Placement.ON_DEMAND])
    assert found[Placement.SPOT] == pytest.approx(rival, rel=0.01)


def test_short_jobs_flip_at_a_far_lower_churn_because_their_machines_are_young() -> None:
    short, long = (break_even.flip(Job(accelerator=A100, gpus=1, hours=h), world(0.1), REGION) for h in (1.0, 400.0))
    assert short is not None
    assert long is not None
    assert short.churn_per_hour < 0.3 * long.churn_per_hour


def measured_after(hours_each: float, churn: float, machines: int) -> hazard.Churn:
    """What a ledger holds after jobs of this length on machines with this churn, as monitoring writes it."""
    lives = hazard.lifetimes(np.random.default_rng(5), np.full(machines, churn), 1)[:, 0]
    ran, lost = np.minimum(lives, hours_each), int(np.count_nonzero(lives < hours_each))
    edges = np.append(hazard.AGES_H, np.inf)
    ages = np.array([np.sum(np.clip(ran, low, high) - low) for low, high in itertools.pairwise(edges)])
    return hazard.measure(hazard.prior(A100), events=lost, exposure_h=float(ran.sum()), ages_h=ages)


@pytest.mark.parametrize(("hours_each", "machines"), [(1.0, 20_000), (400.0, 4_000)])
def test_churn_is_measured_alike_on_young_machines_and_on_those_of_all_ages(hours_each: float, machines: int) -> None:
    assert measured_after(hours_each, 0.05, machines).per_hour == pytest.approx(0.05, rel=0.15)


def test_what_monitoring_prints_is_what_placement_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    group = estimate.Group(pool="spot-a100", machine_type="a2-highgpu-8g", zone="us-central1-a")
    other = estimate.Group(pool="spot-l4", machine_type="g2-standard-8", zone="us-central1-a")
    seen = estimate.Exposure(events=12, hours=400)
    ages = [(0.0, 0.25, estimate.Exposure(events=6, hours=100)), (0.25, 1.0, estimate.Exposure(events=6, hours=300))]
    show({group: seen, other: estimate.Exposure(events=99, hours=1)}, ages, {}, as_json=True)
    path = tmp_path / "churn.json"
    path.write_text(capsys.readouterr().out)
    belief = hazard.read_measured(path, A100)
    assert (belief.measured_events, belief.measured_h) == (12, 400)
    assert belief.per_hour < 0.03


def test_without_a_rival_no_flip_point_is_stated() -> None:
    there = world()
    only = tuple(s for s in there.prices.skus if s.capacity is Capacity.SPOT)
    there = replace(there, prices=replace(there.prices, skus=only))
    asked = Job(accelerator=A100, gpus=1, hours=5)
    assert break_even.flip(asked, there, REGION) is None
    rows = advice.options(asked, there, REGION)
    assert "no break-even: a price is missing" in ask.why(asked, there, rows, ask.choose(asked, rows), None)
