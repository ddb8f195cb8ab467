"""Predicts a micro-batch and finds which of its items is at fault when that fails.

Guarantees: one bad item costs its neighbours a second prediction, not their result; an item that kills the
predicting process is counted only once the device is seen to work without it, and never during a stop.
"""

# Why it is so: infra/decisions/0041.

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.inference.errors import ItemFault, PredictorBroken, ProcessDied, redacted
from holdfast.inference.predictor.proxy import ProcessPredictor
from holdfast.inference.predictor.spec import Predictor
from holdfast.inference.results.postgres import Claim, Failure
from holdfast.inference.values import Value, encode_value
from holdfast.inference.worker.micro_batch import Outcome, Work
from holdfast.runtime.shutdown import Shutdown


@dataclass
class _Findings:
    values: dict[Claim, str] = field(default_factory=dict[Claim, str])
    failures: list[Failure] = field(default_factory=list[Failure])
    killers: list[Failure] = field(default_factory=list[Failure])
    """Alone with the process when it died."""
    seconds: float = 0.0


class Triage:
    def __init__(self, predictor: Predictor, shutdown: Shutdown, *, settle_s: float) -> None:
        self._predictor, self._shutdown, self._settle_s = predictor, shutdown, settle_s
        self._pipeline = predictor if isinstance(predictor, ProcessPredictor) else None
        self._known_good: bytes | None = None

    def prepare(self, batch: Sequence[Work]) -> bool:
        """Have the device begin with it when it is idle, where it can be handed over ahead and whole."""
        if self._pipeline is None or not batch or any(work.claim.failures for work in batch):
            return False
        self._pipeline.prepare([work.item.body for work in batch])
        return True

    def predict(self, batch: Sequence[Work]) -> Outcome:
        """What failed before is tried alone at once: its neighbours need not suffer for it again."""
        found = _Findings()
        untried = [work for work in batch if not work.claim.failures]
        if untried:
            self._bisect(untried, found)
        for work in batch:
            if work.claim.failures:
                self._bisect([work], found)
        if found.killers:
            self._require_working_device(all_died=len(found.killers) == len(batch) > 1)
        return Outcome(values=found.values, failures=[*found.failures, *found.killers], seconds=found.seconds)

    def _bisect(self, batch: Sequence[Work], found: _Findings) -> None:
        try:
            answers = self._timed([work.item.body for work in batch], found)
            found.values.update({work.claim: encode_value(value) for work, value in zip(batch, answers, strict=True)})
            self._known_good = batch[-1].item.body
        except PredictorBroken:
            raise
        except Exception as error:  # noqa: BLE001  a predictor is a user's code and may raise anything
            if isinstance(error, ProcessDied):
                self._require_not_leaving(error, alone=len(batch) == 1)
            if len(batch) == 1:
                (found.killers if isinstance(error, ProcessDied) else found.failures).append(_failure(batch[0], error))
                return
            middle = len(batch) // 2
            self._bisect(batch[:middle], found)
            self._bisect(batch[middle:], found)

    def _timed(self, bodies: list[bytes], found: _Findings) -> list[Value]:
        began = time.monotonic()
        answers = self._predictor.predict(bodies)
        # A pipeline began before it was asked.
        found.seconds += self._pipeline.seconds if self._pipeline else time.monotonic() - began
        return answers

    def _require_not_leaving(self, died: ProcessDied, *, alone: bool) -> None:
        # A machine that goes away may kill the child a moment before us.
        if self._shutdown.wait(self._settle_s if alone else 0.0):
            raise PredictorBroken(f"{died}, at a stop") from died

    def _require_working_device(self, *, all_died: bool) -> None:
        """PredictorBroken when the process dies of anything: then it was no item's fault."""
        if self._known_good is None:
            # Nothing ever worked here. One item may be all that is left of a job; of several, not all are bad.
            if all_died:
                raise PredictorBroken("every item of a micro-batch kills the predicting process")
            return
        try:
            self._predictor.predict([self._known_good])
        except ProcessDied as died:
            raise PredictorBroken(f"{died}, with an item that it could predict before") from died


def _failure(work: Work, error: Exception) -> Failure:
    return Failure(
        claim=work.claim,
        error_class=error.error_class if isinstance(error, ItemFault) else type(error).__name__,
        message=redacted(str(error), content=work.item.body),
        digest=work.item.digest,
    )
