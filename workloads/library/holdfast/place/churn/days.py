"""Churn by day, as cloud metrics hold it. A day is counted from 00:00 UTC, in full hours. Why: infra/decisions/0071. Pure."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from itertools import pairwise
from typing import TYPE_CHECKING

from holdfast.contract.errors import InputError, Unjudged
from holdfast.place.churn.estimate import AGE_BANDS_H, Exposure, Group

if TYPE_CHECKING:
    from holdfast.place.churn.cloud_series import CloudReader, Point

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


def by_group(days: Iterable[Day]) -> dict[Group, Exposure]:
    sums: dict[Group, Exposure] = defaultdict(Exposure)
    for day in days:
        for (group, _), exposure in day.rows.items():
            sums[group] += exposure
    return dict(sorted(sums.items()))


def by_age(days: Iterable[Day]) -> list[tuple[float, float, Exposure]]:
    """As estimate.by_age."""
    sums: dict[float, Exposure] = defaultdict(Exposure)
    for day in days:
        for (_, low), exposure in day.rows.items():
            sums[low] += exposure
    return [(low, high, sums[low]) for low, high in pairwise(AGE_BANDS_H)]


DAY_S, HOUR_S = 86_400, 3_600
# Points of the newest minutes may not have arrived.
SETTLE_S = 300


def window(now_s: float, since_s: float) -> tuple[int, int]:
    """From a midnight, so that each day is counted from its beginning, to the newest full hour."""
    end = int(now_s - SETTLE_S) // HOUR_S * HOUR_S
    return int(end - since_s) // DAY_S * DAY_S, end


def read_days(reader: "CloudReader", now_s: float, since_s: float) -> tuple[list[Day], list[str]]:
    """With the clusters that were added up."""
    begin, end = window(now_s, since_s)
    seconds = reader.increases("spot_node_seconds_total", begin, end)
    losses = reader.increases("spot_node_losses_total", begin, end)
    # No time at risk is no quiet time: a rate of 0 would be the most wrong answer.
    if sum(point.value for point in seconds) <= 0:
        where = f"cluster {reader.cluster} of project" if reader.cluster else "project"
        raise Unjudged(
            f"no Spot node was watched in {where} {reader.project} from {in_words(begin, end)}: no rate is known"
        )
    return daily(seconds, losses, end), sorted({point.cluster for point in seconds})


def in_words(begin_s: int, end_s: int) -> str:
    return " to ".join(f"{datetime.fromtimestamp(t, UTC):%Y-%m-%d %H:%M}" for t in (begin_s, end_s)) + " UTC"


def daily(seconds: "Sequence[Point]", losses: "Sequence[Point]", end_s: int) -> list[Day]:
    """Days that were not watched are left out, not counted as quiet."""
    sums: dict[int, dict[tuple[Group, float], Exposure]] = defaultdict(lambda: defaultdict(Exposure))
    for point in seconds:
        sums[point.begin_s // DAY_S][_key(point)] += Exposure(hours=point.value / HOUR_S)
    for point in losses:
        # The exporter writes both counters, so a day with a loss has time at risk.
        sums[point.begin_s // DAY_S][_key(point)] += Exposure(events=point.value)
    return [
        Day(
            day=datetime.fromtimestamp(number * DAY_S, UTC).date(),
            hours=min(DAY_H, (end_s - number * DAY_S) // HOUR_S),
            rows=dict(rows),
        )
        for number, rows in sorted(sums.items())
    ]


def _key(point: "Point") -> tuple[Group, float]:
    labels = point.labels
    group = Group(pool=labels.get("pool", ""), machine_type=labels.get("machine_type", ""), zone=labels.get("zone", ""))
    try:
        low = float(labels.get("age_h", "0"))
    except ValueError:
        low = -1.0
    # Bands of two versions overlap, and their time at risk would be counted twice.
    if low not in AGE_BANDS_H:
        raise Unjudged(f"a churn series has an age band of another version: {labels}")
    return group, low


def span_seconds(text: str) -> int:
    match = re.fullmatch(r"([1-9]\d{0,5})([dhm])", text)
    if not match:
        allowed = "a number and d, h or m, as 7d, 12h or 30m"
        raise InputError("--since is no span of time", got=text, allowed=allowed, fix="write --since 7d")
    return int(match[1]) * {"d": 86_400, "h": 3_600, "m": 60}[match[2]]
