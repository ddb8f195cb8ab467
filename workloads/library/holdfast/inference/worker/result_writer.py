"""The thread that commits results: one transaction for a micro-batch, then its acks.

It works while the next micro-batch is predicted. It takes one at a time and none waits, so a kill
loses at most the micro-batch being committed and the one being predicted.
"""

import queue as handoff
import threading
import time
from collections.abc import Iterable, Sequence

from holdfast.inference.results.postgres import Failure
from holdfast.inference.worker.lease_keeper import LeaseKeeper
from holdfast.inference.worker.micro_batch import Outcome, Parts
from holdfast.inference.worker.telemetry import Failpoint
from holdfast.support.retry import Retry


class Writer(threading.Thread):
    def __init__(self, parts: Parts, keeper: LeaseKeeper, retry: Retry) -> None:
        super().__init__(name="writer", daemon=True)
        self._queue = parts.queue
        self._results = parts.results
        self._settings = parts.settings
        self._telemetry = parts.telemetry
        self._keeper = keeper
        self._retry = retry
        self._handoff: handoff.Queue[Outcome | None] = handoff.Queue(maxsize=1)
        self._free = threading.Semaphore(1)
        self._fault: BaseException | None = None

    def put(self, outcome: Outcome) -> None:
        """Hands over a micro-batch, once the previous one is committed and acked."""
        self._free.acquire()
        self._raise_fault()
        self._handoff.put(outcome)

    def wait_until_free(self) -> None:
        """Waits until every micro-batch is committed and acked."""
        with self._free:
            self._raise_fault()

    def finish(self) -> None:
        """Waits for the last commit and ack, and ends the thread."""
        self._handoff.put(None)
        self.join()
        self._raise_fault()

    def _raise_fault(self) -> None:
        if self._fault is not None:
            raise self._fault

    def run(self) -> None:
        try:
            while (outcome := self._handoff.get()) is not None:
                self._write(outcome)
                self._free.release()
        except BaseException as fault:  # noqa: BLE001  the thread's top level: put() and finish() raise it in the worker
            self._fault = fault
            self._free.release()

    def _write(self, outcome: Outcome) -> None:
        if outcome.failures:
            self._record_failures(outcome.failures)
        if not outcome.values:
            return
        start = time.monotonic()
        stored, stale = self._retry(lambda: self._results.store(outcome.values))
        seconds = time.monotonic() - start
        self._telemetry.emit(
            "stored",
            items=len(stored),
            seconds=seconds,
        )
        self._telemetry.failpoint(Failpoint.COMMITTED)
        # Stale items are neither acked nor released: their new worker acks them. A release would
        # deliver them a third time, and make that worker's claim stale in turn.
        self._keeper.drop(stale)
        self._ack(stored)
        self._telemetry.failpoint(Failpoint.ACKED)

    def _record_failures(self, failures: Sequence[Failure]) -> None:
        retried, dead = self._retry(
            lambda: self._results.fail(failures, self._settings.max_failures)
        )
        error_classes = {failure.claim.item: failure.error_class for failure in failures}
        for item, count in {**retried, **dead}.items():
            self._telemetry.emit(
                "item_failed",
                item=item,
                error_class=error_classes[item],
                failures=count,
            )
        # Stale, as in _write: their leases would be extended for ever, and the worker never ends.
        self._keeper.drop(error_classes.keys() - retried.keys() - dead.keys())
        for item, count in retried.items():
            self._release(item, self._settings.retry_delay_s * count)
        for item in dead:
            self._telemetry.emit(
                "dead_lettered",
                item=item,
                reason=error_classes[item],
            )
        self._ack(dead)

    def _release(self, item: str, delay_s: float) -> None:
        leases = self._keeper.drop([item])
        self._retry(lambda: self._queue.release(leases, delay_s))

    def _ack(self, items: Iterable[str]) -> None:
        leases = self._keeper.drop(items)
        if leases:
            self._retry(lambda: self._queue.ack(leases))
            self._telemetry.emit("acked", items=len(leases))
