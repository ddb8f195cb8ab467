"""Files of a source or of an export, on disks and in buckets."""

import io
import itertools
import mmap
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from holdfast.checkpoint import Tuning
from holdfast.checkpoint.errors import AlreadyExists, NotFound, StorageError
from holdfast.checkpoint.stores import Retrying, Storage, crc32c, open_foreign_bucket
from holdfast.support.errors import InputError

BUCKET_SCHEME = "gs://"
_READ_BYTES = 4 << 20
"""Bytes that a file of a bucket is read ahead: each read is a request."""


class SourceFile(Protocol):
    """A file of a source."""

    @property
    def name(self) -> str:
        """The path below the source."""
        ...

    def measure(self) -> int:
        """Returns the size in bytes."""
        ...

    def read(self) -> bytes: ...

    def open(self) -> BinaryIO: ...


@dataclass(frozen=True, slots=True)
class DiskFile:
    path: Path
    name: str

    def measure(self) -> int:
        return self.path.stat().st_size

    def read(self) -> bytes:
        return self.path.read_bytes()

    def open(self) -> BinaryIO:
        return self.path.open("rb")

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True, slots=True)
class BucketFile:
    storage: Storage
    url: str
    name: str
    size: int

    def measure(self) -> int:
        return self.size

    def read(self) -> bytes:
        content = bytearray(self.size)
        with _explain(str(self)):
            self.storage.read_into(self.name, 0, memoryview(content))
        return bytes(content)

    def open(self) -> BinaryIO:
        return cast(BinaryIO, io.BufferedReader(_BucketReader(self), _READ_BYTES))

    def __str__(self) -> str:
        return f"{self.url}/{self.name}"


class _BucketReader(io.RawIOBase):
    """Reads a file of a bucket from any position."""

    def __init__(self, file: BucketFile) -> None:
        super().__init__()
        self._file = file
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        starts = {
            os.SEEK_SET: 0,
            os.SEEK_CUR: self._position,
            os.SEEK_END: self._file.size,
        }
        self._position = starts[whence] + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        rest = max(0, self._file.size - self._position)
        length = min(len(view), rest)
        if length:
            target = view[:length]
            with _explain(str(self._file)):
                self._file.storage.read_into(self._file.name, self._position, target)
        self._position += length
        return length


def find_file(source: str) -> SourceFile | None:
    """Returns the file that `source` names; None if there is none, or it is a folder."""
    if not source.startswith(BUCKET_SCHEME):
        path = Path(source)
        return DiskFile(path, path.name) if path.is_file() else None
    url, _, name = source.rpartition("/")
    with _explain(source):
        storage = _open(url)
        try:
            return BucketFile(storage, url, name, storage.stat(name).bytes)
        except NotFound:
            return None


def walk(source: str, *, deep: bool = True) -> Iterator[SourceFile]:
    """Yields the files below a folder, sorted by name; unless `deep`, those directly in it. A link
    is skipped, as it could lead out of the folder.
    """
    if not source.startswith(BUCKET_SCHEME):
        root = Path(source)
        for path in _walk_disk(root, deep=deep):
            yield DiskFile(path, path.relative_to(root).as_posix())
        return
    url = source.rstrip("/")
    with _explain(url):
        storage = _open(url)
        # A page at a time, and sorted by the store.
        for stat in open_foreign_bucket(url).list(""):
            is_folder_mark = stat.name.endswith("/")  # made by a console
            if not is_folder_mark and (deep or "/" not in stat.name):
                yield BucketFile(storage, url, stat.name, stat.bytes)


def is_folder(source: str) -> bool:
    """Tells whether files may be below `source`. Raises InputError for a bucket that cannot be
    listed.
    """
    if not source.startswith(BUCKET_SCHEME):
        return Path(source).is_dir()
    with _explain(source):
        first = itertools.islice(open_foreign_bucket(source.rstrip("/")).list(""), 1)
        return bool([*first])


def _open(url: str) -> Storage:
    return Retrying(open_foreign_bucket(url), budget_s=Tuning().retry_s)


def _walk_disk(folder: Path, *, deep: bool) -> Iterator[Path]:
    with os.scandir(folder) as scan:
        entries = sorted(scan, key=lambda entry: entry.name)
    for entry in entries:
        if deep and entry.is_dir(follow_symlinks=False):
            yield from _walk_disk(Path(entry.path), deep=True)
        elif entry.is_file(follow_symlinks=False):
            yield Path(entry.path)


@contextmanager
def _explain(place: str) -> Generator[None]:
    """Turns errors of a bucket into bad input that names it."""
    try:
        yield
    except (StorageError, EOFError) as error:
        raise InputError(
            "the bucket cannot be read",
            got=f"{place}: {str(error)[:200]}",
            allowed="an object that exists, for an identity with roles/storage.objectViewer",
            fix="check the URL and the rights, and run the command again: it is safe to repeat",
        ) from error


def upload(path: Path, url: str) -> None:
    """Stores a file under a gs:// URL of a file. Raises InputError if there is one already."""
    folder, _, name = url.rpartition("/")
    try:
        storage = Retrying(open_foreign_bucket(folder), budget_s=Tuning().retry_s)
        with path.open("rb") as file:
            # Mapped, so that it uses the page cache and no memory of its own; copy-on-write, since
            # the checksum takes only writable memory.
            size = path.stat().st_size
            content = (
                mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) if size else bytearray()
            )
            view = memoryview(content)
            storage.put(name, view, crc32c(view))
            view.release()
    except AlreadyExists as error:
        raise InputError(
            "the export would replace an object",
            got=url,
            allowed="a name that is free",
            fix="choose another name, or delete it first",
        ) from error
    except StorageError as error:
        raise InputError(
            "the export cannot be stored",
            got=f"{url}: {str(error)[:200]}",
            allowed="gs://BUCKET/FOLDER/FILE, for an identity with roles/storage.objectUser",
            fix="check the bucket and the rights",
        ) from error
