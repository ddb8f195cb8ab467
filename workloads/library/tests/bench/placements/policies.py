"""The policies side by side on synthetic recordings of one zone: availability of Spot machines."""

import math
from dataclasses import dataclass

import numpy as np

from holdfast.place import policies
from holdfast.place.policies import Lines, Policy, make_lines, net
from holdfast.place.simulation import simulate
from holdfast.place.simulation_arrays import Bools, Floats, Paths, Runs, make_runs

WORK_H = 48.0
RESTART_H = 0.2
RATIO = 3.145
DEADLINES_H = (52.0, 70.0, 92.0)
NOISE_POINTS = 0.5

TILES = 4
"""Repetitions of a recording: a run that outlasts it continues at its beginning."""
# Mean and median hours of spells with Spot and without, as published for five zones.
SPELLS = {
    "us-east-1a": ((0.72, 0.33), (3.55, 0.54)),
    "us-east-1c": ((1.48, 0.49), (1.64, 0.54)),
    "us-east-1f": ((2.18, 0.54), (1.52, 0.49)),
    "us-east-2a": ((5.51, 0.87), (1.81, 0.38)),
    "us-west-2b": ((9.75, 1.25), (1.10, 0.38)),
}


def _greedy(runs: Runs) -> Lines:
    # Two restarts, as published: the second one covers an eviction during the first. A run that
    # reaches on-demand stays there.
    return make_lines(
        runs,
        wait=net(runs, 2),
        back=np.inf,
        enter=net(runs, 2),
        leave=net(runs, 2),
    )


def _uniform(runs: Runs) -> Lines:
    """Advances work evenly with time: slack shrinks in proportion to the remaining work."""
    slope = (runs.deadline_h - runs.work_h) / runs.work_h
    return make_lines(
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
    lines=lambda runs: make_lines(
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


def make_paths(traces: list[Trace]) -> Paths:
    """Makes paths of several recordings, of which each run takes one."""
    changes: list[Floats] = []
    for trace in traces:
        # Wrapping keeps the daily rhythm; extrapolating would invent one.
        up = np.tile(trace.up, TILES)
        ticks = np.flatnonzero(up[1:] != up[:-1]) + 1
        changes.append(ticks * trace.gap_h)
    # Beyond its last edge a path never changes again.
    most_changes = max(map(len, changes))
    edges = np.full((len(traces), most_changes + 1), np.inf)
    for row, times in zip(edges, changes, strict=True):
        row[: len(times)] = times
    starts_up = np.array([trace.up[0] for trace in traces])
    return Paths(edges_h=edges, starts_up=starts_up)


def make_traces(hours: float = 1092.0, gap_h: float = 195.0 / 3600.0) -> list[Trace]:
    """Draws recordings with lognormal spells: means far above medians, as in real ones."""
    traces: list[Trace] = []
    for seed, (name, (up_h, down_h)) in enumerate(SPELLS.items()):
        rng = np.random.default_rng(seed)
        # Three times the mean number: with such long tails the first draws may fall far short.
        cycle_h = up_h[0] + down_h[0]
        count = int(hours / cycle_h * 3) + 50
        down_spells = _lognormal(rng, *down_h, count)
        up_spells = _lognormal(rng, *up_h, count)
        edges = np.cumsum(np.stack([down_spells, up_spells], axis=1).ravel())
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
    # Mean over median of a lognormal is exp(sigma^2 / 2).
    skew = max(mean / median, 1.0 + 1e-9)
    sigma = math.sqrt(2.0 * math.log(skew))
    return rng.lognormal(math.log(median), sigma, count)


Costs = dict[str, dict[str, dict[str, float]]]
"""Mean cost in % of pure on-demand, by recording, deadline and policy."""


def side_by_side(traces: list[Trace], starts: int) -> Costs:
    costs: Costs = {}
    for trace in traces:
        offset = np.random.default_rng(1).uniform(0, trace.hours, starts)
        costs[trace.name] = {}
        for hours in DEADLINES_H:
            by_policy = {}
            for policy in COMPARED:
                by_policy[policy.name] = share(trace, policy, hours, offset)
            costs[trace.name][f"{hours:g} h"] = by_policy
    return costs


def share(
    trace: Trace,
    policy: Policy,
    deadline_h: float,
    offset_h: Floats,
) -> float:
    """Returns the mean cost over all starts, in % of pure on-demand."""
    outcome = simulate(job(offset_h, deadline_h), make_paths([trace]), policy)
    return float(outcome.usd.mean()) / WORK_H * 100


def job(offset_h: Floats, deadline_h: float) -> Runs:
    return make_runs(
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
    differences: list[float] = []
    for by_deadline in costs.values():
        for by_policy in by_deadline.values():
            differences.append(by_policy[policies.PATIENT.name] - by_policy[UNIFORM.name])
    worst = max(differences)
    gain = -sum(differences) / len(differences)
    print(
        f"patient against uniform progress: {gain:.1f} points cheaper on average, worst case"
        f" {worst:+.2f} points"
    )
    return worst <= NOISE_POINTS
