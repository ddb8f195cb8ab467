from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from holdfast.place import policies
from holdfast.place.simulation import side_by_side, simulate
from holdfast.place.simulation_arrays import Outcome, Paths, Runs, make_runs
from workloads.library.tests.bench.placements.checks import (
    daly_figures,
    flips,
    mixed_runs,
    never_late,
    simulator_against_closed_forms,
)
from workloads.library.tests.bench.placements.policies import COMPARED, ON_DEMAND_ONLY, UNIFORM

ALL = (policies.WAIT, policies.QUEUE, ON_DEMAND_ONLY, *COMPARED)


def paths(*rows: list[float], up: bool, planned: bool = False) -> Paths:
    return Paths(
        edges_h=np.array(rows, dtype=float),
        starts_up=np.full(len(rows), up),
        planned=planned,
    )


def simulate_one(runs: Runs, path: Paths, policy: policies.Policy) -> dict[str, float]:
    outcome = simulate(runs, path, policy)
    return {name: float(getattr(outcome, name)[0]) for name in Outcome.__slots__}


@pytest.mark.parametrize("check", [simulator_against_closed_forms, daly_figures, flips, never_late])
def test_bench_check_holds(check: Callable[[], bool]) -> None:
    """Closed forms within one percent, Daly's intervals, the printed flip within two percent, no
    feasible deadline missed.
    """
    assert check()


def test_an_eviction_keeps_what_was_committed_and_loses_the_rest() -> None:
    # Up 0..3.1, down until 4, then up. Restart 0.5, a checkpoint of 0.1 after each hour of work.
    runs = make_runs(
        1,
        work_h=4,
        restart_h=0.5,
        interval_h=1.0,
        checkpoint_h=0.1,
        spot_usd=1.0,
    )
    outcome = simulate_one(runs, paths([3.1, 4.0], up=True), policies.WAIT)
    # 2.6 h after the restart: two whole periods of 1.1, so 2 h kept; the rest of 2 h takes 0.5 +
    # 2.2.
    assert outcome["finish_h"] == pytest.approx(4.0 + 0.5 + 2.2)
    assert outcome["usd"] == pytest.approx(3.1 + 2.7)
    assert outcome["evictions"] == 1


def test_a_planned_end_loses_nothing_and_counts_as_no_eviction() -> None:
    runs = make_runs(
        1,
        work_h=4,
        restart_h=0.5,
        interval_h=np.inf,
        spot_usd=1.0,
    )
    outcome = simulate_one(runs, paths([2.0, 3.0], up=True, planned=True), policies.WAIT)
    assert outcome["finish_h"] == pytest.approx(3.0 + 0.5 + 2.5)
    assert outcome["evictions"] == 0


def test_survivors_are_billed_while_waiting_after_the_first_start() -> None:
    runs = make_runs(
        1,
        work_h=2,
        restart_h=0.0,
        idle_usd=10.0,
        spot_usd=1.0,
    )
    outcome = simulate_one(runs, paths([5.0, 6.0, 7.0], up=False), policies.WAIT)
    assert outcome["finish_h"] == pytest.approx(8.0)
    assert outcome["usd"] == pytest.approx(2.0 + 10.0)
    assert np.isinf(simulate_one(runs, paths([1.0], up=True), policies.WAIT)["finish_h"]), (
        "capacity that never comes back"
    )


def test_flex_start_is_kept_if_granted_and_left_in_time_if_not() -> None:
    runs = make_runs(1, work_h=10, restart_h=0.5, deadline_h=20)
    # Granted with 1.3 h of slack: the restart takes it below two restarts, and nothing takes the
    # machine away.
    granted = simulate_one(runs, paths([8.7], up=False), policies.QUEUE)
    never = simulate_one(runs, paths([100.0], up=False), policies.QUEUE)
    assert granted["on_demand_h"] == 0.0
    assert granted["finish_h"] == pytest.approx(19.2)
    assert never["on_demand_h"] == pytest.approx(10.5)
    assert never["finish_h"] == pytest.approx(19.5)


def test_uniform_progress_returns_to_spot_two_restarts_ahead() -> None:
    # Spot appears at 2. Pace is half: on-demand from 0 has done 2 - 0.5 by then, the line plus 2
    # restarts is at 1.5.
    runs = make_runs(1, work_h=10, restart_h=0.5, deadline_h=20)
    early = simulate_one(runs, paths([1.9], up=False), UNIFORM)
    late = simulate_one(runs, paths([2.2], up=False), UNIFORM)
    assert early["on_demand_h"] == pytest.approx(2.0)
    assert late["on_demand_h"] == pytest.approx(2.2)


def test_side_by_side_equals_alone_to_the_bit() -> None:
    runs, path = mixed_runs(50, seed=9)
    compared = (policies.WAIT, *policies.IN_TIME)
    for policy, outcome in zip(compared, side_by_side(runs, path, compared), strict=True):
        alone = simulate(runs, path, policy)
        assert np.array_equal(outcome.usd, alone.usd), policy.name
        assert np.array_equal(outcome.finish_h, alone.finish_h), policy.name


@pytest.mark.parametrize("policy", ALL, ids=lambda policy: policy.name)
def test_money_matches_hours_and_nets_keep_feasible_deadlines(policy: policies.Policy) -> None:
    runs, path = mixed_runs(2_000, seed=11)
    if policy is policies.QUEUE:  # flex-start nodes end by plan and take nothing with them
        path = replace(path, planned=True)
        zeros = np.zeros(len(runs))
        runs = replace(runs, interval_h=zeros, checkpoint_h=zeros)
    outcome = simulate(runs, path, policy)
    finished = np.isfinite(outcome.finish_h)
    busy = outcome.spot_h + outcome.on_demand_h
    assert np.allclose(
        outcome.usd, outcome.spot_h * runs.spot_usd + outcome.on_demand_h * runs.on_demand_usd
    )
    assert np.all(busy[finished] <= outcome.finish_h[finished] + 1e-6)
    assert np.all(busy[finished] >= runs.work_h[finished] - 1e-6)
    assert policy is policies.WAIT or np.all(outcome.finish_h <= runs.deadline_h + 1e-6)


def test_patient_buys_on_demand_only_where_spot_is_not_cheaper() -> None:
    runs = make_runs(
        1,
        work_h=10,
        restart_h=0.1,
        deadline_h=100,
        spot_usd=1.0,
        on_demand_usd=1.0,
    )
    assert simulate_one(runs, paths([1e6], up=True), policies.PATIENT)["spot_h"] == 0.0
