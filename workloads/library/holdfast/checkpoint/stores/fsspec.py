"""Checkpoints on any file system that fsspec has a driver for: `sftp://host/dir`, `hdfs://...`, `oss://...`.

None of these drivers promises to create a name only where it is free, so this store looks before it writes, and
only the fence keeps two trainers apart. An object is whole or absent: where the driver's own write is not,
it is written under another name and renamed.
"""

import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

import fsspec

from holdfast.checkpoint.errors import AlreadyExists, NotFound, StorageError, Transient
from holdfast.checkpoint.stores.local import refused
from holdfast.checkpoint.stores.storage import Stat, Translated, check_absent, checked_name, random_hex
from holdfast.contract.errors import InputError

# File systems that show a file while it is being written. What is not listed is an object store.
RENAMING = frozenset(
    [
        "local",
        "file",
        "sftp",
        "ssh",
        "ftp",
        "smb",
        "hdfs",
        "webhdfs",
        "arrow_hdfs",
        "dbfs",
        "databricks",
        "hadoop",
        "lakefs",
        "nfs",
        "dask",
        "root",
    ]
)
INCOMING = ".incoming"
# Names that drivers have for the time of the last change.
_MODIFIED = ("mtime", "LastModified", "last_modified", "updated", "modifiedTime", "created")


class FileSystemStorage:
    create_only = False
    read_bytes = 64 << 20

    def __init__(self, files: Any, root: str) -> None:
        self._files, self._root = files, root.rstrip("/")
        protocols = {files.protocol} if isinstance(files.protocol, str) else {*files.protocol}
        self._renames = bool(protocols & RENAMING)
        self._being_put: set[str] = set()
        self._guard = threading.Lock()

    @classmethod
    def open(cls, url: str) -> Self:
        """Raises InputError where the file system cannot be listed."""
        try:
            # Without the listing cache: it would hide what other processes write.
            files, root = fsspec.core.url_to_fs(url, use_listings_cache=False, skip_instance_cache=True)
            storage = cls(files, root)
            with _translated(url):
                if storage._renames:
                    files.makedirs(f"{storage._root}/{INCOMING}", exist_ok=True)
                next(storage.list(""), None)
            return storage
        # A driver reads its options when it is made, and refuses them as it likes.
        except (ImportError, ValueError, TypeError, OSError, StorageError) as error:
            raise _unusable(url, f"{type(error).__name__}: {error}") from error

    def put(self, name: str, data: memoryview, crc32c: str) -> None:
        path = self._path(name)
        with _translated(name), self._alone(name):
            check_absent(self, name)
            if self._renames:
                self._write_aside(path, data)
            else:
                self._files.pipe_file(path, bytes(data))  # copied: drivers take nothing but bytes

    def _write_aside(self, path: str, data: memoryview) -> None:
        incoming = f"{self._root}/{INCOMING}/{random_hex(8)}"
        try:
            self._files.pipe_file(incoming, bytes(data))
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._files.mv(incoming, path)
        finally:
            if self._files.exists(incoming):
                self._files.rm_file(incoming)

    @contextmanager
    def _alone(self, name: str) -> Generator[None]:
        """Of the threads of this process only one writes a name."""
        # To look and to write are two requests: two threads could both find the name free.
        with self._guard:
            if name in self._being_put:
                raise AlreadyExists(f"{name} is being written")
            self._being_put.add(name)
        try:
            yield
        finally:
            with self._guard:
                self._being_put.discard(name)

    def read_into(self, name: str, start: int, into: memoryview) -> None:
        with _translated(name):
            found = self._files.cat_file(self._path(name), start=start, end=start + len(into))
        if len(found) < len(into):
            raise EOFError(f"{name} ends {len(into) - len(found)} bytes early")
        into[:] = found

    def list(self, prefix: str) -> Iterator[Stat]:
        top = self._path(prefix) if prefix else self._root
        with _translated(prefix):
            found: dict[str, Any] = self._files.find(top, detail=True)
        for path, info in found.items():
            name = path.removeprefix(self._root).lstrip("/")
            if not name.startswith(INCOMING):
                yield self._stat_of(name, info)

    def stat(self, name: str) -> Stat:
        with _translated(name):
            info = self._files.info(self._path(name))
        if info.get("type") == "directory":
            raise NotFound(f"{name} is a folder")
        return self._stat_of(name, info)

    def delete(self, name: str) -> None:
        with _translated(name):
            path = self._path(name)
            # Asked first: of what is not there drivers raise what they like.
            if self._files.exists(path):
                self._files.rm_file(path)

    def _path(self, name: str) -> str:
        return f"{self._root}/{checked_name(name)}"

    def _stat_of(self, name: str, info: dict[str, Any]) -> Stat:
        return Stat(name=name, bytes=int(info.get("size") or 0), modified=_modified(info))


def _modified(info: dict[str, Any]) -> float:
    """Now where the driver gives no time: what has no age is never old enough to be deleted as left behind."""
    found: Any = next((info[field] for field in _MODIFIED if info.get(field)), None)
    if isinstance(found, int | float):
        return float(found)
    return found.timestamp() if hasattr(found, "timestamp") else time.time()


def _ours(error: BaseException, name: str) -> Exception | None:
    """A driver raises what it likes: by errno where there is one, else as something that may pass."""
    if isinstance(error, StorageError | InputError | EOFError) or not isinstance(error, Exception):
        return None
    if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError):
        return NotFound(f"{name}: {error}")
    if isinstance(error, OSError) and error.errno:
        return refused(error, name)
    return Transient(f"{name}: {type(error).__name__}: {error}")


_translated = partial(Translated, _ours)


def _unusable(url: str, got: str) -> InputError:
    return InputError(
        f"checkpoint file system {url} cannot be used",
        got=got[:300],
        allowed="a URL that fsspec can open here, with permission to list and write",
        fix="install the driver that fsspec names, and check the URL and the credentials",
    )
