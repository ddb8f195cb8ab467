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
from holdfast.checkpoint.stores.storage import Stat, checked_name, fill, random_hex
from holdfast.support.errors import InputError

# Objects being written; not listed. What a killed writer left there goes after an hour.
INCOMING = ".incoming"
INCOMING_MAX_AGE_S = 3_600.0
DIRECT_MIN_BYTES = 1 << 20

_KINDS: dict[int, type[StorageError]] = {
    errno.EEXIST: AlreadyExists,
    # A folder, a link to itself or a file in the place of a folder: no object of that name, and a
    # retry does not help.
    **dict.fromkeys((errno.ENOENT, errno.EISDIR, errno.ELOOP, errno.ENOTDIR), NotFound),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), Denied),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), Full),
}
# File systems without hard links, such as FUSE mounts of buckets, answer one of these.
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def refused(error: OSError, name: str) -> StorageError:
    kind = _KINDS.get(error.errno or 0, Transient)
    return kind(f"{name}: {error.strerror}")


class LocalStorage:
    read_bytes = 4 << 20

    def __init__(self, root: Path) -> None:
        self._root = root

    @classmethod
    def open(cls, path: str) -> Self:
        """Raises InputError where the folder cannot be made or written."""
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

    def put(self, name: str, data: memoryview, crc32c: str) -> None:
        # Written under another name first: a reader must see all of an object or nothing.
        target = self._root / checked_name(name)
        incoming = self._root / INCOMING / random_hex(8)
        try:
            _write_new(incoming, data)
            self._publish(incoming, target)
        except OSError as error:
            raise refused(error, name) from error
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

    def read_into(self, name: str, start: int, into: memoryview) -> None:
        try:
            with _opened(self._root / checked_name(name)) as file:
                fill(
                    into,
                    name,
                    lambda rest: os.preadv(file.fileno(), [rest], start + len(into) - len(rest)),
                )
        except OSError as error:
            raise refused(error, name) from error

    def list(self, prefix: str) -> Iterator[Stat]:
        top = self._root / checked_name(prefix) if prefix else self._root
        for folder, folders, files in os.walk(top):
            folders[:] = [f for f in folders if f != INCOMING]
            for file in files:
                name = str((Path(folder) / file).relative_to(self._root))
                # deleted meanwhile, or no object of a checkpoint
                with suppress(NotFound, InputError):
                    yield self.stat(name)

    def stat(self, name: str) -> Stat:
        path = self._root / checked_name(name)
        try:
            found = path.stat()
        except OSError as error:
            raise refused(error, name) from error
        if not S_ISREG(found.st_mode):
            raise NotFound(f"{name} is no regular file")
        return Stat(
            name=name,
            bytes=found.st_size,
            modified=found.st_mtime,
        )

    def delete(self, name: str) -> None:
        path = self._root / checked_name(name)
        try:
            path.unlink(missing_ok=True)
        except NotADirectoryError:
            return
        except OSError as error:
            raise refused(error, name) from error
        for parent in path.parents:
            if parent == self._root:
                return
            try:
                parent.rmdir()
            except OSError:  # not empty: the usual case
                return

    def _drop_stale_incoming(self) -> None:
        limit = time.time() - INCOMING_MAX_AGE_S
        for path in (self._root / INCOMING).iterdir():
            with suppress(OSError):
                if path.stat().st_mtime < limit:
                    path.unlink()


def _opened(path: Path) -> FileIO:
    # Without waiting: to open a FIFO for reading lasts until another process writes to it, maybe
    # for ever.
    file = FileIO(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), closefd=True)
    if S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise FileNotFoundError(errno.ENOENT, "no regular file")


def _write_new(path: Path, data: memoryview) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        done = _write_past_the_cache(descriptor, data)
        while done < len(data):
            done += os.write(descriptor, data[done:])
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _link(incoming: Path, target: Path) -> None:
    try:
        os.link(incoming, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _write_new(target, memoryview(incoming.read_bytes()))


def _write_past_the_cache(descriptor: int, data: memoryview) -> int:
    """What of `data` went straight to the disk, which costs a tenth of the CPU time that training
    wants.

    Memory and length must be aligned, and not every file system can: the caller writes the rest.
    """
    whole = len(data) // mmap.PAGESIZE * mmap.PAGESIZE
    if whole < DIRECT_MIN_BYTES or not hasattr(os, "O_DIRECT"):
        return 0
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    done = 0
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT)
        while done < whole:
            done += os.write(descriptor, data[done:whole])
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
    return done


def _make_parents(folder: Path, root: Path) -> list[Path]:
    """Create `folder`; the folders whose entries changed, to be flushed as well."""
    missing: list[Path] = []
    while folder != root and not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):
        # mkdir(exist_ok=True) looks again whether it is there, and a delete may have removed it by
        # then.
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
