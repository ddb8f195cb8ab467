"""The gap between the policies and the offline optimum, which knows the whole recording.

The optimum is found in steps of TICK_H, backwards from the deadline: the remaining work and the
current machine decide the cheapest continuation. Spot counts as available in a step if it is
available in its middle, so the steps do not lengthen spells on average.
"""

import itertools
from collections.abc import Sequence

import numpy as np

from holdfast.place import policies
from holdfast.place.policies import Policy
from holdfast.place.simulation_arrays import Bools, Floats
from workloads.library.tests.bench.placements.policies import (
    DEADLINES_H,
    RATIO,
    RESTART_H,
    WORK_H,
    Trace,
    share,
)

TICK_H = 0.05
SHARES = (0.1, 0.25, 0.4, 0.6, 0.8, 1.0)
RESERVES = (2, 4, 6)
RIPENESSES = (0, 1, 2, 4)


def make_grid() -> list[Policy]:
    """Makes policies of straight lines, on a grid that is wider than any that was shipped."""
    grid: list[Policy] = []
    for part, reserve, ripe in itertools.product(SHARES, RESERVES, RIPENESSES):
        lines = policies.patience(share=part, reserve=reserve, ripe=ripe)
        grid.append(Policy(name=f"{part}, {reserve}, {ripe}", lines=lines))
    return grid


def optimum(up: Bools) -> float:
    """Returns the least USD for WORK_H of work within the steps of `up`; inf if it is impossible.

    Each start costs a restart.
    """
    work = round(WORK_H / TICK_H)
    restart = round(RESTART_H / TICK_H)
    spot = TICK_H / RATIO
    never = np.full(work + 1, np.inf)
    never[0] = 0.0
    # The least cost from a step on, by remaining work, when on no machine, on Spot, on on-demand.
    # Holds the `restart` steps that follow.
    later = [(never, never, never)] * restart
    lasts = np.cumsum(np.concatenate([[0], ~up]))
    for tick in range(len(up) - 1, -1, -1):
        idle_next, spot_next, demand_next = later[0]
        _, spot_warm, demand_warm = later[restart - 1]
        start_demand = demand_warm + restart * TICK_H
        end = tick + restart
        start = start_demand
        if end <= len(up) and lasts[end] == lasts[tick]:  # Spot lasts for a whole restart
            start = np.minimum(start_demand, spot_warm + restart * spot)
        idle = np.minimum(idle_next, start)
        idle[0] = 0.0
        on_demand = np.minimum(_work_tick(demand_next, TICK_H), idle)
        on_spot = np.minimum(_work_tick(spot_next, spot), idle) if up[tick] else idle
        later = [(idle, on_spot, on_demand), *later[: restart - 1]]
    return float(later[0][0][work])


def _work_tick(after: Floats, usd: float) -> Floats:
    """Returns the cost before a tick of work, by remaining work, from that after it."""
    costs = np.empty_like(after)
    costs[0] = 0.0
    costs[1:] = after[:-1] + usd
    return costs


def steps(trace: Trace, offset_h: float, deadline_h: float) -> Bools:
    """Tells for each step to the deadline whether Spot is available; never after the recording."""
    ticks = np.arange(round(deadline_h / TICK_H))
    middles = offset_h + (ticks + 0.5) * TICK_H
    ticks = (middles / trace.gap_h).astype(np.int64)
    tick = np.minimum(ticks, len(trace.up) - 1)
    return trace.up[tick] & (middles < trace.hours)


def optimum_gaps(traces: list[Trace], starts: int) -> dict[float, dict[str, float]]:
    """Returns by deadline how far mean costs are above the offline optimum, in per cent of it.

    `chosen` is the best policy that watches the deadline, by trace, as `place` picks it.
    `hindsight` is the best policy of the grid for each trace, known in advance: no way to choose
    among such policies can come nearer to the optimum.
    """
    grid = make_grid()
    gaps: dict[float, dict[str, float]] = {}
    for deadline in DEADLINES_H:
        choice_usd = 0.0
        hindsight_usd = 0.0
        optimum_usd = 0.0
        for trace in traces:
            rng = np.random.default_rng(1)
            offsets = rng.uniform(0, max(trace.hours - deadline, 1.0), starts)
            in_time = _least_usd(trace, policies.IN_TIME, deadline, offsets)
            choice_usd += in_time
            hindsight_usd += min(in_time, _least_usd(trace, grid, deadline, offsets))
            optima = [optimum(steps(trace, offset, deadline)) for offset in offsets]
            optimum_usd += float(np.mean(optima))
        gaps[deadline] = {
            "chosen": (choice_usd / optimum_usd - 1) * 100,
            "hindsight": (hindsight_usd / optimum_usd - 1) * 100,
        }
        row = "chosen {chosen:.1f} %, hindsight {hindsight:.1f} %".format(**gaps[deadline])
        print(f"  above the offline optimum by {deadline:g} h: {row}")
    return gaps


def _least_usd(
    trace: Trace, candidates: Sequence[Policy], deadline_h: float, offset_h: Floats
) -> float:
    percents = [share(trace, policy, deadline_h, offset_h) for policy in candidates]
    return min(percents) * WORK_H / 100
