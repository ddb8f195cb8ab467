"""The policies side by side on recordings of one zone, and what was published of them."""

import math
from pathlib import Path

import numpy as np

from holdfast.place import policies
from holdfast.place.policies import Lines, Policy, lines_of, net
from holdfast.place.runs import Floats, Runs, runs_of
from holdfast.place.simulate import simulate
from workloads.library.tests.bench.placement_traces import Trace, load, synthetic

WORK_H, RESTART_H, RATIO = 48.0, 0.2, 3.145
DEADLINES_H = (52.0, 70.0, 92.0)
NOISE_POINTS = 0.5
PUBLISHED_STARTS = 200

# Published for 48 h of work on one V100: greedy and uniform progress by deadline, % of pure on-demand; then
# what waiting for Spot costs and when half and 95 % of the runs are done.
TABLE = {
    "us-east-1a": ((100, 98, 96, 93, 91, 90), 39, (305, 548)),
    "us-east-1c": ((95, 87, 74, 70, 62, 63), 38, (156, 278)),
    "us-east-1f": ((87, 78, 65, 55, 50, 51), 36, (113, 229)),
    "us-east-2a": ((69, 57, 48, 44, 37, 38), 33, (61, 109)),
    "us-west-2b": ((53, 45, 37, 36, 33, 34), 33, (52, 86)),
}
MEAN_OF_ELEVEN = (76.0, 68.9, 55.9, 52.7, 46.6, 48.0)
SPELLS = {
    "us-east-1a": ((0.72, 0.33), (3.55, 0.54)),
    "us-east-1c": ((1.48, 0.49), (1.64, 0.54)),
    "us-east-1f": ((2.18, 0.54), (1.52, 0.49)),
    "us-east-2a": ((5.51, 0.87), (1.81, 0.38)),
    "us-west-2b": ((9.75, 1.25), (1.10, 0.38)),
}


def _greedy(runs: Runs) -> Lines:
    # Two restarts, as published: the second one covers an eviction during the first. Once on on-demand it stays there.
    return lines_of(runs, wait=net(runs, 2), back=np.inf, enter=net(runs, 2), leave=net(runs, 2))


def _uniform(runs: Runs) -> Lines:
    """Work done advances evenly with time: on the line, slack shrinks in proportion to the work left."""
    slope = (runs.deadline_h - runs.work_h) / runs.work_h
    return lines_of(
        runs, wait=0.0, wait_slope=slope, back=2 * runs.restart_h, back_slope=slope, enter=net(runs, 2),
        leave=net(runs, 2),
    )  # fmt: skip


ON_DEMAND_ONLY = Policy(
    name="on-demand only", lines=lambda runs: lines_of(runs, wait=np.inf, back=np.inf, enter=np.inf, leave=np.inf)
)
GREEDY = Policy(name="greedy", lines=_greedy)
UNIFORM = Policy(name="uniform progress", lines=_uniform)
COMPARED = (GREEDY, UNIFORM, policies.HYBRID, *policies.IN_TIME)


def recordings(folder: Path) -> list[Trace]:
    files = [f for f in sorted(folder.rglob("*v100_1.json")) if "1-node" in str(f) and "availability" in str(f)]
    assert files, f"no availability/1-node/**/*v100_1.json below {folder}"
    return [load(file) for file in files]


def made_up() -> list[Trace]:
    return [
        synthetic(name, up_h=up, down_h=down, hours=1092, seed=seed)
        for seed, (name, (up, down)) in enumerate(SPELLS.items())
    ]


Costs = dict[tuple[int, float, str], tuple[float, float]]
"""(trace, deadline, policy) -> mean cost and its standard deviation over starts, % of pure on-demand."""


def side_by_side(traces: list[Trace], starts: int) -> Costs:
    costs: Costs = {}
    print(f"\n% of on-demand, {starts} starts; columns: " + ", ".join(policy.name for policy in COMPARED))
    print(f"{'':26}" + " | ".join(f"{f'done by {d:g} h':^23}" for d in DEADLINES_H) + " | waiting for Spot")
    for row, trace in enumerate(traces):
        offset = np.random.default_rng(1).uniform(0, trace.hours, starts)
        for deadline in DEADLINES_H:
            for policy in COMPARED:
                costs[row, deadline, policy.name] = share(trace, policy, deadline, offset)
        cells = " | ".join(" ".join(f"{costs[row, d, p.name][0]:5.1f}" for p in COMPARED) for d in DEADLINES_H)
        print(f"{trace.name:18} {trace.up_share:4.0%} up {cells} | {waiting(trace, offset)}")
    means = " | ".join(" ".join(f"{mean_of(costs, d, p.name):5.1f}" for p in COMPARED) for d in DEADLINES_H)
    print(f"{'mean':26}{means}")
    return costs


def mean_of(costs: Costs, deadline_h: float, policy: str) -> float:
    return float(np.mean([mean for (_, d, name), (mean, _) in costs.items() if (d, name) == (deadline_h, policy)]))


def share(trace: Trace, policy: Policy, deadline_h: float, offset_h: Floats) -> tuple[float, float]:
    usd = simulate(job(offset_h, deadline_h), trace.paths(), policy).usd / WORK_H * 100
    return float(usd.mean()), float(usd.std())


def waiting(trace: Trace, offset_h: Floats) -> str:
    got = simulate(job(offset_h, np.inf), trace.paths(), policies.WAIT)
    half, most = np.percentile(got.finish_h, [50, 95])
    return f"wait {got.usd.mean() / WORK_H:.0%}, {half:.0f}/{most:.0f} h"


def job(offset_h: Floats, deadline_h: float) -> Runs:
    return runs_of(
        len(offset_h), work_h=WORK_H, restart_h=RESTART_H, deadline_h=deadline_h, spot_usd=1 / RATIO,
        on_demand_usd=1.0, path=np.zeros(len(offset_h), np.int64), offset_h=offset_h,
    )  # fmt: skip


def baseline(costs: Costs, traces: list[Trace]) -> bool:
    """The means of all recordings within 2 points; single cells within 2 and the error of their own 200 starts."""
    columns = [(d, p.name) for d in DEADLINES_H for p in (GREEDY, UNIFORM)]
    apart = [mean_of(costs, *column) - known for column, known in zip(columns, MEAN_OF_ELEVEN, strict=True)]
    print("means minus table: " + " ".join(f"{a:+.1f}" for a in apart))
    within = len(traces) == 11 and max(map(abs, apart)) <= 2.0
    for row, trace in enumerate(traces[:9]):
        known = TABLE.get(trace.name.split("_")[0])
        if known is not None:
            cells = [costs[row, *column] for column in columns]
            off = [mean - t for (mean, _), t in zip(cells, known[0], strict=True)]
            allowed = [2.0 + 2.0 * sd / math.sqrt(PUBLISHED_STARTS) for _, sd in cells]
            print(f"  {trace.name}: " + " ".join(f"{o:+.1f} of {a:.1f}" for o, a in zip(off, allowed, strict=True)))
            within &= all(abs(o) <= a for o, a in zip(off, allowed, strict=True))
    return within


def dominates(costs: Costs) -> bool:
    ours, theirs = policies.PATIENT.name, UNIFORM.name
    pairs = [(costs[r, d, ours][0], costs[r, d, theirs][0]) for r, d, name in costs if name == ours]
    worst = max(our - their for our, their in pairs)
    gain = sum(their - our for our, their in pairs) / len(pairs)
    print(f"patient against uniform progress: {gain:.1f} points cheaper on average, worst case {worst:+.2f} points")
    return worst <= NOISE_POINTS
