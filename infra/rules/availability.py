"""How long GKE may maintain a cluster: its windows, less its freezes, in the worst 32 days."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from holdfast.contract.values import moment
from infra.environments.schema import Cluster

SPAN = timedelta(days=32)
MIN_HOURS = 48.0
# Shorter pieces do not count.
MIN_PIECE = timedelta(hours=4)
WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")


def least_hours(cluster: Cluster) -> float:
    """Over every span of 32 days that begins with a day from 32 days before the first freeze to the end of the last."""
    freezes = [(_time(f.start), _time(f.end)) for f in cluster.freezes]
    begin = min([start for start, _ in freezes] or [_time(cluster.maintenance_start)]) - SPAN
    end = max([stop for _, stop in freezes] or [begin + SPAN])
    pieces = [piece for window in _windows(cluster, begin, end + SPAN) for piece in _less(window, freezes)]
    days = range((end - begin).days + 1)
    return min(_hours(pieces, begin + timedelta(days=day)) for day in days)


def _windows(cluster: Cluster, begin: datetime, end: datetime) -> Iterator[tuple[datetime, datetime]]:
    first, length = _time(cluster.maintenance_start), _time(cluster.maintenance_end) - _time(cluster.maintenance_start)
    days = (
        cluster.maintenance_days.partition("BYDAY=")[2].split(",") if "BYDAY" in cluster.maintenance_days else WEEKDAYS
    )
    at = begin.replace(hour=first.hour, minute=first.minute, second=first.second)
    while at < end:
        if WEEKDAYS[at.weekday()] in days:
            yield at, at + length
        at += timedelta(days=1)


def _less(
    window: tuple[datetime, datetime], freezes: list[tuple[datetime, datetime]]
) -> Iterator[tuple[datetime, datetime]]:
    """What freezes leave of a window, in pieces that are long enough."""
    pieces = [window]
    for start, stop in freezes:
        pieces = [p for a, b in pieces for p in ((a, min(b, start)), (max(a, stop), b)) if p[0] < p[1]]
    return (p for p in pieces if p[1] - p[0] >= MIN_PIECE)


def _hours(pieces: list[tuple[datetime, datetime]], begin: datetime) -> float:
    inside = [(max(a, begin), min(b, begin + SPAN)) for a, b in pieces]
    return sum(((b - a).total_seconds() for a, b in inside if b - a >= MIN_PIECE), 0.0) / 3600


def _time(text: str) -> datetime:
    at = moment(text)
    assert at, text
    return at
