"""The sources of items: a folder, or files of rows, both read lazily in bounded memory.

Files are read in parallel, a window at a time. Rows are parsed one by one, as registering them
takes longer than parsing.
"""

import io
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase

from holdfast.inference import files as files_of_source
from holdfast.inference.files import BUCKET_SCHEME, SourceFile
from holdfast.inference.items import MAX_BODY_BYTES, Item, make_item, require_size
from holdfast.support.errors import InputError
from holdfast.support.values import finite

_PARALLEL = 16
# Rows of a table that are in memory at once: each may be as large as an item.
_TABLE_ROWS = 32


def open_items(
    job: str,
    source: str,
    *,
    id_column: str,
    body_column: str,
) -> Iterator[Item]:
    """Opens `source` and returns an iterator over its items: a folder of files, a file of rows, or
    the files of rows that a pattern such as `folder/*.parquet` matches.

    Raises InputError for a source that cannot be read, at once, before the first item.
    """
    folder, _, pattern = source.rpartition("/")
    if "*" in pattern and pattern.endswith(ENDINGS):
        matches = _match(folder or ".", pattern)
        first = next(matches, None)
        if first is not None:
            files = itertools.chain([first], matches)
            return row_items(job, files, id_column, body_column)
    elif source.endswith(ENDINGS):
        file = files_of_source.find_file(source)
        if file is not None:
            return row_items(job, [file], id_column, body_column)
    is_path_or_bucket = "://" not in source or source.startswith(BUCKET_SCHEME)
    if is_path_or_bucket and files_of_source.is_folder(source):
        return folder_items(job, source)
    raise InputError(
        "the source cannot be read",
        got=source,
        allowed=(
            f"a folder, a file ending in {', '.join(ENDINGS)}, or a pattern for such files, on a"
            " disk or below gs://BUCKET"
        ),
        fix="check --source",
    )


def _match(folder: str, pattern: str) -> Iterator[SourceFile]:
    """Yields the files directly in a folder whose names match."""
    if "://" in folder and not folder.startswith(BUCKET_SCHEME):
        return
    if not files_of_source.is_folder(folder):
        return
    for file in files_of_source.walk(folder, deep=False):
        if fnmatchcase(file.name, pattern):
            yield file


def folder_items(job: str, source: str) -> Iterator[Item]:
    """Makes an item of every file below a folder, sorted; its id is its path below it."""

    def load(file: SourceFile) -> Item:
        # Check the size before the file is read.
        require_size(file.name, file.measure(), source=file)
        return make_item(job, file.name, file.read(), source=file)

    files = files_of_source.walk(source)
    with ThreadPoolExecutor(_PARALLEL) as threads:
        # A window at a time: map() over all files would list and read all of them at once.
        while window := list(itertools.islice(files, 4 * _PARALLEL)):
            yield from threads.map(load, window)


def row_items(
    job: str,
    files: Iterable[SourceFile],
    id_column: str,
    body_column: str,
) -> Iterator[Item]:
    """Makes an item of every row. Without `body_column` the body is the row as JSON."""
    for file in files:
        yield from _file_items(job, file, id_column, body_column)


def _file_items(
    job: str,
    file: SourceFile,
    id_column: str,
    body_column: str,
) -> Iterator[Item]:
    required = f"a column {id_column} with the id"
    if body_column:
        required += f" and {body_column}"
    for number, row in enumerate(rows(file), start=1):
        place = f"{file} row {number}"
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


def rows(file: SourceFile) -> Iterator[Row]:
    """Yields the rows of a file. Raises InputError at the row that cannot be read."""
    try:
        if file.name.endswith(".parquet"):
            yield from _parquet_rows(file)
        else:
            yield from _json_rows(file)
    except InputError:  # of a bucket
        raise
    except (
        ValueError,
        OSError,
        RecursionError,
        NotImplementedError,
        OverflowError,  # a time that Python cannot hold
        KeyError,  # a time zone that this machine does not know
    ) as error:
        raise InputError(
            "the file of rows cannot be read",
            got=f"{file}: {str(error)[:200]}",
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


def _json_rows(file: SourceFile) -> Iterator[Row]:
    with io.TextIOWrapper(file.open(), encoding="utf-8") as text:
        for number in itertools.count(1):
            line = text.readline(MAX_ROW_CHARS + 1)
            if not line:
                return
            if len(line) > MAX_ROW_CHARS:
                raise ValueError(f"a row is longer than {MAX_ROW_CHARS} characters")
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                # Its own text would say line 1: of this line.
                raise ValueError(f"line {number}: {error.msg}, at column {error.colno}") from None
            if not isinstance(row, dict):
                raise ValueError(f"line {number} is no JSON object")
            yield row


def _parquet_rows(file: SourceFile) -> Iterator[Row]:
    from pyarrow import parquet

    with file.open() as content, parquet.ParquetFile(content) as table:
        for batch in table.iter_batches(batch_size=_TABLE_ROWS):
            yield from batch.to_pylist()
