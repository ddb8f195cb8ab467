"""Predicts a micro-batch and finds which of its items is at fault when that fails.

Guarantees: one bad item costs its neighbours a second prediction, not their result; an item that
kills the predicting process is counted only once the device is seen to work without it, and never
during a stop.
"""

# Why it is so: infra/decisions/0041.

from collections.abc import Sequence

from holdfast.inference.errors import ItemFault, PredictorBroken, ProcessDied, TimedOut, redacted
from holdfast.inference.predictor.batch_time import BatchTime
from holdfast.inference.predictor.proxy import ProcessPredictor
from holdfast.inference.results.postgres import Failure
from holdfast.inference.values import Value, encode_value
from holdfast.inference.worker.micro_batch import ClaimedItem, Outcome
from holdfast.inference.worker.settings import WorkerSettings
from holdfast.runtime.shutdown import Shutdown

_LEAST_BOUND_S = 30.0
_TIMES = 20.0
_ENOUGH = 3
"""Items that hang one after the other, where none ever worked: then it is the device."""


def bound_s(
    timing: BatchTime,
    items: int,
    failures: int,
    *,
    most_s: float,
) -> float:
    """After which a prediction counts as hanging; an item that failed before is given more."""
    usual_s = timing.seconds(items)
    if usual_s:
        return min(most_s, max(_LEAST_BOUND_S, _TIMES * usual_s) * 2 ** min(failures, 10))
    return most_s


class Triage:
    def __init__(
        self, predictor: ProcessPredictor, shutdown: Shutdown, settings: WorkerSettings
    ) -> None:
        self._predictor = predictor
        self._shutdown = shutdown
        self._settle_s = settings.settle_s
        self._known_good: bytes | None = None
        self._learns = not settings.predict_timeout_s
        self._timing = BatchTime()
        """The bound of a prediction, up to the predictor's own; else that one holds."""
        self._most_s = predictor.timeout_s
        self._first_s = 0.0
        self._worked = 0
        """What the first prediction took, which may compile kernels; and the process that predicted
        last.
        """
        self._killers = 0
        """Items of this micro-batch that were alone with the process when it died."""
        self._mates: list[ClaimedItem] = []
        """Of a micro-batch that hung: to be tried alone."""

    def prepare(self, batch: Sequence[ClaimedItem]) -> bool:
        """Have the device begin with it when it is idle, where it can be handed over ahead and
        whole.
        """
        if not batch or any(work.claim.failures for work in batch):
            return False
        self._predictor.prepare([work.item.body for work in batch])
        return True

    def predict(self, batch: Sequence[ClaimedItem]) -> Outcome:
        """What failed before is tried alone at once: its neighbours need not suffer for it again."""
        found = Outcome()
        self._killers = 0
        untried = [work for work in batch if not work.claim.failures]
        if untried:
            self._bisect(untried, found)
        for work in batch:
            if work.claim.failures:
                self._bisect([work], found)
        if self._killers:
            self._require_working_device(
                all_died=self._killers == len(batch) - len(found.untried) > 1
            )
        return found

    def let_go(self) -> list[ClaimedItem]:
        """While a prediction is overdue: what waits for nothing else, and is no longer this
        worker's to predict.
        """
        if self._known_good is None:
            return []  # they are needed, to show whether anything works
        left = self._mates
        self._mates = []
        return left

    def _bisect(self, batch: Sequence[ClaimedItem], found: Outcome) -> None:
        try:
            answers = self._timed(batch, found)
            found.values.update(
                {
                    work.claim: encode_value(value)
                    for work, value in zip(batch, answers, strict=True)
                }
            )
            self._known_good = batch[-1].item.body
        except PredictorBroken:
            raise
        except Exception as error:  # noqa: BLE001  a predictor is a user's code and may raise anything
            if isinstance(error, ProcessDied):
                self._require_not_leaving(error, alone=len(batch) == 1)
            if len(batch) == 1:
                self._killers += isinstance(error, ProcessDied)
                found.failures.append(_failure(batch[0], error))
                return
            if isinstance(error, TimedOut):
                self._one_by_one(batch, found)
                return
            middle = len(batch) // 2
            self._bisect(batch[:middle], found)
            self._bisect(batch[middle:], found)

    def _one_by_one(self, batch: Sequence[ClaimedItem], found: Outcome) -> None:
        """Not in halves: each with the guilty one would take a whole bound more."""
        self._mates = list(batch)
        while self._mates and self._killers < (_ENOUGH if self._known_good is None else 1):
            self._bisect([self._mates.pop(0)], found)
        found.untried = self._mates
        self._mates = []

    def _timed(self, batch: Sequence[ClaimedItem], found: Outcome) -> list[Value]:
        bodies = [work.item.body for work in batch]
        again_s = 0.0 if self._predictor.pid == self._worked else 2 * self._first_s
        if self._learns:
            wanted_s = bound_s(
                self._timing, len(batch), max(w.claim.failures for w in batch), most_s=self._most_s
            )
            self._predictor.timeout_s = max(wanted_s, min(again_s, self._most_s))
        answers = self._predictor.predict(bodies)
        seconds = self._predictor.seconds  # it may have begun before this call
        self._timing.observe(len(bodies), seconds)
        self._first_s = self._first_s or seconds
        self._worked = self._predictor.pid or 0
        found.seconds += seconds
        return answers

    def _require_not_leaving(self, died: ProcessDied, *, alone: bool) -> None:
        # A machine that goes away may kill the child a moment before us.
        if self._shutdown.wait(self._settle_s if alone else 0.0):
            raise PredictorBroken(f"{died}, at a stop") from died

    def _require_working_device(self, *, all_died: bool) -> None:
        """PredictorBroken when the process dies of anything: then it was no item's fault."""
        if self._known_good is None:
            # Nothing ever worked here. One item may be all that is left of a job; of several, not
            # all are bad.
            if all_died:
                raise PredictorBroken("every item of a micro-batch kills the predicting process")
            return
        self._predictor.timeout_s = self._most_s
        try:
            self._predictor.predict([self._known_good])
        except ProcessDied as died:
            raise PredictorBroken(f"{died}, with an item that it could predict before") from died


def _failure(work: ClaimedItem, error: Exception) -> Failure:
    if isinstance(error, TimedOut):
        why = f"{error}; --set predict_timeout_s=N gives it more"
    else:
        why = str(error)
    return Failure(
        claim=work.claim,
        error_class=error.error_class if isinstance(error, ItemFault) else type(error).__name__,
        message=redacted(why, content=work.item.body),
        digest=work.item.digest,
    )
