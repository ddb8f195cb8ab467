"""Where items come from: a folder, a file of rows, a folder of a bucket. Lazily, so that millions need no memory.

Files and objects are read in parallel, a window at a time. Rows are parsed one after the other, by a thread that
is a few chunks ahead of the database (enqueue): registering costs more than parsing.
"""

import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from holdfast.contract.errors import InputError
from holdfast.inference.items import Item, checked_item, require_name, require_size
from holdfast.inference.rows import ENDINGS, content_of, id_of, rows

GCS = "gs://"
_PARALLEL = 16
_T = TypeVar("_T")


def items_of(job: str, source: str, *, pattern: str, id_column: str, body_column: str) -> Iterator[Item]:
    """The items of whatever `source` names; opened at once, so a wrong source fails before the first item."""
    if source.startswith(GCS):
        return bucket_items(job, source)
    path = Path(source)
    if path.is_dir():
        return folder_items(job, path, pattern)
    if path.is_file() and path.suffix in ENDINGS:
        return row_items(job, path, id_column, body_column)
    raise InputError(
        "the source cannot be read",
        got=source,
        allowed=f"a folder, a file ending in {', '.join(ENDINGS)}, or gs://BUCKET/FOLDER",
        fix="check --source",
    )


def folder_items(job: str, root: Path, pattern: str = "*") -> Iterator[Item]:
    """Every file below `root` whose name matches, in the order of paths; its id is its path below `root`."""

    def read(path: Path) -> Item:
        require_size(path.name, path.stat().st_size, source=path)  # before it is read
        return checked_item(job, path.relative_to(root).as_posix(), path.read_bytes(), source=path)

    # A link could lead out of the folder: what it names was not given to us.
    return _in_parallel(read, (p for p in _walk(root, pattern) if p.is_file() and not p.is_symlink()))


def _walk(folder: Path, pattern: str) -> Iterator[Path]:
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path), pattern)
        elif Path(entry.name).match(pattern):
            yield Path(entry.path)


def row_items(job: str, path: Path, id_column: str, body_column: str) -> Iterator[Item]:
    """One item a row. Without `body_column` the body is the whole row as JSON."""
    for number, row in enumerate(rows(path), start=1):
        where = f"{path} row {number}"
        if id_column not in row or (body_column and body_column not in row):
            raise InputError(
                "a row has no such column",
                got=f"{where}: columns {', '.join(map(str, row))[:200]}",
                allowed=f"a column {id_column} with the id" + (f" and {body_column}" if body_column else ""),
                fix="give --id-column and --body-column",
            )
        yield checked_item(job, id_of(row, id_column, where), content_of(row, body_column, where), source=where)


def bucket_items(job: str, url: str) -> Iterator[Item]:
    """Every object below gs://BUCKET/FOLDER, in the order of names; its id is its name below it."""
    from google.api_core import exceptions
    from google.cloud import storage

    name, _, folder = url.removeprefix(GCS).partition("/")
    # With its slash: docs must not take in docs-of-somebody-else.
    prefix = folder.rstrip("/") + "/" if folder else ""
    bucket = storage.Client().bucket(name)

    def read(blob: storage.Blob) -> Item:
        object_name = str(blob.name)
        require_name(object_name.removeprefix(prefix), source=url)
        _require_no_dot_segments(object_name)
        require_size(object_name, blob.size or 0, source=url)
        return checked_item(job, object_name.removeprefix(prefix), blob.download_as_bytes(), source=url)

    blobs: Iterable[storage.Blob] = (b for b in bucket.list_blobs(prefix=prefix) if not str(b.name).endswith("/"))
    try:
        yield from _in_parallel(read, blobs)
    except (exceptions.NotFound, exceptions.Forbidden) as error:
        raise InputError(
            "the bucket cannot be read",
            got=f"{url}: {error.message[:200]}",
            allowed="a bucket that this identity can list and read (roles/storage.objectViewer)",
            fix="check --source and the identity",
        ) from None


def _require_no_dot_segments(name: str) -> None:
    """The client puts the name into a URL and its HTTP library resolves "..": another object would be read."""
    if {".", ".."} & set(name.split("/")):
        raise InputError(
            "an object's name has dot segments",
            got=name[:80],
            allowed="no segment that is '.' or '..'",
            fix="rename it",
        )


def _in_parallel(read: Callable[[_T], Item], names: Iterable[_T]) -> Iterator[Item]:
    """A window at a time: map() over everything would list and read it all at once."""
    names = iter(names)
    with ThreadPoolExecutor(_PARALLEL) as threads:
        while window := list(itertools.islice(names, 4 * _PARALLEL)):
            yield from threads.map(read, window)
