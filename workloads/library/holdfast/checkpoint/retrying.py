"""A storage that tries again: exponential back-off with jitter on Transient, within a time budget per call.

A put whose first try did arrive and whose
answer was lost ends in AlreadyExists; callers compare the object with their own bytes (upload.put_object).
"""

import random
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from holdfast.checkpoint.errors import StorageError, Transient
from holdfast.checkpoint.storage import Stat, Storage

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
            except Transient as error:
                left = deadline - self._clock()
                if left <= 0:
                    raise StorageError(f"{error} (tried for {self._budget_s:.0f} s)") from error
            # The last pause ends with the budget, so that one more try is made there.
            # Jitter: a thousand ranks that were refused together must not come back together.
            self._sleep(min(left, pause * (0.5 + random.random() / 2)))
            pause = min(pause * 2, LONGEST_PAUSE_S)
