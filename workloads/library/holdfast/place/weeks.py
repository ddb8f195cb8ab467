"""How late a job may be that only waits for Spot: what single weeks of single recorded zones did to such a job.

One week of a zone foretells so little of its next that a share of late runs would claim what the record does not
know. So the least and the most of all weeks are told.
"""

# Why it is so: infra/decisions/0055.
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from holdfast.contract.capacity import Capacity, Placement
from holdfast.place import advice, option_names, outages, policies
from holdfast.place.belief import Option, World
from holdfast.place.job import Job
from holdfast.place.policies import Policy
from holdfast.place.runs import Bools, Floats, Ints, Outcome, Paths
from holdfast.place.simulate import side_by_side
from holdfast.place.traces import Recorded, Trace

STARTS = 24
"""In each week, at even distances; shares are in steps of 4 points."""
MOST_TILES = 12
"""Whoever is not done after so many of the same week is late, however far the deadline."""


def counts(job: Job, world: World) -> bool:
    """Whether there is something to be late for, and a record of weeks."""
    return bool(world.weeks) and math.isfinite(job.deadline_h)


def ranged(job: Job, world: World, region: str, rows: list[Option]) -> list[Option]:
    """The same rows with what the single weeks did: to the lateness of those that only wait for Spot, to the cost of
    those that watch the deadline."""
    if not counts(job, world):
        return rows
    used = {option_names.in_time(row) for row in rows}
    asked = (policies.WAIT, *(policy for policy in policies.IN_TIME if policy in used))
    waits, *others = outcomes(job, world, region, asked)
    usd = {policy: by_week(each.usd) for policy, each in zip(asked[1:], others, strict=True)}
    # Also for a job that moves between zones: regions with several are four, and their own range did not hold.
    lateness = late(job, waits)
    return [
        replace(row, late_weeks=lateness if row.placement is Placement.SPOT else None, usd_weeks=_of(row, usd))
        if not row.refused
        else row
        for row in rows
    ]


def _of(row: Option, usd: dict[Policy, Floats]) -> Floats | None:
    policy = option_names.in_time(row)
    return None if policy is None else usd.get(policy)


def late(job: Job, outcome: Outcome) -> Floats:
    """The share late in each of the weeks."""
    return by_week(outcome.finish_h > job.deadline_h + advice.LATE_EPS_H)


def outcomes(job: Job, world: World, region: str, asked: Sequence[Policy]) -> list[Outcome]:
    """Of every start in each of the weeks, until the deadline."""
    paths = _paths(job, world.weeks)
    runs = advice.runs_for(job, world, len(paths.edges_h), spot=Capacity.SPOT, region=region)
    return side_by_side(replace(runs, path=np.arange(len(runs)), offset_h=np.zeros(len(runs))), paths, asked)


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
    return min(1 + math.ceil(job.deadline_h / min(week.hours for week in weeks)), MOST_TILES)


def by_week(values: Bools | Floats) -> Floats:
    """Means over the starts of each week."""
    return values.reshape(-1, STARTS).mean(axis=1)


def basis(world: World) -> str:
    """What the range is of."""
    zones = {week.name for week in world.weeks}
    return f"the {len(world.weeks)} single weeks of {len(zones)} H100 zones recorded in {outages.clock()[0]:%Y-%m}"
