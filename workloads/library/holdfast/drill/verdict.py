"""Turns measurements into verdicts and exit codes, without side effects."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from holdfast.drill.plan import Objective
from holdfast.vocabulary.exit_codes import EXIT_DONE, EXIT_FINDINGS, EXIT_NOT_JUDGED, EXIT_STOPPED


class Verdict(StrEnum):
    HELD = "held"
    BROKEN = "broken"
    NOT_MEASURED = "not measured"  # objectives only
    INCONCLUSIVE = "inconclusive"  # whole drills only: nothing was proven
    STOPPED = "stopped"  # whole drills only: by the stop condition or Ctrl-C


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
        return {
            "promise": objective.promise,
            "metric": objective.bound.metric,
            "wanted": str(objective.bound),
            "measured": self.measured,
            "verdict": self.verdict.value,
        }


def judge_drill(
    results: Sequence[Result],
    *,
    injected: bool,
    stopped: bool,
    deviated: bool = False,
) -> Verdict:
    """Returns the verdict of a whole drill.

    Broken outweighs stopped, because a failure before the stop remains one. `deviated` says that
    the steady state did not return.
    """
    verdicts = {result.verdict for result in results}
    if not injected:
        return Verdict.STOPPED if stopped else Verdict.INCONCLUSIVE
    if deviated or Verdict.BROKEN in verdicts:
        return Verdict.BROKEN
    if stopped:
        return Verdict.STOPPED
    if not verdicts or Verdict.NOT_MEASURED in verdicts:
        return Verdict.INCONCLUSIVE
    return Verdict.HELD


_EXITS = {
    Verdict.BROKEN: EXIT_FINDINGS,
    Verdict.STOPPED: EXIT_STOPPED,
    Verdict.INCONCLUSIVE: EXIT_NOT_JUDGED,
    Verdict.HELD: EXIT_DONE,
}


def exit_code(verdicts: Sequence[Verdict]) -> int:
    """Returns the code of the worst verdict: broken, stopped, inconclusive, held.

    Returns EXIT_NOT_JUDGED without any verdict.
    """
    for verdict, code in _EXITS.items():
        if verdict in verdicts:
            return code
    return EXIT_NOT_JUDGED
