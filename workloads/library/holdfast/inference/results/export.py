"""Finished results out of PostgreSQL, in the order of their ids: JSON lines or Parquet."""

import contextlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from psycopg import Connection

from holdfast.contract.errors import InputError, unusable

_ROW_GROUP = 50_000

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
    """Write `out` whole or not at all; its ending decides the format. Returns the number of rows."""
    path = Path(out)
    if path.suffix not in (".jsonl", ".json", ".parquet"):
        raise InputError("the format is unknown", got=out, allowed=".jsonl or .parquet", fix="rename --out")
    partial = path.with_name(path.name + ".partial")
    write = _write_parquet if path.suffix == ".parquet" else _write_lines
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        count = write(rows(connection, job), partial)
        partial.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise unusable(error, path) from error
    return count


def _write_parquet(found: Iterator[tuple[str, Any]], path: Path) -> int:
    """Columns item and value (JSON text), so that any predictor's values fit one schema."""
    import pyarrow
    from pyarrow import parquet

    schema = pyarrow.schema([("item", pyarrow.string()), ("value", pyarrow.string())])
    count = 0
    with parquet.ParquetWriter(path, schema) as writer:
        while chunk := list(itertools.islice(found, _ROW_GROUP)):
            columns = {"item": [i for i, _ in chunk], "value": [json.dumps(v, sort_keys=True) for _, v in chunk]}
            writer.write_table(pyarrow.table(columns, schema=schema))
            count += len(chunk)
    return count


def _write_lines(found: Iterator[tuple[str, Any]], path: Path) -> int:
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for count, (item, value) in enumerate(found, start=1):  # noqa: B007  the last is the count
            file.write(json.dumps(_line(item, value), ensure_ascii=False) + "\n")
    return count


def _line(item: str, value: Any) -> dict[str, Any]:
    """The value's keys in addition to the id; one that is called `item` too gets underscores before it."""
    if not isinstance(value, dict):
        return {"item": item, "value": value}
    value = cast("dict[str, Any]", value)
    name = "item"
    while name in value:
        name = "_" + name
    return {"item": item, **{name if key == "item" else key: found for key, found in value.items()}}
