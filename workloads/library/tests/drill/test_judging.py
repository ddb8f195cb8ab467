"""From numbers to verdicts, and from verdicts to exit codes."""

import pytest

from holdfast.drill.catalogue import at_least, at_most, equal
from holdfast.drill.plan import Bound, Objective
from holdfast.drill.verdict import Result, Verdict, drill_verdict, exit_code, results


@pytest.mark.parametrize(
    ("bound", "measured", "verdict"),
    [
        (at_most("x", 20), 20, Verdict.HELD),
        (at_most("x", 20), 20.01, Verdict.BROKEN),
        (at_least("x", 1), 1, Verdict.HELD),
        (at_least("x", 1), 0, Verdict.BROKEN),
        (equal("x", 143), 143, Verdict.HELD),
        (equal("x", 143), 137, Verdict.BROKEN),
        (equal("x", 0), None, Verdict.NOT_MEASURED),
    ],
)
def test_an_objective_is_judged_by_its_bound(bound: Bound, measured: float | None, verdict: Verdict) -> None:
    assert Result(objective=Objective(promise="p", bound=bound), measured=measured).verdict is verdict


HELD = Result(objective=Objective(promise="a", bound=at_most("x", 1)), measured=1)
BROKEN = Result(objective=Objective(promise="b", bound=at_most("x", 1)), measured=2)
UNSEEN = Result(objective=Objective(promise="c", bound=at_most("x", 1)), measured=None)
OPTIONAL = Result(objective=Objective(promise="d", bound=at_most("x", 1), essential=False), measured=None)


@pytest.mark.parametrize(
    ("judged", "injected", "stopped", "deviated", "verdict"),
    [
        ([HELD], True, False, False, Verdict.HELD),
        ([HELD, OPTIONAL], True, False, False, Verdict.HELD),
        ([HELD, UNSEEN], True, False, False, Verdict.INCONCLUSIVE),
        ([UNSEEN, BROKEN], True, True, False, Verdict.BROKEN),
        ([HELD], True, True, False, Verdict.STOPPED),
        ([HELD], True, False, True, Verdict.BROKEN),
        ([], False, False, False, Verdict.INCONCLUSIVE),
        ([], False, True, False, Verdict.STOPPED),
        ([], True, False, False, Verdict.INCONCLUSIVE),
    ],
)
def test_the_verdict_of_a_drill_follows_from_its_objectives(
    judged: list[Result], injected: bool, stopped: bool, deviated: bool, verdict: Verdict
) -> None:
    assert drill_verdict(judged, injected=injected, stopped=stopped, deviated=deviated) is verdict


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        ([Verdict.HELD, Verdict.HELD], 0),
        ([Verdict.HELD, Verdict.INCONCLUSIVE], 3),
        ([Verdict.INCONCLUSIVE, Verdict.STOPPED], 4),
        ([Verdict.STOPPED, Verdict.BROKEN, Verdict.HELD], 1),
        ([], 3),
    ],
)
def test_the_worst_drill_decides_and_none_is_never_zero(verdicts: list[Verdict], code: int) -> None:
    assert exit_code(verdicts) == code


def test_a_number_is_compared_with_the_same_promise_of_the_last_run() -> None:
    (found,) = results([HELD.objective], {"x": 0.5}, {"a": 0.75, "b": 9})
    assert (found.measured, found.last, found.change) == (0.5, 0.75, -0.25)
