"""The mover does what the simulator priced: both are fed one trace, and every decision is compared."""

import numpy as np
import pytest

from holdfast.mover import mover as mover_module
from holdfast.mover.mover import Mover
from holdfast.place import plan, simulate
from holdfast.place.plan import Plan, Standing
from holdfast.place.runs import Paths
from workloads.library.tests.mover.played import CREATED_S, Played


def paths(seed: int, mean_up_h: float, mean_down_h: float) -> Paths:
    rng = np.random.default_rng(seed)
    spells = np.stack([rng.exponential(mean_down_h, 60), rng.exponential(mean_up_h, 60)], axis=1).ravel()
    return Paths(edges_h=np.cumsum(spells)[None, :], starts_up=np.zeros(1, bool))


def asked(policy: str, deadline_h: float) -> Plan:
    return Plan(
        policy=policy, work_h=20.0, deadline_h=deadline_h, restart_h=0.2, interval_h=0.3, checkpoint_h=0.01,
        spot_usd=1.0, on_demand_usd=3.0, spot_queue="flex" if policy == "queue" else "spot",
    )  # fmt: skip


@pytest.mark.parametrize("policy", sorted(plan.POLICIES))
def test_simulator_and_mover_decide_alike_at_every_event_of_a_trace(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mover_module, "REACTION_S", 0.0)
    sent: list[Standing] = []
    for seed in range(4):
        for deadline_h in (21.5, 26.0, 40.0):
            sent += replayed(asked(policy, deadline_h), paths(seed, 2.0, 1.5))
    assert sent.count(Standing.ON_DEMAND) >= 8
    assert policy == "queue" or sent.count(Standing.SPOT) >= 3, "it never came back, so nothing was compared"


def replayed(given: Plan, trace: Paths) -> list[Standing]:
    """The moves of one run; each is asked of both before the simulator makes it."""
    fleet = simulate.Fleet(given.runs(), plan.POLICIES[given.policy].lines(given.runs()), trace)
    cluster = Played(given)
    mover = Mover(cluster)
    sent: list[Standing] = []
    while fleet.state.alive.any():
        state, now_s = fleet.state, CREATED_S + float(fleet.state.now[0]) * 3_600
        on_demand, on_spot = bool(state.on_demand[0]), bool(state.on_spot[0])
        cluster.queue = cluster.workload_queue = "on-demand" if on_demand else given.spot_queue
        cluster.placed, cluster.spot_there = on_spot, bool(state.up[0])
        cluster.worked(float(state.done[0]), now_s)
        # Whoever waits in Spot's queue starts when Spot comes, and nobody moves it.
        starts = not (on_demand or on_spot) and bool(state.up[0])
        seen = cluster.seen()
        mover.spot.look(seen.spot_machines, seen.waiting_for_spot, now_s)
        job = mover_module.movables(*cluster.read())[0][0]
        moves, move = fleet.decide(), mover.judge(job, seen, now_s)
        expected = Standing.ON_DEMAND if moves.to_demand[0] else Standing.SPOT if moves.to_spot[0] else None
        if starts and expected is Standing.SPOT:
            expected = None
        assert (move.to if move else None) is expected, (given, now_s - CREATED_S, fleet.state.done)
        sent += [expected] if expected else []
        fleet.advance()
        fleet.compact()
    return sent


def played_h(given: Plan, up: np.ndarray[tuple[int], np.dtype[np.bool_]], tick_h: float) -> tuple[float, float]:
    """Hours until the job is done, and what it cost, with the mover's own steps on a cluster that reacts late."""
    cluster, done, committed, warm, usd, now_h = Played(given), 0.0, 0.0, given.restart_h, 0.0, 0.0
    mover = Mover(cluster)
    for there in up:
        now_s = CREATED_S + now_h * 3_600
        on_demand = cluster.workload_queue == "on-demand"
        if cluster.placed and not on_demand and not there:
            cluster.placed, done = False, committed
        if not cluster.placed and (there or on_demand):
            # Kueue and the scheduler act between two steps of the mover.
            cluster.placed, warm = True, given.restart_h
        if cluster.placed:
            useful = max(tick_h - warm, 0.0)
            warm = max(warm - tick_h, 0.0)
            done += useful
            usd += tick_h * (given.on_demand_usd if on_demand else given.spot_usd)
            committed = max(committed, np.floor(done / given.interval_h) * given.interval_h)
        now_h += tick_h
        if done >= given.work_h:
            return now_h, usd
        cluster.spot_there = bool(there)
        cluster.worked(done, now_s + tick_h * 3_600)
        queue = cluster.queue
        mover.step(cluster.seen(), now_s + tick_h * 3_600)
        if cluster.queue != queue:
            committed = done  # a notice: the trainer saves before it goes
    return np.inf, usd


def test_no_feasible_deadline_is_missed_and_the_cost_is_what_was_simulated() -> None:
    tick_h, costs, priced = 1 / 16, list[float](), list[float]()
    for seed, deadline_h in ((1, 23.0), (3, 30.0)):
        trace = paths(seed, 3.0, 1.5)
        ticks = np.arange(0.0, deadline_h + 1, tick_h)
        up = np.searchsorted(trace.edges_h[0], ticks, side="right")
        given = asked("patient", deadline_h)
        took_h, usd = played_h(given, up % 2 == 1, tick_h)
        assert took_h <= deadline_h, f"seed {seed} was done after {took_h:.2f} h of {deadline_h}"
        costs.append(usd)
        priced.append(float(simulate.simulate(given.runs(), trace, plan.POLICIES["patient"]).usd[0]))
    assert sum(costs) == pytest.approx(sum(priced), rel=0.05)
