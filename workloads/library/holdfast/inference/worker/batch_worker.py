"""The batch worker: it leases, claims, predicts, commits and acks items.

Guarantees: an item is acked only after its result is committed, and a result is written once. At a
stop, leased items are released at once; after a kill they return when their leases end.

It has four threads: the feeder pulls and claims, the main thread predicts (devices require it), the
writer commits and acks, the lease keeper extends leases.
"""

# Decision: infra/decisions/0044.

import sys
import threading
from collections.abc import Sequence

from holdfast.inference.errors import PredictorBroken, redact
from holdfast.inference.predictor.predictor_client import ProcessPredictor
from holdfast.inference.results.connect import TRANSIENT
from holdfast.inference.worker.feeder import Feeder
from holdfast.inference.worker.lease_keeper import LeaseKeeper
from holdfast.inference.worker.micro_batch import BatchSizer, ClaimedItem, Outcome, Parts
from holdfast.inference.worker.result_writer import Writer
from holdfast.inference.worker.telemetry import Failpoint
from holdfast.inference.worker.triage import Triage
from holdfast.runtime import logs
from holdfast.runtime.shutdown import leave_now
from holdfast.vocabulary.exit_codes import EXIT_COMPLETE, EXIT_PREEMPTED, EXIT_RETRY


class Worker:
    def __init__(self, parts: Parts, predictor: ProcessPredictor) -> None:
        settings = parts.settings
        telemetry = parts.telemetry
        self._queue = parts.queue
        self._results = parts.results
        self._shutdown = parts.shutdown
        self._settings = settings
        self._telemetry = telemetry
        self._sizer = BatchSizer(max_items=settings.micro_batch, longest_s=settings.longest_batch_s)
        self._triage = Triage(predictor, parts.shutdown, settings)
        self._predictor = predictor
        predictor.on_overdue = self._handle_overdue
        self._retry = telemetry.retry(give_up=self._window_is_over)
        self._keeper = LeaseKeeper(
            parts.queue,
            lease_s=settings.lease_s,
            heartbeat=parts.results.heartbeat,
            on_error=telemetry.retrying,
        )
        self._feeder = Feeder(parts, self._keeper, self._sizer)
        self._writer = Writer(parts, self._keeper, self._retry)
        self._ahead: list[ClaimedItem] = []
        """The micro-batch that was sent to the predictor while it computes another one."""
        self._drained = threading.Event()

    def run(self) -> int:
        """Runs until the job is drained or a stop is requested; returns the exit code."""
        # By default the interpreter lets feeder and writer delay the predictor by 5 ms at a time.
        sys.setswitchinterval(0.0005)
        self._retry(self._results.heartbeat)
        threading.Thread(target=self._abandon_when_late, name="abandon", daemon=True).start()
        for thread in (self._keeper, self._feeder, self._writer):
            thread.start()
        code = EXIT_COMPLETE
        outcome = "complete"
        try:
            while batch := self._next_batch():
                self._writer.put(self._predict(batch))
            is_preempted = self._shutdown.requested
        except PredictorBroken as error:
            code = EXIT_RETRY
            outcome = "failed"
            is_preempted = self._shutdown.requested
            self._report_broken(error)
            self._shutdown.request("predictor broken")
        except BaseException:
            self._release_leases()
            raise
        if is_preempted:
            code = EXIT_PREEMPTED
            outcome = "preempted"
        self._drain(outcome)
        return code

    def _report_broken(self, error: PredictorBroken) -> None:
        reason = redact(str(error))
        if self._shutdown.requested:
            # A child that a stop ends, or that had not loaded its model, is no fault.
            logs.info("predict", f"the predictor ends: {reason}")
        else:
            logs.error("predict", f"the predictor is broken: {reason}")
        self._telemetry.emit("stop", step=0, reason=reason)

    def _drain(self, outcome: str) -> None:
        """Finishes the work. The order matters: each line relies on the ones above it."""
        # 1. There are no more pulls: the feeder saw the stop too. A pull in progress ends within
        #    pull_wait_s.
        # 2. The current micro-batch is finished: take() is called only after put() has returned.
        #    If it takes longer than the window, _abandon_when_late has ended the process instead.
        # 3. Commit what was predicted, then ack it. The leases are still extended meanwhile.
        self._writer.finish()
        # 4. The micro-batch that was sent ahead is dropped: the predictor ends with this process.
        self._feeder.put_back(self._ahead)
        # 5. The feeder may have pulled again; after this line no lease is added.
        self._feeder.join(self._settings.pull_wait_s + 5.0)
        # 6. Release the rest, so that another worker gets it now, not when the leases end.
        self._release_rest()
        # 7. Stop the lease keeper last: there are no leases any more.
        self._keeper.stop()
        # 8. Record the outcome. A kill after this line has no effect.
        self._retry(lambda: self._results.end(outcome))
        self._drained.set()

    def _release_rest(self) -> None:
        leases = self._keeper.drop_all()
        if not leases:
            return
        claims = self._feeder.pop_claims()
        self._retry(lambda: self._results.release_claims(claims))
        self._retry(lambda: self._queue.release(leases))
        self._telemetry.emit("released", items=len(leases))

    def _window_is_over(self) -> bool:
        return self._shutdown.seconds_left(self._settings.window_s) <= 0

    def _abandon_when_late(self) -> None:
        """Releases all leases and exits if a call hangs until the window ends."""
        self._shutdown.wait()
        rest_s = self._shutdown.seconds_left(self._settings.window_s)
        if self._drained.wait(max(0.0, rest_s)):
            return
        # This may release a micro-batch that is being committed: its commit remains, and the next
        # worker finds it done.
        thread = threading.Thread(target=self._release_leases, daemon=True)
        thread.start()
        thread.join(timeout=1.0)
        leave_now(EXIT_PREEMPTED)

    def _release_leases(self) -> None:
        try:
            self._queue.release(self._keeper.drop_all())
        except TRANSIENT:
            return  # the leases expire

    def _next_batch(self) -> list[ClaimedItem]:
        """Returns the next micro-batch; empty if the job is drained or a stop is requested."""
        if self._shutdown.requested or not self._ahead:
            return self._feeder.take()
        batch = self._ahead
        self._ahead = []
        return batch

    def _predict(self, batch: Sequence[ClaimedItem]) -> Outcome:
        self._telemetry.failpoint(Failpoint.PREDICTING)
        if self._triage.prepare(batch):
            # Wait until the previous micro-batch is durable: two are at stake, never three.
            self._writer.wait_until_free()
            self._ahead = self._feeder.take_whole()
            self._triage.prepare(self._ahead)
        outcome = self._triage.predict(batch)
        self._sizer.observe(len(batch), outcome.seconds)
        self._feeder.put_back(outcome.untried)
        self._telemetry.failpoint(Failpoint.PREDICTED)
        return outcome

    def _handle_overdue(self, items: int, seconds: float) -> None:
        """Releases all other items, so that they need not wait for the overdue micro-batch."""
        timeout_s = self._predictor.timeout_s
        logs.warning(
            "predict",
            f"a micro-batch of {items} is overdue: {seconds:.3g} s; it is ended after"
            f" {timeout_s:.3g} s",
        )
        self._telemetry.emit("overdue", items=items, seconds=seconds)
        bodies = [work.item.body for work in self._ahead]
        self._predictor.forget(bodies)
        self._feeder.rest([*self._triage.pop_waiting(), *self._ahead])
        self._ahead = []
