"""Where items come from: a folder, or a file of rows. Lazily, so that millions need no memory.

Files are read in parallel, a window at a time. Rows are parsed one after the other: registering
costs more than parsing.
"""

import itertools
import json
import math
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from holdfast.inference.items import MAX_BODY_BYTES, Item, checked_item, require_size
from holdfast.support.errors import InputError
from holdfast.support.values import finite

_PARALLEL = 16


def items_of(job: str, source: str, *, id_column: str, body_column: str) -> Iterator[Item]:
    """The items of the folder or file `source`; opened at once, so a wrong source fails before the
    first item.
    """
    path = Path(source)
    if path.is_dir():
        return folder_items(job, path)
    if path.is_file() and path.suffix in ENDINGS:
        return row_items(job, path, id_column, body_column)
    raise InputError(
        "the source cannot be read",
        got=source,
        allowed=f"a folder, or a file ending in {', '.join(ENDINGS)}",
        fix="check --source; mount a bucket, or copy from it",
    )


def folder_items(job: str, root: Path) -> Iterator[Item]:
    """Every file below `root`, in the order of paths; its id is its path below `root`."""

    def read(path: Path) -> Item:
        require_size(path.name, path.stat().st_size, source=path)  # before it is read
        return checked_item(job, path.relative_to(root).as_posix(), path.read_bytes(), source=path)

    # A link could lead out of the folder: what it names was not given to us.
    paths = (path for path in _walk(root) if path.is_file() and not path.is_symlink())
    with ThreadPoolExecutor(_PARALLEL) as threads:
        # A window at a time: map() over everything would list and read it all at once.
        while window := list(itertools.islice(paths, 4 * _PARALLEL)):
            yield from threads.map(read, window)


def _walk(folder: Path) -> Iterator[Path]:
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path))
        else:
            yield Path(entry.path)


def row_items(job: str, path: Path, id_column: str, body_column: str) -> Iterator[Item]:
    """One item a row. Without `body_column` the body is the whole row as JSON."""
    for number, row in enumerate(rows(path), start=1):
        where = f"{path} row {number}"
        if id_column not in row or (body_column and body_column not in row):
            raise InputError(
                "a row has no such column",
                got=f"{where}: columns {', '.join(map(str, row))[:200]}",
                allowed=f"a column {id_column} with the id"
                + (f" and {body_column}" if body_column else ""),
                fix="give --id-column and --body-column",
            )
        yield checked_item(
            job, id_of(row, id_column, where), content_of(row, body_column, where), source=where
        )


ENDINGS = (".jsonl", ".parquet")
# JSON may need six characters for a byte of a body.
MAX_ROW_CHARS = 8 * MAX_BODY_BYTES

Row = Mapping[str, object]


def rows(path: Path) -> Iterator[Row]:
    """InputError for a file that cannot be read to its end, when the row is reached."""
    try:
        yield from _parquet_rows(path) if path.suffix == ".parquet" else _json_rows(path)
    except (ValueError, OSError, RecursionError, NotImplementedError) as error:
        raise InputError(
            "the file of rows cannot be read",
            got=f"{path}: {str(error)[:200]}",
            allowed="the format of its file ending, in UTF-8",
            fix="repair the file",
        ) from None


def id_of(row: Row, column: str, where: str) -> str:
    value = row[column]
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if isinstance(value, str) or number:
        return str(value)
    raise InputError(
        "an item has no id",
        got=f"{where}: {type(value).__name__} in column {column}",
        allowed="text or a number",
        fix="give another --id-column, or remove the row",
    )


def content_of(row: Row, column: str, where: str) -> bytes:
    """Of one column, or where none is named the whole row as JSON, in which NaN is null."""
    why = f"nothing in column {column}"
    try:
        if column:
            value = row[column]
        else:
            value = json.dumps(finite(dict(row)), sort_keys=True, default=str)
    except (RecursionError, ValueError, TypeError) as error:
        value = None
        why = type(error).__name__
    if value is None:
        raise InputError(
            "a row has no content",
            got=f"{where}: {why}",
            allowed="text, bytes or a number; the whole row must be plain JSON",
            fix="give another --body-column, or remove the row",
        )
    if isinstance(value, bytes):
        return value
    return str(value).encode("utf-8", "surrogatepass")


def _json_rows(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_ROW_CHARS + 1), ""), start=1):
            if len(line) > MAX_ROW_CHARS:
                raise ValueError(f"a row is longer than {MAX_ROW_CHARS} characters")
            if not line.strip():
                continue
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError(f"line {number} is no JSON object")
            yield row


def _parquet_rows(path: Path) -> Iterator[Row]:
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=1000):
            yield from batch.to_pylist()
