"""From numbers to words. Pure: what was measured goes in, verdicts and the exit code come out."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from holdfast.drill.plan import Objective
from holdfast.vocabulary.exit_codes import EXIT_DONE, EXIT_FINDINGS, EXIT_NOT_JUDGED, EXIT_STOPPED


class Verdict(StrEnum):
    HELD = "held"
    BROKEN = "broken"
    NOT_MEASURED = "not measured"  # of an objective only
    INCONCLUSIVE = "inconclusive"  # of a whole drill only: nothing was shown
    STOPPED = "stopped"  # of a whole drill only: by its stop condition or Ctrl-C


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    objective: Objective
    measured: float | None

    @property
    def verdict(self) -> Verdict:
        if self.measured is None:
            return Verdict.NOT_MEASURED
        if self.objective.bound.holds(self.measured):
            return Verdict.HELD
        return Verdict.BROKEN

    def as_json(self) -> dict[str, Any]:
        objective = self.objective
        wanted = {
            "promise": objective.promise,
            "metric": objective.bound.metric,
            "wanted": str(objective.bound),
        }
        found = {"measured": self.measured, "verdict": self.verdict.value}
        return wanted | found


def drill_verdict(
    judged: Sequence[Result],
    *,
    injected: bool,
    stopped: bool,
    deviated: bool = False,
) -> Verdict:
    """Broken outweighs stopped: what was seen before the stop stays seen. Deviated: never steady
    again.
    """
    if not injected:
        return Verdict.STOPPED if stopped else Verdict.INCONCLUSIVE
    if deviated or any(result.verdict is Verdict.BROKEN for result in judged):
        return Verdict.BROKEN
    if stopped:
        return Verdict.STOPPED
    unseen = any(result.verdict is Verdict.NOT_MEASURED for result in judged)
    return Verdict.INCONCLUSIVE if unseen or not judged else Verdict.HELD


_EXITS = {
    Verdict.BROKEN: EXIT_FINDINGS,
    Verdict.STOPPED: EXIT_STOPPED,
    Verdict.INCONCLUSIVE: EXIT_NOT_JUDGED,
    Verdict.HELD: EXIT_DONE,
}


def exit_code(verdicts: Sequence[Verdict]) -> int:
    """Of several drills: the worst, broken before stopped before inconclusive. None at all is not
    judged.
    """
    return next((code for verdict, code in _EXITS.items() if verdict in verdicts), EXIT_NOT_JUDGED)
