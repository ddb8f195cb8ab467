"""The policies side by side on made-up recordings of one zone: availability of Spot machines, with
a seed, as paths.
"""

import math
from dataclasses import dataclass

import numpy as np

from holdfast.place import policies
from holdfast.place.policies import Lines, Policy, lines_of, net
from holdfast.place.simulation import simulate
from holdfast.place.simulation_arrays import Bools, Floats, Paths, Runs, runs_of

WORK_H = 48.0
RESTART_H = 0.2
RATIO = 3.145
DEADLINES_H = (52.0, 70.0, 92.0)
NOISE_POINTS = 0.5

TILES = 4
"""A run that outlasts the recording goes on at its beginning; a job this many recordings long never
ends.
"""
# Mean and median hours of spells with Spot and without, as published of five zones.
SPELLS = {
    "us-east-1a": ((0.72, 0.33), (3.55, 0.54)),
    "us-east-1c": ((1.48, 0.49), (1.64, 0.54)),
    "us-east-1f": ((2.18, 0.54), (1.52, 0.49)),
    "us-east-2a": ((5.51, 0.87), (1.81, 0.38)),
    "us-west-2b": ((9.75, 1.25), (1.10, 0.38)),
}


def _greedy(runs: Runs) -> Lines:
    # Two restarts, as published: the second one covers an eviction during the first. Once on
    # on-demand it stays there.
    return lines_of(
        runs,
        wait=net(runs, 2),
        back=np.inf,
        enter=net(runs, 2),
        leave=net(runs, 2),
    )


def _uniform(runs: Runs) -> Lines:
    """Work done advances evenly with time: on the line, slack shrinks in proportion to the work
    left.
    """
    slope = (runs.deadline_h - runs.work_h) / runs.work_h
    return lines_of(
        runs,
        wait=0.0,
        wait_slope=slope,
        back=2 * runs.restart_h,
        back_slope=slope,
        enter=net(runs, 2),
        leave=net(runs, 2),
    )


ON_DEMAND_ONLY = Policy(
    name="on-demand only",
    lines=lambda runs: lines_of(
        runs,
        wait=np.inf,
        back=np.inf,
        enter=np.inf,
        leave=np.inf,
    ),
)
GREEDY = Policy(name="greedy", lines=_greedy)
UNIFORM = Policy(name="uniform progress", lines=_uniform)
COMPARED = (GREEDY, UNIFORM, policies.HYBRID, *policies.IN_TIME)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    name: str
    gap_h: float
    up: Bools

    @property
    def hours(self) -> float:
        return len(self.up) * self.gap_h


def paths_of(traces: list[Trace]) -> Paths:
    """Several recordings, for runs that each take one of them."""
    changes: list[Floats] = []
    for trace in traces:
        # Wrapping keeps the daily rhythm; extrapolating would invent one.
        up = np.tile(trace.up, TILES)
        changes.append((np.flatnonzero(up[1:] != up[:-1]) + 1) * trace.gap_h)
    # Beyond its last edge a path never changes again.
    edges = np.full((len(traces), max(map(len, changes)) + 1), np.inf)
    for row, found in zip(edges, changes, strict=True):
        row[: len(found)] = found
    return Paths(edges_h=edges, starts_up=np.array([trace.up[0] for trace in traces]))


def made_up(hours: float = 1092.0, gap_h: float = 195.0 / 3600.0) -> list[Trace]:
    """Recordings with spells of the given (mean, median), lognormal: means far above medians, as in
    real ones.
    """
    traces: list[Trace] = []
    for seed, (name, (up_h, down_h)) in enumerate(SPELLS.items()):
        rng = np.random.default_rng(seed)
        # Three times what the means need: with tails like these the first draws may fall far short.
        count = int(hours / (up_h[0] + down_h[0]) * 3) + 50
        spells = np.stack(
            [_lognormal(rng, *down_h, count), _lognormal(rng, *up_h, count)], axis=1
        ).ravel()
        edges = np.cumsum(spells)
        ticks = np.arange(0.0, min(hours, float(edges[-1])), gap_h)
        traces.append(
            Trace(
                name=name,
                gap_h=gap_h,
                up=np.searchsorted(edges, ticks, side="right") % 2 == 1,
            )
        )
    return traces


def _lognormal(
    rng: np.random.Generator,
    mean: float,
    median: float,
    count: int,
) -> Floats:
    # Of a lognormal, mean over median is exp(sigma^2 / 2).
    sigma = math.sqrt(2.0 * math.log(max(mean / median, 1.0 + 1e-9)))
    return rng.lognormal(math.log(median), sigma, count)


Costs = dict[str, dict[str, dict[str, float]]]
"""Recording -> deadline -> policy -> mean cost, % of pure on-demand."""


def side_by_side(traces: list[Trace], starts: int) -> Costs:
    costs: Costs = {}
    for trace in traces:
        offset = np.random.default_rng(1).uniform(0, trace.hours, starts)
        costs[trace.name] = {
            f"{hours:g} h": {
                policy.name: share(trace, policy, hours, offset) for policy in COMPARED
            }
            for hours in DEADLINES_H
        }
    return costs


def share(
    trace: Trace,
    policy: Policy,
    deadline_h: float,
    offset_h: Floats,
) -> float:
    """The mean cost over starts, % of pure on-demand."""
    return (
        float(simulate(job(offset_h, deadline_h), paths_of([trace]), policy).usd.mean())
        / WORK_H
        * 100
    )


def job(offset_h: Floats, deadline_h: float) -> Runs:
    return runs_of(
        len(offset_h),
        work_h=WORK_H,
        restart_h=RESTART_H,
        deadline_h=deadline_h,
        spot_usd=1 / RATIO,
        on_demand_usd=1.0,
        path=np.zeros(len(offset_h), np.int64),
        offset_h=offset_h,
    )


def dominates(costs: Costs) -> bool:
    each = [by_policy for by_deadline in costs.values() for by_policy in by_deadline.values()]
    pairs = [(by_policy[policies.PATIENT.name], by_policy[UNIFORM.name]) for by_policy in each]
    worst = max(our - their for our, their in pairs)
    gain = sum(their - our for our, their in pairs) / len(pairs)
    print(
        f"patient against uniform progress: {gain:.1f} points cheaper on average, worst case"
        f" {worst:+.2f} points"
    )
    return worst <= NOISE_POINTS
