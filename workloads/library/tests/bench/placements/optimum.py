"""How far the policies are from the offline optimum, which knows the whole recording.

In steps of TICK_H: what is left to do and where the job stands decide what is cheapest from there,
backwards from the deadline. Spot is there in a step if it is there in its middle, so no spell is
longer than it was but by chance.
"""

import itertools

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
# Straight lines, on a grid that is wider than what was ever shipped.
GRID = [
    Policy(
        name=f"{share}, {reserve}, {ripe}",
        lines=policies.patience(share=share, reserve=reserve, ripe=ripe),
    )
    for share, reserve, ripe in itertools.product(
        (0.1, 0.25, 0.4, 0.6, 0.8, 1.0), (2, 4, 6), (0, 1, 2, 4)
    )
]


def optimum(up: Bools) -> float:
    """Least USD for WORK_H of work within the steps of `up`, each start at the price of a restart;
    inf: impossible.
    """
    work = round(WORK_H / TICK_H)
    restart = round(RESTART_H / TICK_H)
    spot = TICK_H / RATIO
    never = np.full(work + 1, np.inf)
    never[0] = 0.0
    # Cheapest from a step on, by work left: on nothing, on Spot, on on-demand. The last `restart`
    # steps are kept.
    later = [(never, never, never)] * restart
    lasts = np.cumsum(np.concatenate([[0], ~up]))
    for at in range(len(up) - 1, -1, -1):
        idle_next, spot_next, demand_next = later[0]
        _, spot_warm, demand_warm = later[restart - 1]
        start_demand = demand_warm + restart * TICK_H
        whole = at + restart <= len(up) and lasts[at + restart] == lasts[at]
        start = np.minimum(start_demand, spot_warm + restart * spot) if whole else start_demand
        idle = np.minimum(idle_next, start)
        idle[0] = 0.0
        on_demand = np.minimum(_worked(demand_next, TICK_H), idle)
        on_spot = np.minimum(_worked(spot_next, spot), idle) if up[at] else idle
        later = [(idle, on_spot, on_demand), *later[: restart - 1]]
    return float(later[0][0][work])


def _worked(after: Floats, usd: float) -> Floats:
    found = np.empty_like(after)
    found[0], found[1:] = 0.0, after[:-1] + usd
    return found


def steps(trace: Trace, offset_h: float, deadline_h: float) -> Bools:
    """Whether Spot is there in each step from the offset to the deadline; gone after the end of the
    recording.
    """
    middles = offset_h + (np.arange(round(deadline_h / TICK_H)) + 0.5) * TICK_H
    tick = np.minimum((middles / trace.gap_h).astype(np.int64), len(trace.up) - 1)
    return trace.up[tick] & (middles < trace.hours)


def optimum_gaps(traces: list[Trace], starts: int) -> dict[float, dict[str, float]]:
    """Deadline -> how far means are above the offline optimum, in per cent of that; `chosen`: the
    best of the policies that watch the deadline, by trace, as `place` picks it; `hindsight`: the
    best of GRID for each trace, known beforehand. No choice of such lines, however made, comes
    nearer than that.
    """
    gaps: dict[float, dict[str, float]] = {}
    for deadline in DEADLINES_H:
        chosen = hindsight = least = 0.0
        for trace in traces:
            offset = np.random.default_rng(1).uniform(0, max(trace.hours - deadline, 1.0), starts)
            picked, known = (
                min(share(trace, policy, deadline, offset) * WORK_H / 100 for policy in of)
                for of in (policies.IN_TIME, GRID)
            )
            chosen = chosen + picked
            hindsight = hindsight + min(picked, known)
            least += float(np.mean([optimum(steps(trace, at, deadline)) for at in offset]))
        gaps[deadline] = {
            "chosen": (chosen / least - 1) * 100,
            "hindsight": (hindsight / least - 1) * 100,
        }
        row = ", ".join(f"{name} {gap:.1f} %" for name, gap in gaps[deadline].items())
        print(f"  above the offline optimum by {deadline:g} h: {row}")
    return gaps
