"""What a checkpoint needs of an object store; stores.py has the one behind a URL.

Objects are created once and never
changed: every `put` is create-only, so no writer can spoil what another has finished.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from holdfast.checkpoint.errors import AlreadyExists, NotFound
from holdfast.contract.errors import InputError

REQUEST_S = 60.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Stat:
    name: str
    bytes: int
    modified: float
    """Unix seconds."""
    crc32c: str = ""
    """8 hex digits where the store keeps a checksum of its own, else empty."""


class Storage(Protocol):
    """Names are relative to the URL that the storage was opened with."""

    @property
    def read_bytes(self) -> int:
        """How much one read should ask for: little where a read is cheap, a whole shard where it is a request."""
        ...

    @property
    def create_only(self) -> bool:
        """Whether the store itself refuses a name that is taken, so that of two writers exactly one wins."""
        ...

    def put(self, name: str, data: memoryview, crc32c: str) -> None:
        """Create `name`, durably and whole or not at all. Raises AlreadyExists."""
        ...

    def read_into(self, name: str, start: int, into: memoryview) -> None:
        """Fill `into` from byte `start`. Raises NotFound; EOFError where the object ends before."""
        ...

    def list(self, prefix: str) -> Iterator[Stat]:
        """Every object below `prefix/`, in any order; all objects for an empty prefix."""
        ...

    def stat(self, name: str) -> Stat: ...

    def delete(self, name: str) -> None:
        """Deleting what is not there is success."""
        ...


def check_absent(storage: Storage, name: str) -> None:
    """Raises AlreadyExists: for stores that would overwrite."""
    try:
        storage.stat(name)
    except NotFound:
        return
    raise AlreadyExists(f"{name} is there already")


def checked_name(name: str) -> str:
    """`name` if it stays below the prefix in every store, whatever decodes or joins it."""
    # A run's name comes from users and from commits: '..' would leave a local store's folder.
    # GCS takes names of 1,024 bytes, the prefix of the URL included.
    if not _NAME.fullmatch(name) or ".." in name or len(name) > 900:
        raise InputError(
            "object name leaves its prefix or is not portable",
            got=repr(name[:120]),
            allowed="parts of A-Z a-z 0-9 . _ - joined by '/', each beginning with a letter or digit, without '..'",
            fix="use the names of holdfast.contract.object_names",
        )
    return name


def read_object(storage: Storage, name: str, *, limit: int) -> bytes:
    """A small object whole. An object over `limit` is not read: a manifest may have been replaced by anything."""
    # Asked before the memory is taken: whoever can write to the bucket chooses the size.
    size = storage.stat(name).bytes
    if size > limit:
        raise EOFError(f"{name} has {size} bytes, more than {limit}")
    data = bytearray(size)
    storage.read_into(name, 0, memoryview(data))
    return bytes(data)
