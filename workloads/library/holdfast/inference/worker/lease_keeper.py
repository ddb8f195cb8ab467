"""The deliveries that a worker holds, and the thread that extends their leases until they are
dropped.

The thread must outlive the last ack of a drain, or another worker would be handed what is just
being committed.
"""

import threading
from collections.abc import Callable, Iterable

from holdfast.inference.queue.protocol import Lease, Queue
from holdfast.inference.results.connect import TRANSIENT


class LeaseKeeper(threading.Thread):
    """Deliveries by item: a publisher's duplicate of an item in hand is acked with it, computed
    once.
    """

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
        self._held: dict[str, list[Lease]] = {}
        self._changed = threading.Condition()
        self._ended = threading.Event()

    def stop(self) -> None:
        self._ended.set()
        self.join(timeout=5.0)

    def add(self, item: str, lease: Lease) -> bool:
        """True when the item is new in hand."""
        with self._changed:
            leases = self._held.setdefault(item, [])
            leases.append(lease)
            return len(leases) == 1

    def drop(self, items: Iterable[str]) -> list[Lease]:
        """All deliveries of these items; they are no longer extended."""
        with self._changed:
            leases = []
            for item in items:
                for lease in self._held.pop(item, []):
                    leases.append(lease)
            self._changed.notify_all()
        return leases

    def drop_all(self) -> list[Lease]:
        with self._changed:
            return self.drop(list(self._held))

    def count(self) -> int:
        with self._changed:
            return len(self._held)

    def wait_for_room(self, below: int, timeout_s: float) -> bool:
        """True once fewer than `below` items are in hand."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._held) < below, timeout_s)

    def run(self) -> None:
        # A third: one extension may fail and the next one still comes in time.
        while not self._ended.wait(self._lease_s / 3):
            with self._changed:
                held = []
                for leases in self._held.values():
                    for lease in leases:
                        held.append(lease)
            try:
                if held:
                    self._queue.extend(held, self._lease_s)
                self._heartbeat()
            except TRANSIENT as error:
                self._on_error(error)  # and go on: what expires meanwhile is fenced
