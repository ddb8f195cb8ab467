"""The thread that makes predictions durable: one transaction for a micro-batch, then its acks.

It works while the next micro-batch is predicted. One is in its hands and none waits, so a kill costs
at most the micro-batch being committed and the one being predicted; without overlap, only one of them.
"""

import queue as handoff
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from holdfast.inference.queue.queue import Queue
from holdfast.inference.results.connect import retried
from holdfast.inference.results.results import Claim, Failure, Results
from holdfast.inference.worker.leases import LeaseKeeper
from holdfast.inference.worker.settings import WorkerSettings
from holdfast.inference.worker.steps import Report, Step
from holdfast.runtime.shutdown import Shutdown

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Of one micro-batch."""

    values: Mapping[Claim, str]
    failures: Sequence[Failure] = ()
    seconds: float = 0.0
    """What predicting it took."""


class Writer:
    def __init__(
        self,
        *,
        queue: Queue,
        results: Results,
        keeper: LeaseKeeper,
        shutdown: Shutdown,
        settings: WorkerSettings,
        report: Report,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queue, self._results, self._keeper = queue, results, keeper
        self._settings, self._shutdown, self._report, self._clock = settings, shutdown, report, clock
        self._handoff: handoff.Queue[Outcome | None] = handoff.Queue(maxsize=1)
        self._free = threading.Semaphore(1)
        self._fault: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, outcome: Outcome) -> None:
        """Hand over; waits until the one before is committed and acked, without overlap until this one is."""
        self._free.acquire()
        self._raise_fault()
        self._handoff.put(outcome)
        if not self._settings.overlap:
            self.wait_until_free()

    def wait_until_free(self) -> None:
        """Until all that was put is committed and acked."""
        with self._free:
            self._raise_fault()

    def finish(self) -> None:
        """Wait for the last commit and ack."""
        self._handoff.put(None)
        self._thread.join()
        self._raise_fault()

    def _raise_fault(self) -> None:
        if self._fault is not None:
            raise self._fault

    def _run(self) -> None:
        try:
            while (outcome := self._handoff.get()) is not None:
                self._write(outcome)
                self._free.release()
        except BaseException as fault:  # noqa: BLE001  the thread's top level: put() and finish() raise it in the worker
            self._fault = fault
            self._free.release()

    def _write(self, outcome: Outcome) -> None:
        if outcome.failures:
            self._count(outcome.failures)
        if not outcome.values:
            return
        began = self._clock()
        stored = self._patiently(lambda: self._results.store(outcome.values))
        self._report.emit("stored", items=len(stored.done), seconds=self._clock() - began)
        self._report.at(Step.COMMITTED)
        # Void ones are let go without ack or release: their new holder acks. A release now would
        # deliver them a third time and void that holder's claim in turn.
        self._keeper.let_go(stored.void)
        self._ack(stored.done)
        self._report.at(Step.ACKED)

    def _count(self, failures: Sequence[Failure]) -> None:
        counted = self._patiently(lambda: self._results.fail(failures))
        classes = {failure.claim.item: failure.error_class for failure in failures}
        for item, times in {**counted.retry, **counted.dead}.items():
            self._report.emit("item_failed", item=item, error_class=classes[item], failures=times)
        delay_s = self._settings.retry_delay_s
        for item, times in counted.retry.items():
            leases = self._keeper.let_go([item])
            self._patiently(lambda leases=leases, times=times: self._queue.release(leases, delay_s * times))
        for item in counted.dead:
            self._report.emit("dead_lettered", item=item, reason=classes[item])
        self._ack(counted.dead)

    def _ack(self, items: Sequence[str] | frozenset[str] | Mapping[str, int]) -> None:
        if leases := self._keeper.let_go(items):
            self._patiently(lambda: self._queue.ack(leases))
            self._report.emit("acked", items=len(leases))

    def _patiently(self, operation: Callable[[], _T]) -> _T:
        def late() -> bool:
            return self._shutdown.seconds_left(self._settings.window_s) <= 0

        return retried(operation, give_up=late, tell=self._report.trouble)
