"""What a checkpoint needs of an object store; opening.py has the one behind a URL.

Objects are created once and never changed: every `put` is create-only, so no writer can spoil what
another has finished.
"""

import ctypes
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import google_crc32c

from holdfast.checkpoint.errors import AlreadyExists, NotFound, StorageError
from holdfast.support.errors import InputError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Stat:
    name: str
    bytes: int
    modified: float
    """Unix seconds."""
    crc32c: str = ""
    """8 hex digits where the store keeps a checksum of its own, else empty."""


@runtime_checkable
class Storage(Protocol):
    """Names are relative to the URL that the storage was opened with. Every method raises
    StorageError where the store refuses, Transient where another try may help.
    """

    @property
    def read_bytes(self) -> int:
        """How much one read should ask for: little where a read is cheap, a whole shard where it is
        a request.
        """
        ...

    def put(self, name: str, data: memoryview, crc32c: str) -> None:
        """Create `name`, durably and whole or not at all. Raises AlreadyExists: the store itself
        refuses a name that is taken, so that of two writers exactly one wins; the fence and gangs
        rely on it.
        """
        ...

    def read_into(self, name: str, start: int, into: memoryview) -> None:
        """Fill `into` from byte `start`. Raises NotFound; EOFError where the object ends before."""
        ...

    def list(self, prefix: str) -> Iterator[Stat]:
        """Every object below `prefix/`, in any order; all objects for an empty prefix."""
        ...

    def stat(self, name: str) -> Stat:
        """Raises NotFound."""
        ...

    def delete(self, name: str) -> None:
        """Deleting what is not there is success."""
        ...


def exists(storage: Storage, name: str) -> bool:
    try:
        storage.stat(name)
    except NotFound:
        return False
    return True


def numbers_below(storage: Storage, prefix: str) -> list[int]:
    """Of the objects whose names below the prefix are `<number>.json`, in ascending order."""
    names = (found.name.rpartition("/")[2].removesuffix(".json") for found in storage.list(prefix))
    return sorted(int(name) for name in names if name.isdecimal())


def checked_name(name: str) -> str:
    """`name` if it stays below the prefix in every store, whatever decodes or joins it. Raises
    InputError.
    """
    # A run's name comes from users and from commits: '..' would leave a local store's folder.
    # GCS takes names of 1,024 bytes, the prefix of the URL included.
    if not _NAME.fullmatch(name) or ".." in name or len(name) > 900:
        raise InputError(
            "object name leaves its prefix or is not portable",
            got=repr(name[:120]),
            allowed=(
                "parts of A-Z a-z 0-9 . _ - joined by '/', each beginning with a letter or digit,"
                " without '..'"
            ),
            fix="use the names of holdfast.support.object_names",
        )
    return name


def read_object(
    storage: Storage,
    name: str,
    *,
    limit: int,
    listed: Stat | None = None,
) -> bytes:
    """A small object whole. `listed`: as a listing shows it; without it, a request is made. Raises
    NotFound; EOFError for one over `limit`, which is not read.
    """
    # Before memory is allocated: anyone who can write to the bucket chooses the size.
    size = (listed or storage.stat(name)).bytes
    if size > limit:
        raise EOFError(f"{name} has {size} bytes, more than {limit}")
    data = bytearray(size)
    storage.read_into(name, 0, memoryview(data))
    return bytes(data)


# The C function keeps the interpreter lock: a step of this size lets other threads run in between.
_STEP = 8 << 20


class Crc32c:
    """A checksum that grows with its data. Memory must be writable: google_crc32c takes no
    memoryview, but a ctypes array over the same memory.
    """

    def __init__(self) -> None:
        self._value = 0

    def extend(self, data: memoryview) -> None:
        # An empty buffer has no address for ctypes; the loop is then not entered.
        for start in range(0, len(data), _STEP):
            length = min(_STEP, len(data) - start)
            chunk = (ctypes.c_ubyte * length).from_buffer(data, start)
            self._value = google_crc32c.extend(self._value, chunk)  # pyright: ignore[reportArgumentType]

    def hex(self) -> str:
        return f"{self._value:08x}"


def crc32c(data: memoryview) -> str:
    """8 hex digits."""
    running = Crc32c()
    running.extend(data)
    return running.hex()


def fill(into: memoryview, name: str, read: Callable[[memoryview], int | None]) -> None:
    """`read` fills the beginning of what it is given and returns how much. Raises EOFError where it
    has no more.
    """
    done = 0
    while done < len(into):
        count = read(into[done:])
        if not count:
            raise EOFError(f"{name} ends {len(into) - done} bytes early")
        done += count


def random_hex(count: int) -> str:
    """A name that no other writer will choose: `count` random bytes, as twice as many hex digits."""
    # Not secrets.token_hex: a file secrets.py next to the user's script is common, and would be
    # imported instead.
    return os.urandom(count).hex()


def put_object(storage: Storage, name: str, data: memoryview, checksum: str) -> None:
    """Create-only. Raises StorageError where the name is taken, unless by these very bytes: then by
    an earlier try.
    """
    try:
        storage.put(name, data, checksum)
    except AlreadyExists:
        # A request whose answer was lost is made again and meets its own object.
        if storage.stat(name).bytes == len(data):
            found = memoryview(bytearray(len(data)))
            storage.read_into(name, 0, found)
            if crc32c(found) == checksum:
                return
        raise StorageError(f"{name} exists with other content") from None


def put_new(storage: Storage, name: str, data: bytes) -> None:
    """A small object. Raises AlreadyExists, also where an earlier try of the caller has put it
    there.
    """
    view = memoryview(bytearray(data))  # a copy, since the checksum takes writable memory only
    storage.put(name, view, crc32c(view))
