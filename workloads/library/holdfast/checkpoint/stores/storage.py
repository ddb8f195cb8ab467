"""The interface of an object store, and helpers over it. factory.py opens the store of a URL.

Objects are created once and never changed: every `put` is create-only, so no writer can damage what
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
    """An object's entry in a listing."""

    name: str
    bytes: int
    modified: float
    """Unix seconds."""
    crc32c: str = ""
    """Checksum that the store itself keeps, in 8 hex digits; empty if it keeps none."""


@runtime_checkable
class Storage(Protocol):
    """An object store. Names are relative to the URL that it was opened with.

    Every method raises StorageError if the store refuses, Transient if another try may help.
    """

    @property
    def read_bytes(self) -> int:
        """The size of one read: small if a read is cheap, a whole shard if it is a request."""
        ...

    def put(
        self,
        name: str,
        data: memoryview,
        crc32c: str,
    ) -> None:
        """Create `name`, durably and whole or not at all. Raises AlreadyExists.

        The store itself must refuse a name that is taken, so that of two writers exactly one wins;
        the fence and gangs rely on it.
        """
        ...

    def read_into(
        self,
        name: str,
        start: int,
        into: memoryview,
    ) -> None:
        """Fill `into` from byte `start`. Raises NotFound; EOFError if the object ends before."""
        ...

    def list(self, prefix: str) -> Iterator[Stat]:
        """Yield every object below `prefix/`, in any order; all objects for an empty prefix."""
        ...

    def stat(self, name: str) -> Stat:
        """Return the entry of an object. Raises NotFound."""
        ...

    def delete(self, name: str) -> None:
        """Delete an object. An object that does not exist is no error."""
        ...

    def move(
        self,
        source: str,
        target: str,
        *,
        replace: bool = False,
    ) -> None:
        """Give an object another name, durably. Raises NotFound if `source` does not exist.

        Raises AlreadyExists if `target` does, unless `replace` is set. The store itself must check
        `source` in the same transaction: a trainer deletes the drafts of an older one, whose
        commits must fail from then on. If a store copies and deletes instead, a commit may come
        late by as long as that takes.
        """
        ...


def exists(storage: Storage, name: str) -> bool:
    try:
        storage.stat(name)
    except NotFound:
        return False
    return True


def numbers_below(storage: Storage, prefix: str) -> list[int]:
    """Return the numbers of the objects `<number>.json` below the prefix, in ascending order."""
    numbers: list[int] = []
    for stat in storage.list(prefix):
        file_name = stat.name.rpartition("/")[2]
        stem = file_name.removesuffix(".json")
        if stem.isdecimal():
            numbers.append(int(stem))
    return sorted(numbers)


def check_name(name: str) -> str:
    """Return `name` if it stays below its prefix in every store. Raises InputError otherwise."""
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
    """Read a small object whole.

    `listed` is the object's entry in a listing, and spares a request. Raises NotFound; EOFError for
    an object over `limit`, which is not read.
    """
    # Checked before memory is allocated: anyone who can write to the bucket chooses the size.
    size = (listed or storage.stat(name)).bytes
    if size > limit:
        raise EOFError(f"{name} has {size} bytes, more than {limit}")
    data = bytearray(size)
    storage.read_into(name, 0, memoryview(data))
    return bytes(data)


# The C function holds the interpreter lock: a step of this size lets other threads run in between.
_STEP = 8 << 20


class Crc32c:
    """A running checksum.

    The memory must be writable: google_crc32c takes no memoryview, but a ctypes array over the same
    memory.
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
    """Return the checksum in 8 hex digits."""
    checksum = Crc32c()
    checksum.extend(data)
    return checksum.hex()


def fill(
    into: memoryview,
    name: str,
    read: Callable[[memoryview], int | None],
) -> None:
    """Fill `into` by calls of `read`, which fills the start of a buffer and returns the count.

    Raises EOFError if `read` has no more bytes.
    """
    done = 0
    while done < len(into):
        count = read(into[done:])
        if not count:
            raise EOFError(f"{name} ends {len(into) - done} bytes early")
        done += count


def random_hex(count: int) -> str:
    """Return `count` random bytes in hex, as a name that no other writer will choose."""
    # Not secrets.token_hex: a file secrets.py next to the user's script is common, and would be
    # imported instead.
    return os.urandom(count).hex()


def put_object(
    storage: Storage,
    name: str,
    data: memoryview,
    checksum: str,
) -> None:
    """Create an object, or accept the one that an earlier try with the same bytes has created.

    Raises StorageError if the name is taken by other bytes.
    """
    try:
        storage.put(name, data, checksum)
    except AlreadyExists:
        # A request whose answer was lost is made again and meets its own object.
        if storage.stat(name).bytes == len(data):
            stored = memoryview(bytearray(len(data)))
            storage.read_into(name, 0, stored)
            if crc32c(stored) == checksum:
                return
        raise StorageError(f"{name} exists with other content") from None


def put_new(
    storage: Storage,
    name: str,
    data: bytes,
) -> None:
    """Create a small object. Raises AlreadyExists, also after an earlier try of the caller."""
    view = memoryview(bytearray(data))  # a copy, since the checksum takes writable memory only
    storage.put(name, view, crc32c(view))
