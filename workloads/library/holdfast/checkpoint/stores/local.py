"""Checkpoints on a local or mounted file system, with the same create-only objects as a bucket.

An object appears under its name by link(2), which is atomic and refuses a taken name, after its
bytes and before its directory entry are flushed: a kill or a power cut leaves it whole or absent.
No checksum of its bytes is kept with it: manifests have one.

Decision: infra/decisions/0023.
"""

import errno
import fcntl
import mmap
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from io import FileIO
from pathlib import Path
from stat import S_ISREG
from typing import Self

from holdfast.checkpoint.errors import (
    AlreadyExists,
    Denied,
    Full,
    NotFound,
    StorageError,
    Transient,
)
from holdfast.checkpoint.stores.storage import Stat, check_name, fill, random_hex
from holdfast.support.errors import InputError

# Folder of objects that are being written; not listed. Files of a killed writer are deleted after
# an hour.
INCOMING = ".incoming"
INCOMING_MAX_AGE_S = 3_600.0
DIRECT_MIN_BYTES = 1 << 20

_KINDS: dict[int, type[StorageError]] = {
    errno.EEXIST: AlreadyExists,
    # A folder, a link to itself or a file in place of a folder: no object has that name, and a
    # retry does not help.
    errno.ENOENT: NotFound,
    errno.EISDIR: NotFound,
    errno.ELOOP: NotFound,
    errno.ENOTDIR: NotFound,
    errno.EACCES: Denied,
    errno.EPERM: Denied,
    errno.EROFS: Denied,
    errno.ENOSPC: Full,
    errno.EDQUOT: Full,
    errno.EFBIG: Full,
}
# File systems without hard links, such as FUSE mounts of buckets, answer one of these.
NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def _translate(error: OSError, name: str) -> StorageError:
    kind = _KINDS.get(error.errno or 0, Transient)
    return kind(f"{name}: {error.strerror}")


class LocalStorage:
    """The objects below a folder."""

    read_bytes = 4 << 20

    def __init__(self, root: Path) -> None:
        self._root = root

    @classmethod
    def open(cls, path: str) -> Self:
        """Open a folder, and create it if needed. Raises InputError if it cannot be used."""
        root = Path(path).expanduser().absolute()
        try:
            (root / INCOMING).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                "checkpoint folder cannot be used",
                got=f"{root} ({error.strerror})",
                allowed="a folder that this user may create and write",
                fix="create it with the right owner, or choose another URL",
            ) from error
        storage = cls(root)
        storage._drop_stale_incoming()
        return storage

    def put(
        self,
        name: str,
        data: memoryview,
        crc32c: str,
    ) -> None:
        # Written under another name first: a reader must see all of an object or nothing.
        target = self._root / check_name(name)
        incoming = self._root / INCOMING / random_hex(8)
        try:
            _write_new(incoming, data)
            self._publish(incoming, target)
        except OSError as error:
            raise _translate(error, name) from error
        finally:
            with suppress(OSError):
                incoming.unlink(missing_ok=True)

    def _publish(self, incoming: Path, target: Path) -> None:
        while True:
            try:
                created = _make_parents(target.parent, self._root)
                _link(incoming, target)
                break
            except FileNotFoundError:
                # Another process' delete removed the still empty folder between our two calls.
                if not incoming.exists():
                    raise
        for folder in (target.parent, *created):
            _flush_folder(folder)

    def read_into(
        self,
        name: str,
        start: int,
        into: memoryview,
    ) -> None:
        try:
            with _open_file(self._root / check_name(name)) as file:
                end = start + len(into)

                def read(rest: memoryview) -> int:
                    position = end - len(rest)
                    return os.preadv(file.fileno(), [rest], position)

                fill(into, name, read)
        except OSError as error:
            raise _translate(error, name) from error

    def list(self, prefix: str) -> Iterator[Stat]:
        top = self._root / check_name(prefix) if prefix else self._root
        for folder, folders, files in os.walk(top, onerror=self._check_listed):
            folders[:] = [name for name in folders if name != INCOMING]
            for file in files:
                path = Path(folder) / file
                name = str(path.relative_to(self._root))
                # Deleted meanwhile, or not an object of a checkpoint.
                with suppress(NotFound, InputError):
                    yield self.stat(name)

    def _check_listed(self, error: OSError) -> None:
        """Raise for a folder that cannot be listed, unless it is gone or holds no objects."""
        # Not skipped, as os.walk does: fewer checkpoints would be seen, and a run begin at step 0.
        name = str(Path(error.filename).relative_to(self._root))
        with suppress(NotFound, InputError):
            raise _translate(error, check_name(name) if name != "." else name) from error

    def stat(self, name: str) -> Stat:
        path = self._root / check_name(name)
        try:
            status = path.stat()
        except OSError as error:
            raise _translate(error, name) from error
        if not S_ISREG(status.st_mode):
            raise NotFound(f"{name} is not a regular file")
        return Stat(name=name, bytes=status.st_size, modified=status.st_mtime)

    def delete(self, name: str) -> None:
        path = self._root / check_name(name)
        try:
            path.unlink(missing_ok=True)
        except NotADirectoryError:
            return
        except OSError as error:
            raise _translate(error, name) from error
        for parent in path.parents:
            if parent == self._root:
                return
            try:
                parent.rmdir()
            except OSError:  # not empty: the usual case
                return

    def move(
        self,
        source: str,
        target: str,
        *,
        replace: bool = False,
    ) -> None:
        source_path = self._root / check_name(source)
        target_path = self._root / check_name(target)
        try:
            if replace:
                source_path.replace(target_path)
                _flush_folder(target_path.parent)
            else:
                # Linked and not renamed: rename(2) replaces what exists.
                self._publish(source_path, target_path)
        except OSError as error:
            raise _translate(error, source) from error
        # Deletes the old name, if it is left, and its empty folder.
        self.delete(source)

    def _drop_stale_incoming(self) -> None:
        limit = time.time() - INCOMING_MAX_AGE_S
        for path in (self._root / INCOMING).iterdir():
            with suppress(OSError):
                if path.stat().st_mtime < limit:
                    path.unlink()


def _open_file(path: Path) -> FileIO:
    # Non-blocking: opening a FIFO would wait until another process writes to it, maybe forever.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
    file = FileIO(os.open(path, flags), closefd=True)
    if S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise FileNotFoundError(errno.ENOENT, "not a regular file")


def _write_new(path: Path, data: memoryview) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o644)
    try:
        done = _write_direct(descriptor, data)
        while done < len(data):
            done += os.write(descriptor, data[done:])
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _link(incoming: Path, target: Path) -> None:
    try:
        os.link(incoming, target)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        _write_new(target, memoryview(incoming.read_bytes()))


def _write_direct(descriptor: int, data: memoryview) -> int:
    """Write `data` past the page cache and return the number of bytes written.

    This takes a tenth of the CPU time, which training needs. Memory and length must be aligned, and
    some file systems do not support it: the caller writes the rest.
    """
    aligned = len(data) // mmap.PAGESIZE * mmap.PAGESIZE
    if aligned < DIRECT_MIN_BYTES or not hasattr(os, "O_DIRECT"):
        return 0
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    done = 0
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT)
        while done < aligned:
            done += os.write(descriptor, data[done:aligned])
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
    return done


def _make_parents(folder: Path, root: Path) -> list[Path]:
    """Create `folder`, and return the folders with new entries, which must be flushed as well."""
    missing: list[Path] = []
    while folder != root and not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):
        # Not mkdir(exist_ok=True), which checks the existing folder: a delete may have removed it.
        with suppress(FileExistsError):
            path.mkdir()
    return [path.parent for path in missing]


def _flush_folder(folder: Path) -> None:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:  # emptied and removed by a concurrent delete: nothing left to flush
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
