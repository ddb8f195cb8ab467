"""From numbers to words. Pure: what was measured goes in, verdicts and the exit code come out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from holdfast.contract.errors import EXIT_DONE, EXIT_FINDINGS, EXIT_NOT_JUDGED, EXIT_STOPPED
from workloads.drill.plan import Objective


class Word(StrEnum):
    HELD = "held"
    BROKEN = "broken"
    NOT_MEASURED = "not measured"  # of an objective only
    INCONCLUSIVE = "inconclusive"  # of a whole drill only: nothing was shown
    STOPPED = "stopped"  # of a whole drill only: by its stop condition, its budget or Ctrl-C


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    objective: Objective
    measured: float | None
    last: float | None = None
    """The same number in the run before."""

    @property
    def word(self) -> Word:
        if self.measured is None:
            return Word.NOT_MEASURED
        return Word.HELD if self.objective.bound.holds(self.measured) else Word.BROKEN

    @property
    def change(self) -> float | None:
        return None if self.measured is None or self.last is None else self.measured - self.last


def results(
    objectives: Iterable[Objective], measured: Mapping[str, float | None], last: Mapping[str, float | None]
) -> list[Result]:
    """`last` by promise: a metric may serve several."""
    return [
        Result(objective=each, measured=measured.get(each.bound.metric), last=last.get(each.promise))
        for each in objectives
    ]


def whole(judged: Sequence[Result], *, injected: bool, stopped: bool, deviated: bool = False) -> Word:
    """Broken outweighs stopped: what was seen before the stop stays seen. Deviated: never steady again."""
    if not injected:
        return Word.STOPPED if stopped else Word.INCONCLUSIVE
    if deviated or any(result.word is Word.BROKEN for result in judged):
        return Word.BROKEN
    if stopped:
        return Word.STOPPED
    unseen = any(result.word is Word.NOT_MEASURED and result.objective.essential for result in judged)
    return Word.INCONCLUSIVE if unseen or not judged else Word.HELD


_EXITS = {
    Word.BROKEN: EXIT_FINDINGS,
    Word.STOPPED: EXIT_STOPPED,
    Word.INCONCLUSIVE: EXIT_NOT_JUDGED,
    Word.HELD: EXIT_DONE,
}


def exit_code(words: Sequence[Word]) -> int:
    """Of several drills: the worst, broken before stopped before inconclusive. None at all is not judged."""
    return next((code for word, code in _EXITS.items() if word in words), EXIT_NOT_JUDGED)
