"""The leases of a worker, and the thread that extends them until they are dropped.

The thread must run until the last ack of a drain; otherwise another worker would get items that are
just being committed.
"""

import threading
from collections.abc import Callable, Iterable

from holdfast.inference.queue.protocol import Lease, Queue
from holdfast.inference.results.connect import TRANSIENT

# Views of the database count a worker as killed that was silent for 30 s.
_HEARTBEAT_S = 10.0


class LeaseKeeper(threading.Thread):
    """Keeps leases by item, so that a duplicate message is acked with the item's one result."""

    def __init__(
        self,
        queue: Queue,
        *,
        lease_s: float,
        heartbeat: Callable[[], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        super().__init__(name="leases", daemon=True)
        self._queue = queue
        self._lease_s = lease_s
        self._heartbeat = heartbeat
        self._on_error = on_error
        self._leases: dict[str, list[Lease]] = {}
        self._changed = threading.Condition()
        self._stopped = threading.Event()

    def stop(self) -> None:
        self._stopped.set()
        self.join(timeout=5.0)

    def add(self, item: str, lease: Lease) -> bool:
        """Adds a lease; returns True if it is the first one of its item."""
        with self._changed:
            leases = self._leases.setdefault(item, [])
            leases.append(lease)
            return len(leases) == 1

    def drop(self, items: Iterable[str]) -> list[Lease]:
        """Removes and returns the leases of these items, which are no longer extended."""
        with self._changed:
            leases: list[Lease] = []
            for item in items:
                leases.extend(self._leases.pop(item, []))
            self._changed.notify_all()
        return leases

    def drop_all(self) -> list[Lease]:
        with self._changed:
            return self.drop(list(self._leases))

    def count(self) -> int:
        with self._changed:
            return len(self._leases)

    def wait_for_room(self, below: int, timeout_s: float) -> bool:
        """Waits until fewer than `below` items have leases; returns False after the timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._leases) < below, timeout_s)

    def run(self) -> None:
        # Every third of a lease: one extension may fail, and the next is still in time.
        pause_s = min(self._lease_s / 3, _HEARTBEAT_S)
        while not self._stopped.wait(pause_s):
            leases: list[Lease] = []
            with self._changed:
                for item_leases in self._leases.values():
                    leases.extend(item_leases)
            try:
                if leases:
                    self._queue.extend(leases, self._lease_s)
                self._heartbeat()
            except TRANSIENT as error:
                self._on_error(error)  # and continue: results of expired leases are fenced
