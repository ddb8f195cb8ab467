"""Finished results out of PostgreSQL: JSON lines, one item each, in the order of their ids."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from psycopg import Connection

_ROWS = """
SELECT r.item, r.value FROM holdfast.result r JOIN holdfast.job j USING (job, fingerprint)
WHERE r.job = %s AND r.status = 'done' ORDER BY r.item COLLATE "C"
"""


def rows(connection: Connection, job: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """From a server-side cursor: any number of rows in bounded memory."""
    with connection.transaction(), connection.cursor(name="export") as cursor:
        cursor.itersize = 5000
        yield from cursor.execute(_ROWS, (job,))


def export_lines(connection: Connection, job: str, path: Path) -> int:
    """Write `path` whole or not at all; returns the number of rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    count = 0
    with partial.open("w", encoding="utf-8") as file:
        for count, (item, value) in enumerate(rows(connection, job), start=1):  # noqa: B007  the last is the count
            file.write(json.dumps({"item": item, **value}, ensure_ascii=False) + "\n")
    partial.replace(path)
    return count
