"""Tests that the mover does what the simulator priced: both follow one trace."""

import numpy as np
import pytest

from holdfast.mover import mover as mover_module
from holdfast.mover.mover import Mover
from holdfast.place import plan, simulation
from holdfast.place.plan import Plan, Standing
from holdfast.place.simulation_arrays import Paths
from workloads.library.tests.mover.fake_cluster import CREATED_S, FakeCluster


def paths(seed: int, mean_up_h: float, mean_down_h: float) -> Paths:
    rng = np.random.default_rng(seed)
    spells = np.stack(
        [rng.exponential(mean_down_h, 60), rng.exponential(mean_up_h, 60)], axis=1
    ).ravel()
    return Paths(edges_h=np.cumsum(spells)[None, :], starts_up=np.zeros(1, bool))


def make_plan(policy: str, deadline_h: float) -> Plan:
    return Plan(
        policy=policy,
        work_h=20.0,
        deadline_h=deadline_h,
        restart_h=0.2,
        interval_h=0.3,
        checkpoint_h=0.01,
        spot_usd=1.0,
        on_demand_usd=3.0,
        spot_queue="flex" if policy == "queue" else "spot",
    )


@pytest.mark.parametrize("policy", sorted(plan.POLICIES))
def test_simulator_and_mover_agree_at_every_event(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mover_module, "REACTION_S", 0.0)
    sent: list[Standing] = []
    for seed in range(2):
        for deadline_h in (21.5, 26.0, 40.0):
            sent += replay(make_plan(policy, deadline_h), paths(seed, 2.0, 1.5))
    assert sent.count(Standing.ON_DEMAND) >= 4
    assert policy == "queue" or sent.count(Standing.SPOT) >= 1, (
        "it never came back, so nothing was compared"
    )


def replay(job_plan: Plan, trace: Paths) -> list[Standing]:
    """Returns the moves of one run. Both decide before the simulator makes a move."""
    fleet = simulation.Fleet(
        job_plan.runs(), plan.POLICIES[job_plan.policy].lines(job_plan.runs()), trace
    )
    cluster = FakeCluster(job_plan)
    mover = Mover(cluster)
    moves_made: list[Standing] = []
    while fleet.state.alive.any():
        state = fleet.state
        now_s = CREATED_S + float(state.now[0]) * 3_600
        on_demand = bool(state.on_demand[0])
        on_spot = bool(state.on_spot[0])
        cluster.queue = cluster.workload_queue = "on-demand" if on_demand else job_plan.spot_queue
        cluster.placed = on_spot
        cluster.spot_there = bool(state.up[0])
        cluster.work(float(state.done[0]), now_s)
        # A job that waits in Spot's queue starts when Spot comes, without a move.
        starts = not (on_demand or on_spot) and bool(state.up[0])
        observation = cluster.observe()
        mover.spot.look(observation.spot_machines, observation.waiting_for_spot, now_s)
        job = mover_module.list_movable_jobs(*cluster.read())[0][0]
        moves = fleet.decide()
        move = mover.judge(job, observation, now_s)
        if moves.to_demand[0]:
            expected = Standing.ON_DEMAND
        else:
            expected = Standing.SPOT if moves.to_spot[0] else None
        if starts and expected is Standing.SPOT:
            expected = None
        assert (move.to if move else None) is expected, (
            job_plan,
            now_s - CREATED_S,
            fleet.state.done,
        )
        moves_made += [expected] if expected else []
        fleet.advance()
        fleet.compact()
    return moves_made
