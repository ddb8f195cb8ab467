"""Churn by day, as cloud metrics hold it. A day is counted from 00:00 UTC, in full hours. Why: infra/decisions/0071. Pure."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from itertools import pairwise

from holdfast.place.churn.estimate import AGE_BANDS_H, Exposure, Group

DAY_H = 24
Rows = Mapping[tuple[Group, float], Exposure]
"""(group, lower end of the age band in hours) -> what was at risk and what was lost."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Day:
    day: date
    hours: int
    """Full hours that were read, from midnight."""
    rows: Rows

    @property
    def begin_s(self) -> int:
        return round(datetime(self.day.year, self.day.month, self.day.day, tzinfo=UTC).timestamp())


def by_group(days: Iterable[Day], now_s: float, half_life_h: float = math.inf) -> dict[Group, Exposure]:
    sums: dict[Group, Exposure] = defaultdict(Exposure)
    for day in days:
        old_h = max(0.0, now_s - day.begin_s) / 3600 - day.hours / 2
        weight = 0.5 ** (max(0.0, old_h) / half_life_h)
        for (group, _), exposure in day.rows.items():
            sums[group] += Exposure(events=exposure.events * weight, hours=exposure.hours * weight)
    return dict(sorted(sums.items()))


def by_age(days: Iterable[Day]) -> list[tuple[float, float, Exposure]]:
    """As estimate.by_age."""
    sums: dict[float, Exposure] = defaultdict(Exposure)
    for day in days:
        for (_, low), exposure in day.rows.items():
            sums[low] += exposure
    return [(low, high, sums[low]) for low, high in pairwise(AGE_BANDS_H)]
