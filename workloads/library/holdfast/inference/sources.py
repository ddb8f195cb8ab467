"""The sources of items: a folder, or a file of rows, both read lazily in bounded memory.

Files are read in parallel, a window at a time. Rows are parsed one by one, as registering them
takes longer than parsing.
"""

import itertools
import json
import math
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from holdfast.inference.items import MAX_BODY_BYTES, Item, make_item, require_size
from holdfast.support.errors import InputError
from holdfast.support.values import finite

_PARALLEL = 16


def open_items(
    job: str,
    source: str,
    *,
    id_column: str,
    body_column: str,
) -> Iterator[Item]:
    """Opens the folder or file `source` and returns an iterator over its items.

    Raises InputError for a source that cannot be read, at once, before the first item.
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
    """Makes an item of every file below `root`, sorted; its id is its path below `root`."""

    def load(path: Path) -> Item:
        require_size(
            path.name,
            path.stat().st_size,
            source=path,
        )  # before it is read
        name = path.relative_to(root).as_posix()
        return make_item(
            job,
            name,
            path.read_bytes(),
            source=path,
        )

    files = _walk_files(root)
    with ThreadPoolExecutor(_PARALLEL) as threads:
        # A window at a time: map() over all files would list and read all of them at once.
        while window := list(itertools.islice(files, 4 * _PARALLEL)):
            yield from threads.map(load, window)


def _walk_files(folder: Path) -> Iterator[Path]:
    """Yields regular files. A link is skipped, as it could lead out of the folder."""
    with os.scandir(folder) as scan:
        entries = sorted(
            scan,
            key=lambda entry: entry.name,
        )
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _walk_files(Path(entry.path))
        elif entry.is_file(follow_symlinks=False):
            yield Path(entry.path)


def row_items(
    job: str,
    path: Path,
    id_column: str,
    body_column: str,
) -> Iterator[Item]:
    """Makes an item of every row. Without `body_column` the body is the row as JSON."""
    required = f"a column {id_column} with the id"
    if body_column:
        required += f" and {body_column}"
    for number, row in enumerate(rows(path), start=1):
        place = f"{path} row {number}"
        if id_column not in row or (body_column and body_column not in row):
            columns = ", ".join(map(str, row))
            raise InputError(
                "a row has no such column",
                got=f"{place}: columns {columns[:200]}",
                allowed=required,
                fix="give --id-column and --body-column",
            )
        name = _extract_id(row, id_column, place)
        body = _extract_body(row, body_column, place)
        yield make_item(job, name, body, source=place)


ENDINGS = (".jsonl", ".parquet")
# JSON may use six characters for a byte of a body.
MAX_ROW_CHARS = 8 * MAX_BODY_BYTES

Row = Mapping[str, object]


def rows(path: Path) -> Iterator[Row]:
    """Yields the rows of a file. Raises InputError at the row that cannot be read."""
    try:
        if path.suffix == ".parquet":
            yield from _parquet_rows(path)
        else:
            yield from _json_rows(path)
    except (ValueError, OSError, RecursionError, NotImplementedError) as error:
        raise InputError(
            "the file of rows cannot be read",
            got=f"{path}: {str(error)[:200]}",
            allowed="the format of its file ending, in UTF-8",
            fix="repair the file",
        ) from None


def _extract_id(row: Row, column: str, place: str) -> str:
    value = row[column]
    is_finite = isinstance(value, float) and math.isfinite(value)
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if isinstance(value, str) or is_finite or is_integer:
        return str(value)
    raise InputError(
        "an item has no id",
        got=f"{place}: {type(value).__name__} in column {column}",
        allowed="text or a number",
        fix="give another --id-column, or remove the row",
    )


def _extract_body(row: Row, column: str, place: str) -> bytes:
    """Returns the content of a column, or without one the row as JSON, in which NaN is null."""
    reason = f"nothing in column {column}"
    value: object = None
    try:
        if column:
            value = row[column]
        else:
            value = json.dumps(
                finite(dict(row)),
                sort_keys=True,
                default=str,
            )
    except (RecursionError, ValueError, TypeError) as error:
        reason = type(error).__name__
    if value is None:
        raise InputError(
            "a row has no content",
            got=f"{place}: {reason}",
            allowed="text, bytes or a number; the whole row must be plain JSON",
            fix="give another --body-column, or remove the row",
        )
    if isinstance(value, bytes):
        return value
    return str(value).encode("utf-8", "surrogatepass")


def _json_rows(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8") as file:
        for number in itertools.count(1):
            line = file.readline(MAX_ROW_CHARS + 1)
            if not line:
                return
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
