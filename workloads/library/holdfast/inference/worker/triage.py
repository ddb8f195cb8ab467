"""The triage of a micro-batch: it predicts the items and finds the one at fault if that fails.

Guarantees: with one bad item its neighbors are predicted again and get their results. A failure of
an item that kills the predicting process counts only after the device has worked without it, and
never during a stop.
"""

# Decision: infra/decisions/0041.

from collections.abc import Sequence

from holdfast.inference.errors import ItemFault, PredictorBroken, ProcessDied, TimedOut, redact
from holdfast.inference.predictor.batch_time import BatchTime
from holdfast.inference.predictor.predictor_client import ProcessPredictor
from holdfast.inference.results.postgres import Failure
from holdfast.inference.values import Value, encode_value
from holdfast.inference.worker.micro_batch import ClaimedItem, Outcome
from holdfast.inference.worker.settings import WorkerSettings
from holdfast.runtime.shutdown import Shutdown

_LEAST_BOUND_S = 30.0
_TIMES = 20.0
_MAX_KILLERS = 3
"""The number of items that hang in a row before the device is at fault, if none ever worked."""


def bound_s(
    timing: BatchTime,
    items: int,
    failures: int,
    *,
    most_s: float,
) -> float:
    """Returns the time after which a prediction counts as hung; an item that failed gets more."""
    usual_s = timing.seconds(items)
    if not usual_s:
        return most_s
    base_s = max(_LEAST_BOUND_S, _TIMES * usual_s)
    return min(most_s, base_s * 2 ** min(failures, 10))


class Triage:
    def __init__(
        self, predictor: ProcessPredictor, shutdown: Shutdown, settings: WorkerSettings
    ) -> None:
        self._predictor = predictor
        self._shutdown = shutdown
        self._settle_s = settings.settle_s
        self._good_body: bytes | None = None
        """A body that was predicted before, or None."""
        self._learns_timeout = not settings.predict_timeout_s
        self._timing = BatchTime()
        self._most_s = predictor.timeout_s
        self._first_s = 0.0
        """The time of the first prediction, which may compile kernels."""
        self._last_pid = 0
        """The process of the last prediction."""
        self._killers = 0
        """The number of items of this micro-batch that alone ended the process."""
        self._waiting: list[ClaimedItem] = []
        """Items of a micro-batch that hung, which are tried one by one."""

    def prepare(self, batch: Sequence[ClaimedItem]) -> bool:
        """Sends a micro-batch ahead if none of its items failed before; returns True if sent."""
        if not batch or any(work.claim.failures for work in batch):
            return False
        self._predictor.prepare([work.item.body for work in batch])
        return True

    def predict(self, batch: Sequence[ClaimedItem]) -> Outcome:
        """Predicts a micro-batch. Items that failed before are tried alone, to spare the others."""
        outcome = Outcome()
        self._killers = 0
        fresh = [work for work in batch if not work.claim.failures]
        if fresh:
            self._bisect(fresh, outcome)
        for work in batch:
            if work.claim.failures:
                self._bisect([work], outcome)
        if self._killers:
            tried = len(batch) - len(outcome.untried)
            self._require_working_device(all_died=tried > 1 and self._killers == tried)
        return outcome

    def pop_waiting(self) -> list[ClaimedItem]:
        """Removes and returns items that wait for an overdue prediction."""
        if self._good_body is None:
            return []  # they are needed to show whether anything works
        waiting = self._waiting
        self._waiting = []
        return waiting

    def _bisect(self, batch: Sequence[ClaimedItem], outcome: Outcome) -> None:
        try:
            values = self._predict(batch, outcome)
            # All or none: a value that cannot be encoded fails the whole batch.
            texts = [encode_value(value) for value in values]
            for work, text in zip(batch, texts, strict=True):
                outcome.values[work.claim] = text
            self._good_body = batch[-1].item.body
        except PredictorBroken:
            raise
        except Exception as error:  # noqa: BLE001  a predictor is a user's code and may raise anything
            is_alone = len(batch) == 1
            if isinstance(error, ProcessDied):
                self._require_not_leaving(error, alone=is_alone)
            if is_alone:
                self._killers += isinstance(error, ProcessDied)
                outcome.failures.append(_make_failure(batch[0], error))
                return
            if isinstance(error, TimedOut):
                self._predict_one_by_one(batch, outcome)
                return
            middle = len(batch) // 2
            self._bisect(batch[:middle], outcome)
            self._bisect(batch[middle:], outcome)

    def _predict_one_by_one(self, batch: Sequence[ClaimedItem], outcome: Outcome) -> None:
        """Tries items alone: with bisection, every half with the bad item would hit the timeout."""
        self._waiting = list(batch)
        while self._waiting:
            max_killers = _MAX_KILLERS if self._good_body is None else 1
            if self._killers >= max_killers:
                break
            self._bisect([self._waiting.pop(0)], outcome)
        outcome.untried = self._waiting
        self._waiting = []

    def _predict(self, batch: Sequence[ClaimedItem], outcome: Outcome) -> list[Value]:
        bodies = [work.item.body for work in batch]
        if self._learns_timeout:
            self._predictor.timeout_s = self._find_timeout(batch)
        values = self._predictor.predict(bodies)
        seconds = self._predictor.seconds  # the prediction may have started before this call
        self._timing.observe(len(bodies), seconds)
        self._first_s = self._first_s or seconds
        self._last_pid = self._predictor.pid or 0
        outcome.seconds += seconds
        return values

    def _find_timeout(self, batch: Sequence[ClaimedItem]) -> float:
        failures = max(work.claim.failures for work in batch)
        timeout_s = bound_s(
            self._timing,
            len(batch),
            failures,
            most_s=self._most_s,
        )
        if self._predictor.pid == self._last_pid:
            return timeout_s
        # A new process may compile kernels in its first prediction.
        return max(timeout_s, min(2 * self._first_s, self._most_s))

    def _require_not_leaving(self, error: ProcessDied, *, alone: bool) -> None:
        # A machine that is preempted may kill the child a moment before us.
        if self._shutdown.wait(self._settle_s if alone else 0.0):
            raise PredictorBroken(f"{error}, at a stop") from error

    def _require_working_device(self, *, all_died: bool) -> None:
        """Raises PredictorBroken if the process dies with any item, so that none is at fault."""
        if self._good_body is None:
            # Nothing ever worked here. A single item may be bad, but not all of several.
            if all_died:
                raise PredictorBroken("every item of a micro-batch kills the predicting process")
            return
        self._predictor.timeout_s = self._most_s
        try:
            self._predictor.predict([self._good_body])
        except ProcessDied as error:
            message = f"{error}, with an item that it could predict before"
            raise PredictorBroken(message) from error


def _make_failure(work: ClaimedItem, error: Exception) -> Failure:
    message = str(error)
    if isinstance(error, TimedOut):
        message += "; --set predict_timeout_s=N gives it more"
    error_class = type(error).__name__
    if isinstance(error, ItemFault):
        error_class = error.error_class
    return Failure(
        claim=work.claim,
        error_class=error_class,
        message=redact(message, content=work.item.body),
        digest=work.item.digest,
    )
