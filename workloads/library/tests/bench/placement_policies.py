"""The policies side by side on made-up recordings of one zone."""

import numpy as np

from holdfast.place import policies
from holdfast.place.policies import Lines, Policy, lines_of, net
from holdfast.place.runs import Floats, Runs, runs_of
from holdfast.place.simulate import simulate
from workloads.library.tests.bench.placement_traces import Trace, synthetic

WORK_H, RESTART_H, RATIO = 48.0, 0.2, 3.145
DEADLINES_H = (52.0, 70.0, 92.0)
NOISE_POINTS = 0.5

# Mean and median hours of spells with Spot and without, as published of five zones.
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


def made_up() -> list[Trace]:
    return [
        synthetic(name, up_h=up, down_h=down, hours=1092, seed=seed)
        for seed, (name, (up, down)) in enumerate(SPELLS.items())
    ]


Costs = dict[str, dict[str, dict[str, float]]]
"""Recording -> deadline -> policy -> mean cost, % of pure on-demand."""


def side_by_side(traces: list[Trace], starts: int) -> Costs:
    costs: Costs = {}
    for trace in traces:
        offset = np.random.default_rng(1).uniform(0, trace.hours, starts)
        costs[trace.name] = {
            f"{hours:g} h": {policy.name: share(trace, policy, hours, offset) for policy in COMPARED}
            for hours in DEADLINES_H
        }
    return costs


def share(trace: Trace, policy: Policy, deadline_h: float, offset_h: Floats) -> float:
    """The mean cost over starts, % of pure on-demand."""
    return float(simulate(job(offset_h, deadline_h), trace.paths(), policy).usd.mean()) / WORK_H * 100


def job(offset_h: Floats, deadline_h: float) -> Runs:
    return runs_of(
        len(offset_h), work_h=WORK_H, restart_h=RESTART_H, deadline_h=deadline_h, spot_usd=1 / RATIO,
        on_demand_usd=1.0, path=np.zeros(len(offset_h), np.int64), offset_h=offset_h,
    )  # fmt: skip


def dominates(costs: Costs) -> bool:
    each = [by_policy for by_deadline in costs.values() for by_policy in by_deadline.values()]
    pairs = [(by_policy[policies.PATIENT.name], by_policy[UNIFORM.name]) for by_policy in each]
    worst = max(our - their for our, their in pairs)
    gain = sum(their - our for our, their in pairs) / len(pairs)
    print(f"patient against uniform progress: {gain:.1f} points cheaper on average, worst case {worst:+.2f} points")
    return worst <= NOISE_POINTS
