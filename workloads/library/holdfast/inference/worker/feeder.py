"""The thread that feeds the predictor: it pulls items, skips finished ones and claims the rest."""

import threading
from collections import deque
from collections.abc import Sequence

from holdfast.inference.items import Item
from holdfast.inference.queue.protocol import Lease
from holdfast.inference.results.postgres import Claim
from holdfast.inference.worker.lease_keeper import LeaseKeeper
from holdfast.inference.worker.micro_batch import BatchSizer, ClaimedItem, Parts
from holdfast.inference.worker.telemetry import Failpoint


class Feeder(threading.Thread):
    def __init__(self, parts: Parts, keeper: LeaseKeeper, sizer: BatchSizer) -> None:
        super().__init__(name="feeder", daemon=True)
        self._queue = parts.queue
        self._results = parts.results
        self._settings = parts.settings
        self._shutdown = parts.shutdown
        self._telemetry = parts.telemetry
        self._keeper = keeper
        self._sizer = sizer
        self._retry = parts.telemetry.retry(give_up=lambda: parts.shutdown.requested)
        self._ready: deque[ClaimedItem] = deque()
        self._changed = threading.Condition()
        self._has_ended = False
        self._is_resting = False
        self._fault: BaseException | None = None

    def take(self) -> list[ClaimedItem]:
        """Returns the next micro-batch; empty if the job is drained or a stop is requested."""
        size = self._sizer.size
        with self._changed:
            self._is_resting = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._ready or self._has_ended)
            # Unless it has ended, wait a moment so that the device gets a full batch.
            self._changed.wait_for(
                lambda: len(self._ready) >= size or self._has_ended,
                self._settings.fill_s,
            )
            if self._shutdown.requested:
                return []
            if self._fault is not None:
                raise self._fault
            return self._pop(size)

    def take_whole(self) -> list[ClaimedItem]:
        """Returns the next micro-batch if all of it is ready, otherwise an empty one."""
        size = self._sizer.size
        with self._changed:
            if self._shutdown.requested or len(self._ready) < size:
                return []
            return self._pop(size)

    def _pop(self, count: int) -> list[ClaimedItem]:
        batch: list[ClaimedItem] = []
        while self._ready and len(batch) < count:
            batch.append(self._ready.popleft())
        return batch

    def put_back(self, batch: Sequence[ClaimedItem]) -> None:
        """Returns items to the front that were taken and not predicted."""
        with self._changed:
            self._ready.extendleft(reversed(batch))

    def rest(self, batch: Sequence[ClaimedItem]) -> None:
        """Stops pulling until the next `take`, and releases ready items and `batch`."""
        self.put_back(batch)
        with self._changed:
            self._is_resting = True

    def pop_claims(self) -> list[Claim]:
        """Removes the items that were claimed and never taken; returns their claims."""
        with self._changed:
            claims = [work.claim for work in self._ready]
            self._ready.clear()
        return claims

    def run(self) -> None:
        try:
            while not self._shutdown.requested and self._feed():
                pass
        except BaseException as fault:  # noqa: BLE001  the thread's top level: take() raises it in the worker
            self._fault = fault
        finally:
            with self._changed:
                self._has_ended = True
                self._changed.notify_all()

    def _feed(self) -> bool:
        """Does one round; returns False if the job is drained."""
        if self._is_resting:
            self._release_ready()
            with self._changed:
                self._changed.wait_for(
                    lambda: not self._is_resting or self._shutdown.requested,
                    0.5,
                )
            return True
        # Five micro-batches: one is predicted, one committed, one sent ahead, and two wait, so that
        # the device is busy while the database takes the time of two.
        size = self._sizer.size
        max_items = 5 * size
        if not self._keeper.wait_for_room(max_items - size + 1, 0.5):
            return True
        room = max(1, max_items - self._keeper.count())
        leases = self._retry(lambda: self._queue.pull(room, self._settings.pull_wait_s))
        if leases:
            self._telemetry.failpoint(Failpoint.PULLED)
            self._claim(leases)
            return True
        if self._keeper.count() > 0:
            return True
        if self._retry(self._results.drained):
            return False
        self._retry(lambda: self._results.publish_outbox(self._queue))
        return True

    def _release_ready(self) -> None:
        claims = self.pop_claims()
        if not claims:
            return
        self._retry(lambda: self._results.release_claims(claims))
        leases = self._keeper.drop([claim.item for claim in claims])
        self._retry(lambda: self._queue.release(leases))
        self._telemetry.emit("released", items=len(leases))

    def _claim(self, leases: list[Lease]) -> None:
        items: dict[str, Item] = {}
        malformed: list[Lease] = []
        for lease in leases:
            if lease.item is None:
                malformed.append(lease)
            elif self._keeper.add(lease.item.id, lease):
                items[lease.item.id] = lease.item
        claims: dict[str, Claim] = {}
        if items:
            claims = self._retry(lambda: self._results.claim(list(items)))
        self._telemetry.emit("claimed", items=len(claims))
        self._telemetry.failpoint(Failpoint.LEASED)
        # Items without a claim are done or dead: their messages are only acknowledged.
        finished = self._keeper.drop(items.keys() - claims.keys())
        with self._changed:
            for name, claim in claims.items():
                self._ready.append(ClaimedItem(item=items[name], claim=claim))
            self._changed.notify_all()
        if malformed:
            self._retry(lambda: self._results.reject(malformed))
            for lease in malformed:
                self._telemetry.emit("dead_lettered", item=lease.digest, reason=lease.fault)
            finished += malformed
        if finished:
            self._retry(lambda: self._queue.ack(finished))
