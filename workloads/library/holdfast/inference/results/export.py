"""Finished results out of PostgreSQL, in the order of their ids, as JSON lines."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from psycopg import Connection

from holdfast.support.errors import unusable

_ROWS = """
SELECT r.item, r.value FROM holdfast.result r JOIN holdfast.job j USING (job, fingerprint)
WHERE r.job = %s AND r.status = 'done' ORDER BY r.item COLLATE "C"
"""


def rows(connection: Connection, job: str) -> Iterator[tuple[str, Any]]:
    """From a server-side cursor: any number of rows in bounded memory."""
    with connection.transaction(), connection.cursor(name="export") as cursor:
        cursor.itersize = 5000
        yield from cursor.execute(_ROWS, (job,))


def export(connection: Connection, job: str, out: str) -> int:
    """Write `out` whole or not at all. Returns the number of rows."""
    path = Path(out)
    partial = path.with_name(path.name + ".partial")
    count = 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("w", encoding="utf-8") as file:
            for count, (item, value) in enumerate(rows(connection, job), start=1):  # noqa: B007  the last is the count
                file.write(json.dumps(_line(item, value), ensure_ascii=False) + "\n")
        partial.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise unusable(error, path) from error
    return count


def _line(item: str, value: dict[str, Any]) -> dict[str, Any]:
    """The value's keys in addition to the id; one that is called `item` too gets underscores before
    it.
    """
    name = "item"
    while name in value:
        name = "_" + name
    return {"item": item, **{name if key == "item" else key: found for key, found in value.items()}}
