"""Storages around a storage: one that tries again, and one that reads from a mirror what the first does not give.

A put whose first try did arrive and whose answer was lost ends in AlreadyExists; `put_object` compares the object with
its own bytes. A mirror is filled by the provider's replication or by `holdfast checkpoints copy`. Saves, deletions and
the fence stay with the first store alone: a mirror that lags would let two trainers pass.
"""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TypeVar

from holdfast.checkpoint.errors import StorageError, Transient
from holdfast.checkpoint.stores.storage import Stat, Storage
from holdfast.runtime import logs

T = TypeVar("T")

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 20.0


class Retrying:
    def __init__(
        self,
        storage: Storage,
        *,
        budget_s: float,
        sleep: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.read_bytes = storage.read_bytes
        self._storage, self._budget_s, self._sleep, self._clock = storage, budget_s, sleep, clock

    @property
    def create_only(self) -> bool:
        return self._keep_trying(lambda: self._storage.create_only)

    def put(self, name: str, data: memoryview, crc32c: str) -> None:
        self._keep_trying(lambda: self._storage.put(name, data, crc32c))

    def read_into(self, name: str, start: int, into: memoryview) -> None:
        self._keep_trying(lambda: self._storage.read_into(name, start, into))

    def list(self, prefix: str) -> Iterator[Stat]:
        # To its end within one try: a listing that breaks off would look like a store with fewer checkpoints.
        return iter(self._keep_trying(lambda: list(self._storage.list(prefix))))

    def stat(self, name: str) -> Stat:
        return self._keep_trying(lambda: self._storage.stat(name))

    def delete(self, name: str) -> None:
        self._keep_trying(lambda: self._storage.delete(name))

    def _keep_trying(self, call: Callable[[], T]) -> T:
        deadline = self._clock() + self._budget_s
        pause = FIRST_PAUSE_S
        while True:
            try:
                return call()
            # Nothing else: a refusal stays one, however often it is asked.
            except Transient as error:
                left = deadline - self._clock()
                if left <= 0:
                    raise StorageError(f"{error} (tried for {self._budget_s:.0f} s)") from error
            # The last pause ends with the budget, so that one more try is made there.
            # Jitter: a thousand ranks that were refused together must not come back together.
            self._sleep(min(left, pause * (0.5 + random.random() / 2)))
            pause = min(pause * 2, LONGEST_PAUSE_S)


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
        # The first store's answer overwrites: of an object that both have, only its size and time count.
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


def copies_of(storage: Storage) -> list[Storage]:
    """Where the same checkpoint may be read again when its bytes turn out damaged."""
    return [storage, storage.second] if isinstance(storage, Mirrored) else [storage]
