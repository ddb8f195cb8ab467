"""Rows of a file: CSV, JSON lines, Parquet. Strangers' files: bounded in length and depth, and InputError for the rest."""

import csv
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TextIO

from holdfast.contract.errors import InputError
from holdfast.contract.values import finite
from holdfast.inference.items import MAX_BODY_BYTES

ENDINGS = (".csv", ".jsonl", ".ndjson", ".parquet")
# JSON may need six characters for a byte of a body.
MAX_ROW_CHARS = 8 * MAX_BODY_BYTES

Row = Mapping[str, object]


def rows(path: Path) -> Iterator[Row]:
    """InputError for a file that cannot be read to its end, when the row is reached."""
    readers = {".csv": _csv_rows, ".parquet": _parquet_rows}
    try:
        yield from readers.get(path.suffix, _json_rows)(path)
    except (ValueError, csv.Error, OSError, RecursionError, NotImplementedError) as error:
        if isinstance(error, InputError):
            raise
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
    try:
        value = row[column] if column else json.dumps(finite(dict(row)), sort_keys=True, default=str)
    except (RecursionError, ValueError, TypeError) as error:
        raise _no_content(f"{where}: {type(error).__name__}") from None
    if value is None:
        raise _no_content(f"{where}: nothing in column {column}")
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")


def _no_content(got: str) -> InputError:
    return InputError(
        "a row has no content",
        got=got,
        allowed="text, bytes or a number; the whole row must be plain JSON",
        fix="give another --body-column, or remove the row",
    )


class _Lines:
    """Lines of a file, of which those of one row may have MAX_ROW_CHARS together."""

    def __init__(self, file: TextIO) -> None:
        self._file, self._seen = file, 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._file.readline(MAX_ROW_CHARS + 1 - self._seen)
        self._seen += len(line)
        if self._seen > MAX_ROW_CHARS:
            raise ValueError(f"a row is longer than {MAX_ROW_CHARS} characters")
        if not line:
            raise StopIteration
        return line

    def row_ends(self) -> None:
        self._seen = 0


def _csv_rows(path: Path) -> Iterator[Row]:
    csv.field_size_limit(MAX_BODY_BYTES)
    with path.open(newline="", encoding="utf-8") as file:
        lines = _Lines(file)
        for row in csv.DictReader(lines):
            lines.row_ends()
            yield {str(name): value for name, value in row.items()}


def _json_rows(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8") as file:
        lines = _Lines(file)
        for number, line in enumerate(lines, start=1):
            lines.row_ends()
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
