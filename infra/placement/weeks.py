"""How late a job may be that only waits for Spot: what single weeks of single recorded zones did to such a job.

One week of a zone foretells so little of its next that a share of late runs would claim what the record does not
know. So the least and the most of all weeks are told.
"""

# Why it is so: infra/decisions/0055.
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from infra.contract.capacity import Capacity, Placement
from infra.placement import advice, option_names, outages, policies
from infra.placement.belief import Option, World
from infra.placement.job import Job
from infra.placement.policies import Policy
from infra.placement.runs import Bools, Floats, Ints, Outcome, Paths
from infra.placement.simulate import simulate
from infra.placement.traces import Recorded, Trace

STARTS = 24
"""In each week, at even distances; shares are in steps of 4 points."""


def counts(job: Job, world: World) -> bool:
    """Whether there is something to be late for, and a record of weeks."""
    return bool(world.weeks) and math.isfinite(job.deadline_h)


def ranged(job: Job, world: World, region: str, rows: list[Option]) -> list[Option]:
    """The same rows; those that only wait for Spot with what the single weeks did."""
    if not counts(job, world):
        return rows
    # Also for a job that moves between zones: regions with several are four, and their own range did not hold.
    found = late(job, world, region)
    return [replace(o, late_weeks=found) if o.placement is Placement.SPOT and not o.refused else o for o in rows]


def late(job: Job, world: World, region: str) -> Floats:
    """The share late in each of the weeks."""
    finish_h = _outcome(job, world, region, policies.WAIT).finish_h
    return by_week(finish_h > job.deadline_h + advice.LATE_EPS_H)


def usd(job: Job, world: World, chosen: Option) -> Floats | None:
    """What a row that watches the deadline costs in each of the weeks; None for others, which may outlast it."""
    policy = option_names.in_time(chosen)
    if policy not in policies.IN_TIME or not counts(job, world):
        return None
    return by_week(_outcome(job, world, chosen.region, policy).usd)


def _outcome(job: Job, world: World, region: str, policy: Policy) -> Outcome:
    paths = _paths(job, world.weeks)
    runs = advice.runs_for(job, world, len(paths.edges_h), spot=Capacity.SPOT, region=region)
    each_its_own = replace(runs, path=np.arange(len(runs)), offset_h=np.zeros(len(runs)))
    return simulate(each_its_own, paths, policy)


def _paths(job: Job, weeks: Sequence[Trace]) -> Paths:
    """From every start to the deadline: whoever is not done by then is late, and following him on costs most of the time."""
    whole = Recorded.of(list(weeks), tiles(job, weeks)).paths
    path, offset_h = starts(weeks)
    edges_h = whole.edges_h[path] - offset_h[:, None]
    past, end = (edges_h <= 0.0).sum(axis=1), (edges_h <= job.deadline_h).sum(axis=1)
    column = past[:, None] + np.arange((end - past).max() + 1)
    found = np.take_along_axis(edges_h, np.minimum(column, edges_h.shape[1] - 1), axis=1)
    found[column >= end[:, None]] = np.inf
    return Paths(edges_h=found, starts_up=whole.starts_up[path] ^ (past % 2 == 1))


def starts(weeks: Sequence[Trace]) -> tuple[Ints, Floats]:
    """Of every run the week and the hour of it."""
    path = np.repeat(np.arange(len(weeks)), STARTS)
    hours = np.array([week.hours for week in weeks])
    return path, np.tile((np.arange(STARTS) + 0.5) / STARTS, len(weeks)) * hours[path]


def tiles(job: Job, weeks: Sequence[Trace]) -> int:
    """How many times over each week is laid, so that no start comes to its end before the deadline."""
    return 1 + math.ceil(job.deadline_h / min(week.hours for week in weeks))


def by_week(values: Bools | Floats) -> Floats:
    """Means over the starts of each week."""
    return values.reshape(-1, STARTS).mean(axis=1)


def basis(world: World) -> str:
    """What the range is of."""
    zones = {week.name for week in world.weeks}
    return f"the {len(world.weeks)} single weeks of {len(zones)} H100 zones recorded in {outages.clock()[0]:%Y-%m}"
