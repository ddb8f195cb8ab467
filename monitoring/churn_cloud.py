"""Churn by day, from the exporter's two counters in Cloud Monitoring. Called by churn_cli.py.

Clusters of one project are added up: churn is a property of pool, machine type and zone.
"""

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime

from infra.contract.errors import Unjudged
from monitoring.churn import AGE_BANDS_H, Exposure, Group
from monitoring.churn_days import DAY_H, Day
from monitoring.cloud_read import CloudReader, Point

DAY_S, HOUR_S = 86_400, 3_600
# Points of the newest minutes may still be under way.
SETTLE_S = 300


def window(now_s: float, since_s: float) -> tuple[int, int]:
    """From a midnight, so that each day is counted from its beginning, to the newest full hour."""
    end = int(now_s - SETTLE_S) // HOUR_S * HOUR_S
    return int(end - since_s) // DAY_S * DAY_S, end


def read_days(reader: CloudReader, now_s: float, since_s: float) -> list[Day]:
    seconds, losses, _, end = read_counters(reader, now_s, since_s)
    return days(seconds, losses, end)


def read_counters(reader: CloudReader, now_s: float, since_s: float) -> tuple[list[Point], list[Point], int, int]:
    """Time at risk and losses by hour, and the window that was read."""
    begin, end = window(now_s, since_s)
    seconds = reader.increases("spot_node_seconds_total", begin, end)
    losses = reader.increases("spot_node_losses_total", begin, end)
    if sum(point.value for point in seconds) <= 0:
        when = " to ".join(f"{datetime.fromtimestamp(t, UTC):%Y-%m-%d %H:%M}" for t in (begin, end))
        raise Unjudged(f"no Spot node was watched in project {reader.project} from {when} UTC: no rate can be told")
    return seconds, losses, begin, end


def days(seconds: Sequence[Point], losses: Sequence[Point], end_s: int) -> list[Day]:
    """Days on which nobody watched are left out, not told as quiet."""
    sums: dict[int, dict[tuple[Group, float], Exposure]] = defaultdict(lambda: defaultdict(Exposure))
    for point in seconds:
        sums[point.begin_s // DAY_S][_key(point)] += Exposure(hours=point.value / HOUR_S)
    for point in losses:
        # Whoever watches writes both counters, so a loss stands in a day that has time at risk.
        sums[point.begin_s // DAY_S][_key(point)] += Exposure(events=point.value)
    return [
        Day(
            day=datetime.fromtimestamp(number * DAY_S, UTC).date(),
            hours=min(DAY_H, (end_s - number * DAY_S) // HOUR_S),
            rows=dict(rows),
        )
        for number, rows in sorted(sums.items())
    ]


def _key(point: Point) -> tuple[Group, float]:
    said = point.labels
    group = Group(pool=said.get("pool", ""), machine_type=said.get("machine_type", ""), zone=said.get("zone", ""))
    try:
        low = float(said.get("age_h", "0"))
    except ValueError:
        low = -1.0
    if low not in AGE_BANDS_H:
        raise Unjudged(f"a churn series has an age band of another version: {said}")
    return group, low
