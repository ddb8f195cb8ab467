"""Waits that the ledger of this cluster has seen, added to what was believed before: the more were seen, the less it counts."""

import json
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.contract.capacity import Capacity
from holdfast.place.hazard import unreadable
from holdfast.place.outages import QUANTILES, Outages
from holdfast.place.runs import Floats

PRIOR_STARTS = 10.0
"""What is believed without a measurement counts as so many starts."""
# A gang of 8 is asked for as one of 16 is; as a single node it is not.
LIKE = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Waited:
    capacity: str
    gang: int
    """0: not known."""
    zone: str
    again: bool
    hours: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Of one accelerator."""

    rows: tuple[Waited, ...] = ()

    def spot(self, believed: Outages, gang: int, region: str) -> Outages:
        """With the starts of gangs like this one in zones of the region, or in zones that no line names."""
        like = [
            row
            for row in self.rows
            if row.capacity == Capacity.SPOT.value and row.gang and 1 / LIKE <= row.gang / gang <= LIKE
            if not row.zone or row.zone.startswith(f"{region}-")
        ]
        return _learned(believed, _hours(like, again=False), _hours(like, again=True))

    def flex(self, believed: Outages) -> Outages:
        """A queue serves first and later requests alike."""
        found = tuple(h for row in self.rows if row.capacity == Capacity.FLEX_START.value for h in row.hours)
        return _learned(believed, found, found)


def read(path: Path, accelerator: str) -> Waits:
    """Of `holdfast churn --events DIR --json`; nothing where the file has no waits, as of older ones."""
    try:
        body: dict[str, Any] = json.loads(path.read_text())
        rows = tuple(_row(row) for row in body.get("waits", ()) if row["accelerator"] == accelerator)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise unreadable(path, error) from error
    return Waits(rows=rows)


def _row(row: dict[str, Any]) -> Waited:
    hours = tuple(float(each) for each in row["hours"])
    if not all(0.0 <= each < 1e6 for each in hours):
        raise ValueError("hours of a wait are 0 or more")
    return Waited(
        capacity=str(row["capacity"]),
        gang=int(row["gang"]),
        zone=str(row["zone"]),
        again=bool(row["again"]),
        hours=hours,
    )


def _hours(rows: list[Waited], *, again: bool) -> tuple[float, ...]:
    return tuple(hour for row in rows if row.again is again for hour in row.hours)


# The same object for the same question: paths that were drawn are found again by it.
@lru_cache(maxsize=64)
def _learned(believed: Outages, first: tuple[float, ...], later: tuple[float, ...]) -> Outages:
    seen = len(first) if first is later or first == later else len(first) + len(later)
    if not seen:
        return believed
    return replace(
        believed,
        first_h=_mixed(believed.first_h, first),
        later_h=_mixed(believed.later_h, later),
        source=f"{seen} starts measured here, and as {PRIOR_STARTS:g} more: {believed.source}",
    )


def _mixed(table: Floats, hours: tuple[float, ...]) -> Floats:
    """Quantiles of both together, for each zone."""
    if not hours:
        return table
    weights = np.concatenate([np.full(table.shape[1], PRIOR_STARTS / table.shape[1]), np.ones(len(hours))])
    return np.stack([_quantiles(np.concatenate([row, hours]), weights) for row in table])


def _quantiles(values: Floats, weights: Floats) -> Floats:
    order = np.argsort(values, kind="stable")
    up_to = np.cumsum(weights[order])
    middle = (up_to - weights[order] / 2) / up_to[-1]
    return np.interp(QUANTILES, middle, values[order])
