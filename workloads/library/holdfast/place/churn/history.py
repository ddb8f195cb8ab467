"""Keeps churn beyond what the cloud keeps: one small JSON object a day, in a folder or a bucket.

Guarantee: a day is replaced only by a fuller count of itself, and only if nobody else has
written it since it was read; the same day written twice changes nothing.
"""

# Why it is so: infra/decisions/0073.

import json
import re
from collections.abc import Iterable
from datetime import date
from typing import Any, Protocol

from holdfast.contract.errors import InputError, Unjudged
from holdfast.place.churn.days import DAY_H, Day, merged
from holdfast.place.churn.estimate import AGE_BANDS_H, Exposure, Group

VERSION = 1
TRIES = 5
_NAME = re.compile(r"churn-(\d{4}-\d{2}-\d{2})\.json")


class Store(Protocol):
    def names(self) -> Iterable[str]: ...

    def read(self, name: str) -> tuple[bytes, str]:
        """Content, and what `write` needs to replace exactly this; both empty if there is none."""
        ...

    def write(self, name: str, data: bytes, replaces: str) -> bool:
        """False, and nothing written, if the object is no longer the one of `replaces`."""
        ...


def remember(store: Store, days: Iterable[Day]) -> None:
    for day in days:
        _remember(store, day)


def recall(store: Store) -> list[Day]:
    names = sorted(name for name in store.names() if _NAME.fullmatch(name))
    return [decoded(name, data) for name in names if (data := store.read(name)[0])]


def _remember(store: Store, day: Day) -> None:
    name = f"churn-{day.day.isoformat()}.json"
    for _ in range(TRIES):
        held, replaces = store.read(name)
        data = encoded(merged(decoded(name, held), day) if held else day)
        if data == held or store.write(name, data, replaces):
            return
    raise Unjudged(f"history {name}: others write it all the time; run again")


def encoded(day: Day) -> bytes:
    """Rounded, so that the same day read twice gives the same bytes."""
    rows = [
        {"pool": g.pool, "machine_type": g.machine_type, "zone": g.zone, "age_h": low}
        | {"node_hours": round(float(e.hours), 6), "losses": round(float(e.events), 6)}
        for (g, low), e in sorted(day.rows.items(), key=lambda row: row[0])
    ]
    record = {"v": VERSION, "day": day.day.isoformat(), "hours": day.hours, "rows": rows}
    return (json.dumps(record, indent=1) + "\n").encode()


def decoded(name: str, data: bytes) -> Day:
    try:
        record = json.loads(data)
        day, hours = date.fromisoformat(record["day"]), int(record["hours"])
        rows = dict(_row(row) for row in record["rows"])
        if record["v"] != VERSION or name != f"churn-{day}.json" or not 0 < hours <= DAY_H:
            raise ValueError(f"version {record['v']}, day {day}, {hours} hours")
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        allowed = f"an object that this command wrote, version {VERSION}"
        raise InputError(f"history {name} is damaged", got=repr(error), allowed=allowed, fix="delete it") from error
    return Day(day=day, hours=hours, rows=rows)


def _row(row: Any) -> tuple[tuple[Group, float], Exposure]:
    group = Group(pool=str(row["pool"]), machine_type=str(row["machine_type"]), zone=str(row["zone"]))
    low, hours, events = (float(row[key]) for key in ("age_h", "node_hours", "losses"))
    if low not in AGE_BANDS_H or hours < 0 or events < 0:
        raise ValueError(f"a row of age {low} with {hours} node-hours and {events} losses")
    return (group, low), Exposure(events=events, hours=hours)
