"""A second store with the same objects, from which is read what the first does not give.

A bucket in another region is filled by the provider's replication or by `holdfast checkpoints copy`. Saves, deletions
and the fence stay with the first alone: a mirror that lags would else let two trainers pass.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TypeVar

from holdfast.checkpoint.errors import StorageError
from holdfast.checkpoint.retrying import Retrying
from holdfast.checkpoint.settings import Tuning
from holdfast.checkpoint.storage import Stat, Storage
from holdfast.checkpoint.stores import existing_storage
from holdfast.runtime import logs

T = TypeVar("T")


class Mirrored:
    def __init__(self, first: Storage, second: Storage) -> None:
        self.first, self.second = first, second
        self.read_bytes = min(first.read_bytes, second.read_bytes)
        self._announced = False

    @property
    def create_only(self) -> bool:
        return self.first.create_only

    def put(self, name: str, data: memoryview, crc32c: str) -> None:
        self.first.put(name, data, crc32c)

    def delete(self, name: str) -> None:
        self.first.delete(name)

    def read_into(self, name: str, start: int, into: memoryview) -> None:
        self._either(lambda store: store.read_into(name, start, into))

    def stat(self, name: str) -> Stat:
        return self._either(lambda store: store.stat(name))

    def list(self, prefix: str) -> Iterator[Stat]:
        """Of both: the first may have lost some, the second may lag."""
        found: dict[str, Stat] = {}
        with suppress(StorageError):
            found = {stat.name: stat for stat in self.second.list(prefix)}
        try:
            found |= {stat.name: stat for stat in self.first.list(prefix)}
        except StorageError as error:
            if not found:
                raise
            self._warn_once(error)
        return iter(found.values())

    def _either(self, read: Callable[[Storage], T]) -> T:
        try:
            return read(self.first)
        except (StorageError, EOFError) as error:
            try:
                found = read(self.second)
            except (StorageError, EOFError):
                # The first's reason counts: a mirror that has not got the object yet explains nothing.
                raise error from None
            self._warn_once(error)
            return found

    def _warn_once(self, error: Exception) -> None:
        if not self._announced:
            self._announced = True
            logs.warning("restore", f"reading from the mirror: {error}")


def mirrored(first: Storage, url: str, tuning: Tuning) -> Storage:
    """`first` itself without a URL."""
    if not url:
        return first
    return Mirrored(first, Retrying(existing_storage(url, request_s=tuning.request_s), budget_s=tuning.retry_s))


def copies_of(storage: Storage) -> list[Storage]:
    """Where the same checkpoint may be read again when its bytes turn out damaged."""
    return [storage, storage.second] if isinstance(storage, Mirrored) else [storage]
