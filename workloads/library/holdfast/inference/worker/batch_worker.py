"""The batch worker: lease, claim, predict, commit, ack.

Guarantees: an item is acked only after its result is committed; a result is written once; what is
held at a stop is given back at once; what is held at a kill comes back when its lease ends.

Four threads: the feeder pulls and claims, the caller's own predicts (devices want the main thread),
the writer commits and acks, the lease keeper extends what is held.
"""

# Why it is so: infra/decisions/0044.

import sys
import threading
from collections.abc import Sequence

from holdfast.inference.errors import PredictorBroken, redacted
from holdfast.inference.predictor.proxy import ProcessPredictor
from holdfast.inference.results.connect import TRANSIENT
from holdfast.inference.worker.feeder import Feeder
from holdfast.inference.worker.lease_keeper import LeaseKeeper
from holdfast.inference.worker.micro_batch import BatchSizer, ClaimedItem, Outcome, Parts
from holdfast.inference.worker.telemetry import Failpoint
from holdfast.inference.worker.triage import Triage
from holdfast.inference.worker.writer import Writer
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
        self._sizer = BatchSizer(most=settings.micro_batch, longest_s=settings.longest_batch_s)
        self._triage = Triage(predictor, parts.shutdown, settings)
        self._predictor = predictor
        predictor.on_overdue = self._overdue
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
        """Handed to the predictor while it is busy with the micro-batch before."""
        self._left = threading.Event()

    def run(self) -> int:
        """Until the job is drained or a stop is requested; returns the exit code."""
        # The interpreter's default lets the feeder and the writer keep the predictor waiting for 5
        # ms at a time.
        sys.setswitchinterval(0.0005)
        self._retry(self._results.heartbeat)
        threading.Thread(
            target=self._abandon_when_late,
            name="abandon",
            daemon=True,
        ).start()
        for thread in (self._keeper, self._feeder, self._writer):
            thread.start()
        code = EXIT_COMPLETE
        outcome = "complete"
        try:
            while batch := self._next():
                self._writer.put(self._predict(batch))
            preempted = self._shutdown.requested
        except PredictorBroken as broken:
            code = EXIT_RETRY
            outcome = "failed"
            preempted = self._shutdown.requested
            why = redacted(str(broken))
            (logs.info if preempted else logs.error)("predict", f"the predictor is broken: {why}")
            self._telemetry.emit("stop", step=0, reason=why)
            self._shutdown.request("predictor broken")
        except BaseException:
            self._release_leases()
            raise
        if preempted:
            code = EXIT_PREEMPTED
            outcome = "preempted"
        self._drain(outcome)
        return code

    def _drain(self, outcome: str) -> None:
        """The order matters; each line relies on the ones above it."""
        # 1. No more pulls: the feeder saw the stop too. A pull under way ends within pull_wait_s.
        # 2. The micro-batch under way is finished: take() is called only after put() has returned.
        #    If it outlasts the window, _abandon_when_late has ended the process instead.
        # 3. Commit what was predicted, then ack it. The leases are still being kept meanwhile.
        self._writer.finish()
        # 4. The micro-batch handed over ahead is not waited for: the predictor ends with this process.
        self._feeder.put_back(self._ahead)
        # 5. The feeder may have pulled again; after this nothing is added to what is held.
        self._feeder.join(self._settings.pull_wait_s + 5.0)
        # 6. Give back the rest, so that another worker has it now and not when the leases end.
        self._release_rest()
        # 7. Only now stop keeping leases: there are none left.
        self._keeper.stop()
        # 8. Record how it ended. From here on a kill costs nothing.
        self._retry(lambda: self._results.end(outcome))
        self._left.set()

    def _release_rest(self) -> None:
        leases = self._keeper.drop_all()
        if not leases:
            return
        untouched = self._feeder.untouched()
        self._retry(lambda: self._results.release_claims(untouched))
        self._retry(lambda: self._queue.release(leases))
        self._telemetry.emit("released", items=len(leases))

    def _window_is_over(self) -> bool:
        return self._shutdown.seconds_left(self._settings.window_s) <= 0

    def _abandon_when_late(self) -> None:
        """The window ends while the predictor or the database hangs: give everything back, then go."""
        self._shutdown.wait()
        if self._left.wait(max(0.0, self._shutdown.seconds_left(self._settings.window_s))):
            return
        # A micro-batch that is being committed right now may be released too: its commit is kept,
        # and its next worker finds it done.
        giving_back = threading.Thread(target=self._release_leases, daemon=True)
        giving_back.start()
        giving_back.join(timeout=1.0)
        leave_now(EXIT_PREEMPTED)

    def _release_leases(self) -> None:
        try:
            self._queue.release(self._keeper.drop_all())
        except TRANSIENT:
            return  # the leases end by themselves

    def _next(self) -> list[ClaimedItem]:
        """Empty when the job is drained or a stop is requested."""
        if self._shutdown.requested or not self._ahead:
            return self._feeder.take()
        batch = self._ahead
        self._ahead = []
        return batch

    def _predict(self, batch: Sequence[ClaimedItem]) -> Outcome:
        self._telemetry.failpoint(Failpoint.PREDICTING)
        if self._triage.prepare(batch):
            # Only once the micro-batch before this one is durable: two are at stake, never three.
            self._writer.wait_until_free()
            self._ahead = self._feeder.take_whole()
            self._triage.prepare(self._ahead)
        outcome = self._triage.predict(batch)
        self._sizer.observe(len(batch), outcome.seconds)
        self._feeder.put_back(outcome.untried)
        self._telemetry.failpoint(Failpoint.PREDICTED)
        return outcome

    def _overdue(self, items: int, seconds: float) -> None:
        """Called by the predictor: what else this worker holds need not wait for it."""
        most_s = self._predictor.timeout_s
        logs.warning(
            "predict",
            f"a micro-batch of {items} is overdue: {seconds:.3g} s; it is ended after"
            f" {most_s:.3g} s",
        )
        self._telemetry.emit("overdue", items=items, seconds=seconds)
        self._predictor.forget([work.item.body for work in self._ahead])
        self._feeder.rest([*self._triage.let_go(), *self._ahead])
        self._ahead = []
