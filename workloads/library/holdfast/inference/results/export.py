"""The export of finished results as JSON lines, in the order of their ids."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from psycopg import Connection

_ROWS = """
SELECT r.item, r.value FROM holdfast.result r JOIN holdfast.job j USING (job, fingerprint)
WHERE r.job = %s AND r.status = 'done' ORDER BY r.item COLLATE "C"
"""


def rows(connection: Connection, job: str) -> Iterator[tuple[str, Any]]:
    """Iterates over results with a server-side cursor, in bounded memory."""
    with connection.transaction(), connection.cursor(name="export") as cursor:
        cursor.itersize = 100  # a value may have a megabyte
        yield from cursor.execute(_ROWS, (job,))


def export_lines(connection: Connection, job: str, path: Path) -> int:
    """Writes `path` and returns the number of rows."""
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for item, value in rows(connection, job):
            line = json.dumps(
                _make_line(item, value),
                ensure_ascii=False,
            )
            file.write(line + "\n")
            count += 1
    return count


def _make_line(item: str, value: dict[str, Any]) -> dict[str, Any]:
    """Returns the id and the keys of the value; its key `item` is renamed with underscores."""
    renamed = "item"
    while renamed in value:
        renamed = "_" + renamed
    line: dict[str, Any] = {"item": item}
    for key, content in value.items():
        line[renamed if key == "item" else key] = content
    return line
