"""Churn by day, from the exporter's two counters in Cloud Monitoring."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime

from holdfast.contract.errors import Unjudged
from holdfast.place.churn.cloud_series import CloudReader, Point
from holdfast.place.churn.days import DAY_H, Day
from holdfast.place.churn.estimate import AGE_BANDS_H, Exposure, Group

DAY_S, HOUR_S = 86_400, 3_600
# Points of the newest minutes may not have arrived.
SETTLE_S = 300


def window(now_s: float, since_s: float) -> tuple[int, int]:
    """From a midnight, so that each day is counted from its beginning, to the newest full hour."""
    end = int(now_s - SETTLE_S) // HOUR_S * HOUR_S
    return int(end - since_s) // DAY_S * DAY_S, end


def read_days(reader: CloudReader, now_s: float, since_s: float) -> tuple[list[Day], list[str]]:
    """With the clusters that were added up."""
    begin, end = window(now_s, since_s)
    seconds = reader.increases("spot_node_seconds_total", begin, end)
    losses = reader.increases("spot_node_losses_total", begin, end)
    if sum(point.value for point in seconds) <= 0:
        where = f"cluster {reader.cluster} of project" if reader.cluster else "project"
        raise Unjudged(
            f"no Spot node was watched in {where} {reader.project} from {in_words(begin, end)}: no rate is known"
        )
    return daily(seconds, losses, end), sorted({point.cluster for point in seconds})


def in_words(begin_s: int, end_s: int) -> str:
    return " to ".join(f"{datetime.fromtimestamp(t, UTC):%Y-%m-%d %H:%M}" for t in (begin_s, end_s)) + " UTC"


def daily(seconds: Sequence[Point], losses: Sequence[Point], end_s: int) -> list[Day]:
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


def _key(point: Point) -> tuple[Group, float]:
    labels = point.labels
    group = Group(pool=labels.get("pool", ""), machine_type=labels.get("machine_type", ""), zone=labels.get("zone", ""))
    try:
        low = float(labels.get("age_h", "0"))
    except ValueError:
        low = -1.0
    if low not in AGE_BANDS_H:
        raise Unjudged(f"a churn series has an age band of another version: {labels}")
    return group, low
