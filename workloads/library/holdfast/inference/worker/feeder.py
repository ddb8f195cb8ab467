"""The thread that keeps the predictor fed: pull, hold, check what is done already, claim the rest."""

import threading
from collections import deque
from collections.abc import Sequence

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
        self._ended = self._resting = False
        self._fault: BaseException | None = None

    def take(self) -> list[ClaimedItem]:
        """The next micro-batch; empty when the job is drained or a stop is requested."""
        size = self._sizer.size
        with self._changed:
            self._resting = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._ready or self._ended)
            # Nothing more to wait for, or wait a moment so that the device gets a full batch.
            self._changed.wait_for(
                lambda: len(self._ready) >= size or self._ended, self._settings.fill_s
            )
            if self._shutdown.requested:
                return []
            if self._fault is not None:
                raise self._fault
            return self._first(size)

    def take_whole(self) -> list[ClaimedItem]:
        """The next micro-batch where it is there already, all of it; empty when it is not."""
        size = self._sizer.size
        with self._changed:
            if self._shutdown.requested or len(self._ready) < size:
                return []
            return self._first(size)

    def _first(self, count: int) -> list[ClaimedItem]:
        return [self._ready.popleft() for _ in range(min(count, len(self._ready)))]

    def put_back(self, batch: Sequence[ClaimedItem]) -> None:
        """Taken and not predicted."""
        with self._changed:
            self._ready.extendleft(reversed(batch))

    def rest(self, batch: Sequence[ClaimedItem]) -> None:
        """Until the next `take`, nothing is pulled; what is ready, and `batch`, is for other
        workers.
        """
        self.put_back(batch)
        with self._changed:
            self._resting = True

    def untouched(self) -> list[Claim]:
        """Claimed and never taken; empties the buffer."""
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
                self._ended = True
                self._changed.notify_all()

    def _feed(self) -> bool:
        """One round; false when the job is drained."""
        if self._resting:
            self._give_back()
            with self._changed:
                self._changed.wait_for(lambda: not self._resting or self._shutdown.requested, 0.5)
            return True
        # One micro-batch being predicted, one being committed, one handed over ahead, two waiting:
        # the device does not wait when the database takes the time of two.
        in_hand = 5 * self._sizer.size
        if not self._keeper.wait_for_room(in_hand - self._sizer.size + 1, 0.5):
            return True
        room = max(1, in_hand - self._keeper.count())
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

    def _give_back(self) -> None:
        claims = self.untouched()
        if claims:
            self._retry(lambda: self._results.release_claims(claims))
            leases = self._keeper.drop([claim.item for claim in claims])
            self._retry(lambda: self._queue.release(leases))
            self._telemetry.emit("released", items=len(leases))

    def _claim(self, leases: list[Lease]) -> None:
        fresh = {
            lease.item.id: lease.item
            for lease in leases
            if lease.item is not None and self._keeper.add(lease.item.id, lease)
        }
        claims = self._retry(lambda: self._results.claim(list(fresh))) if fresh else {}
        self._telemetry.emit("claimed", items=len(claims))
        self._telemetry.failpoint(Failpoint.LEASED)
        # What cannot be claimed is done or dead already: its message is only acknowledged.
        finished = self._keeper.drop(fresh.keys() - claims.keys())
        with self._changed:
            self._ready.extend(
                ClaimedItem(item=fresh[name], claim=claim) for name, claim in claims.items()
            )
            self._changed.notify_all()
        malformed = [lease for lease in leases if lease.item is None]
        if malformed:
            self._retry(lambda: self._results.reject(malformed))
            for lease in malformed:
                self._telemetry.emit("dead_lettered", item=lease.digest, reason=lease.fault)
            finished += malformed
        if finished:
            self._retry(lambda: self._queue.ack(finished))
