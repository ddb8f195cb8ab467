"""Room for copies of shards: in memory, or in files of a folder on a local disk.

A file takes no memory for long: what was written is brought to the disk and dropped from the page
cache every few MiB, so that a pod is not held up at its limit. The files have no name, and end with
the launcher, as its memory does.
"""

import mmap
import os
import tempfile
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from holdfast.checkpoint.stores.storage import Crc32c, crc32c, fill
from holdfast.support.errors import InputError

MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")
MEMORY_USED = Path("/sys/fs/cgroup/memory.current")
MEMORY_STAT = Path("/sys/fs/cgroup/memory.stat")
MEMINFO = Path("/proc/meminfo")
MOUNTS = Path("/proc/self/mountinfo")
_CHUNK_BYTES = 4 << 20
_FLUSH_BYTES = 32 << 20
_IN_MEMORY = ("tmpfs", "ramfs")
Read = Callable[[memoryview], int]


class Room(Protocol):
    """Room for one shard."""

    @property
    def data(self) -> memoryview:
        """The bytes of the room, to read."""
        ...

    def receive(self, stretch: slice, read: Read) -> str:
        """Fills a stretch by calls of `read`, and returns the checksum of what came.

        Raises OSError, EOFError.
        """
        ...


class MemoryRoom:
    def __init__(self, length: int) -> None:
        # Private: shared memory takes half as long again to touch.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self.data = memoryview(mmap.mmap(-1, length, flags=flags) if length else b"")

    def receive(self, stretch: slice, read: Read) -> str:
        data = self.data[stretch]
        fill(data, "the copy", read)
        return crc32c(data)


class FileRoom:
    def __init__(self, folder: Path, length: int) -> None:
        """Raises OSError if the folder has no such room."""
        self._descriptor = open_nameless(folder)
        weakref.finalize(self, os.close, self._descriptor)
        self.data = memoryview(b"")
        if length:
            # Now, and not in the middle of a copy.
            os.posix_fallocate(self._descriptor, 0, length)
            self.data = memoryview(mmap.mmap(self._descriptor, length, access=mmap.ACCESS_READ))
        self._unflushed = 0

    def receive(self, stretch: slice, read: Read) -> str:
        checksum = Crc32c()
        buffer = memoryview(bytearray(min(_CHUNK_BYTES, stretch.stop - stretch.start)))
        for start in range(stretch.start, stretch.stop, _CHUNK_BYTES):
            chunk = buffer[: stretch.stop - start]
            fill(chunk, "the copy", read)
            checksum.extend(chunk)
            written = 0
            while written < len(chunk):
                written += os.pwrite(self._descriptor, chunk[written:], start + written)
            self._count_written(len(chunk))
        self._flush()
        return checksum.hex()

    def copy_from(self, descriptor: int, length: int) -> None:
        """Copies the start of another file, inside the kernel. Raises OSError, EOFError."""
        done = 0
        while done < length:
            count = min(_CHUNK_BYTES, length - done)
            os.lseek(self._descriptor, done, os.SEEK_SET)
            sent = os.sendfile(self._descriptor, descriptor, done, count)
            if not sent:
                raise EOFError("the staging memory is smaller than its shard")
            done += sent
            self._count_written(sent)
        self._flush()

    def _count_written(self, count: int) -> None:
        self._unflushed += count
        if self._unflushed >= _FLUSH_BYTES:
            self._flush()

    def _flush(self) -> None:
        os.fdatasync(self._descriptor)
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        self._unflushed = 0


def open_nameless(folder: Path) -> int:
    """Opens a new file without a name. Raises OSError."""
    with suppress(OSError, AttributeError):  # not every file system has it
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    descriptor, path = tempfile.mkstemp(prefix="holdfast-copies-", dir=folder)
    Path(path).unlink()
    return descriptor


def check_folder(folder: Path) -> None:
    """Raises InputError if copies in this folder would fail, or be in memory all the same."""
    try:
        os.close(open_nameless(folder))
    except OSError as error:
        raise InputError(
            "folder for copies of shards cannot be written",
            got=f"{folder}: {error.strerror}",
            allowed="an existing folder on a local disk",
            fix="mount an emptyDir there, or leave --copies-folder out",
        ) from error
    kind = _find_file_system(folder)
    if kind in _IN_MEMORY:
        raise InputError(
            "folder for copies of shards is in memory",
            got=f"{folder} on {kind}",
            allowed="a folder on a local disk: copies are there to save memory",
            fix="an emptyDir without `medium: Memory`, or leave --copies-folder out",
        )


def _find_file_system(folder: Path) -> str:
    """Returns the type of the folder's file system, or an empty string if it is unknown."""
    path = folder.resolve()
    longest = -1
    kind = ""
    with suppress(OSError):
        for line in MOUNTS.read_text().splitlines():
            fields, _, details = line.partition(" - ")
            mount = Path(fields.split()[4])
            if path.is_relative_to(mount) and len(mount.parts) >= longest:
                longest = len(mount.parts)
                kind = details.split()[0]
    return kind


def memory_limit() -> int:
    """Returns how much memory this container may take in all."""
    limits: list[int] = []
    with suppress(OSError, ValueError):  # no limit: "max"
        limits.append(int(MEMORY_LIMIT.read_text()))
    with suppress(OSError, ValueError):
        limits.append(_read_meminfo("MemTotal"))
    return min(limits, default=1 << 62)


def free_bytes() -> int:
    """Returns how much memory this container may still take; a huge number if no limit is known."""
    limits: list[int] = []
    with suppress(OSError, ValueError):  # no limit: "max"
        limit = int(MEMORY_LIMIT.read_text())
        limits.append(limit - int(MEMORY_USED.read_text()) + _count_cached_bytes())
    with suppress(OSError, ValueError):
        limits.append(_read_meminfo("MemAvailable"))
    return min(limits, default=1 << 62)


def _count_cached_bytes() -> int:
    """Returns how much of the used memory holds files that were read, which the kernel drops
    before it ends a process.
    """
    with suppress(OSError, ValueError):
        for line in MEMORY_STAT.read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "inactive_file":
                return int(count)
    return 0


def free_disk_bytes(folder: Path) -> int:
    """Returns how much a file of this folder may take. Raises OSError."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def _read_meminfo(name: str) -> int:
    for line in MEMINFO.read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) << 10
    raise ValueError(name)
