"""Tests lifetimes of machines and gangs, measured churn, and the break-even churn."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from holdfast.cost.churn import estimate
from holdfast.cost.churn.cli import show
from holdfast.place import advice, break_even, preemption_rate, recommendation, scenarios
from holdfast.place.job import Job
from holdfast.support.errors import InputError
from holdfast.vocabulary.capacity import Capacity, Placement
from holdfast.vocabulary.machines import ACCELERATORS
from workloads.library.tests.place.worlds import A100, REGION, select_skus, world

UNKNOWN = np.zeros(len(preemption_rate.AGES_H))


def test_mean_life_is_inverse_churn_and_old_machines_are_safer() -> None:
    lives = {}
    for c in (0.01, 0.1, 1.0):
        lives[c] = preemption_rate.lifetimes(np.random.default_rng(1), np.full(2_000, c), 100)
    for churn, hours in lives.items():
        assert hours.mean() == pytest.approx(1 / churn, rel=0.02)
    hours = lives[0.1]
    young = np.mean(hours[hours > 0.0] < 1.0)
    old = np.mean(hours[hours > 12.0] < 13.0)
    assert young == pytest.approx(0.46, abs=0.03)
    assert old < 0.1 * young


def test_measurement_replaces_the_prior_as_exposure_grows() -> None:
    assert set(preemption_rate.PRIOR_CHURN) == set(ACCELERATORS)
    belief = preemption_rate.prior("nvidia-l4")
    assert belief.per_hour == pytest.approx(0.05)
    few = preemption_rate.measure(
        belief,
        events=1,
        exposure_h=4,
        ages_h=UNKNOWN,
    )
    many = preemption_rate.measure(
        belief,
        events=250,
        exposure_h=1_000,
        ages_h=UNKNOWN,
    )
    assert belief.per_hour < few.per_hour < many.per_hour == pytest.approx(0.25, rel=0.04)
    spread = []
    for b in (belief, few, many):
        spread.append(
            np.ptp(np.quantile(b.draw(np.random.default_rng(0), 4_000), [0.05, 0.95])) / b.per_hour
        )
    assert spread == sorted(spread, reverse=True)
    assert preemption_rate.measure(
        belief,
        events=0,
        exposure_h=960,
        ages_h=UNKNOWN,
    ).per_hour == pytest.approx(0.002)


ROW = (
    '{{"ages": [], "groups": [{{"machine_type": "g2-standard-8", "events": {}, "node_hours":'
    " {}}}]}}"
)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"groups": [{"machine_type": "g2-standard-8"}]}',
        '{"groups": 3}',
        '{"groups": []}',
        ROW.format(1, 0),
        ROW.format(-1, 10),
        ROW.format(1, "NaN"),
    ],
)
def test_a_file_that_is_no_ledger_or_measures_what_cannot_be_is_refused(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "churn.json"
    path.write_text(text)
    with pytest.raises(InputError, match="measured churn"):
        preemption_rate.load_measurements(path, "nvidia-l4")


def test_spot_paths_begin_with_a_wait_and_flex_paths_end_as_planned() -> None:
    rng = np.random.default_rng(1)
    waits = scenarios.lognormal(2.0, 0.5)
    spans = preemption_rate.gang_lives(
        rng,
        np.full(500, 0.1),
        units=1,
        per_path=40,
    )
    spot = preemption_rate.spot_paths(spans, waits.draw(rng, 500, 40))
    assert not spot.starts_up.any()
    assert not spot.planned
    assert np.all(np.diff(spot.edges_h) >= 0)
    flex = preemption_rate.flex_paths(
        rng,
        20_000,
        max_run_h=168,
        rounds=3,
        waits=waits,
    )
    assert flex.planned
    assert np.allclose(flex.edges_h[:, 1] - flex.edges_h[:, 0], 168)
    assert np.median(flex.edges_h[:, 0]) == pytest.approx(0.5, rel=0.05)


def one_by_one(nodes: int, hours: float, churn: float, seed: int) -> float:
    """Counts the evictions of a gang, following each of its machines in plain steps."""
    rng = np.random.default_rng(seed)
    ends = preemption_rate.lifetimes(rng, np.full(nodes, churn), 1)[:, 0]
    count = 0
    while (first := int(np.argmin(ends))) >= 0 and ends[first] < hours:
        count += 1
        ends[first] += preemption_rate.lifetimes(rng, np.array([churn]), 1)[0, 0]
    return count


@pytest.mark.parametrize(("nodes", "hours"), [(4, 10.0), (16, 3.0)])
def test_gang_lives_like_independent_machines(nodes: int, hours: float) -> None:
    churn = 0.05
    apart = np.mean([one_by_one(nodes, hours, churn, seed) for seed in range(200)])
    spans = preemption_rate.gang_lives(
        np.random.default_rng(9),
        np.full(4_000, churn),
        units=nodes,
        per_path=200,
    )
    together = np.mean(np.count_nonzero(np.cumsum(spans, axis=1) < hours, axis=1))
    assert together == pytest.approx(apart, rel=0.1)


def test_printed_flip_equals_the_simulated_one_for_gangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advice, "RUNS", 8_000)
    question = Job(accelerator=A100, gpus=32, hours=40.0)
    flip = break_even.flip(question, world(0.1), REGION)
    assert flip
    rows = advice.options(question, world(flip.churn_per_hour), REGION)
    costs = {}
    for o in rows:
        if not o.refused:
            costs[o.placement] = o.mean_usd
    rival = min(costs[Placement.FLEX_START], costs[Placement.ON_DEMAND])
    assert costs[Placement.SPOT] == pytest.approx(rival, rel=0.01)


def test_short_jobs_flip_at_a_far_lower_churn() -> None:
    short_job = Job(accelerator=A100, gpus=1, hours=1.0)
    long_job = Job(accelerator=A100, gpus=1, hours=400.0)
    short = break_even.flip(short_job, world(0.1), REGION)
    long = break_even.flip(long_job, world(0.1), REGION)
    assert short
    assert long
    assert short.churn_per_hour < 0.3 * long.churn_per_hour


def measure_churn(hours_each: float, churn: float, machines: int) -> preemption_rate.Churn:
    """Measures churn by jobs of this length on machines with this churn, as monitoring does."""
    rng = np.random.default_rng(5)
    lives = preemption_rate.lifetimes(rng, np.full(machines, churn), 1)[:, 0]
    run_hours = np.minimum(lives, hours_each)
    evictions = int(np.count_nonzero(lives < hours_each))
    edges = np.append(preemption_rate.AGES_H, np.inf)
    hours_by_age = []
    for low, high in itertools.pairwise(edges):
        hours_by_age.append(np.sum(np.clip(run_hours, low, high) - low))
    ages = np.array(hours_by_age)
    return preemption_rate.measure(
        preemption_rate.prior(A100),
        events=evictions,
        exposure_h=float(run_hours.sum()),
        ages_h=ages,
    )


@pytest.mark.parametrize(("hours_each", "machines"), [(1.0, 20_000), (400.0, 4_000)])
def test_measured_churn_does_not_depend_on_machine_age(hours_each: float, machines: int) -> None:
    assert measure_churn(hours_each, 0.05, machines).per_hour == pytest.approx(0.05, rel=0.15)


def test_what_monitoring_prints_is_what_placement_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    group = estimate.Group(pool="spot-a100", machine_type="a2-highgpu-8g", zone="us-central1-a")
    other = estimate.Group(pool="spot-l4", machine_type="g2-standard-8", zone="us-central1-a")
    exposure = estimate.Exposure(events=12, hours=400)
    ages = [
        (0.0, 0.25, estimate.Exposure(events=6, hours=100)),
        (0.25, 1.0, estimate.Exposure(events=6, hours=300)),
    ]
    show(
        {
            group: exposure,
            other: estimate.Exposure(events=99, hours=1),
        },
        ages,
        {},
        as_json=True,
    )
    path = tmp_path / "churn.json"
    path.write_text(capsys.readouterr().out)
    belief = preemption_rate.load_measurements(path, A100)
    assert belief.measured_events == 12
    assert belief.measured_h == 400
    assert belief.per_hour < 0.03


def test_without_a_rival_no_flip_point_is_stated() -> None:
    beliefs = select_skus(world(), lambda sku: sku.capacity is Capacity.SPOT)
    question = Job(accelerator=A100, gpus=1, hours=5)
    assert break_even.flip(question, beliefs, REGION) is None
    rows = advice.options(question, beliefs, REGION)
    assert "no break-even: a price is missing" in recommendation.explain(
        question, beliefs, rows, recommendation.choose(question, rows), None
    )
