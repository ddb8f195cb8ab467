"""From numbers to verdicts, and from verdicts to exit codes."""

import pytest

from holdfast.contract.errors import InputError
from holdfast.drill.plan import Bound, Objective, bound, promised
from holdfast.drill.verdict import Result, Verdict, drill_verdict, exit_code


@pytest.mark.parametrize(
    ("wanted", "measured", "verdict"),
    [
        (bound("x <= 20"), 20, Verdict.HELD),
        (bound("x <= 20"), 20.01, Verdict.BROKEN),
        (bound("x >= 1"), 1, Verdict.HELD),
        (bound("x >= 1"), 0, Verdict.BROKEN),
        (bound("x = 143"), 143, Verdict.HELD),
        (bound("x = 143"), 137, Verdict.BROKEN),
        (bound("x = 0"), None, Verdict.NOT_MEASURED),
    ],
)
def test_an_objective_is_judged_by_its_bound(wanted: Bound, measured: float | None, verdict: Verdict) -> None:
    assert Result(objective=Objective(promise="p", bound=wanted), measured=measured).verdict is verdict


HELD = Result(objective=Objective(promise="a", bound=bound("x <= 1")), measured=1)
BROKEN = Result(objective=Objective(promise="b", bound=bound("x <= 1")), measured=2)
UNSEEN = Result(objective=Objective(promise="c", bound=bound("x <= 1")), measured=None)
OPTIONAL = Result(objective=Objective(promise="d", bound=bound("x <= 1"), essential=False), measured=None)


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


def test_a_promise_is_read_with_its_bound_and_its_unit() -> None:
    (found,) = promised("back in time: recovered_s <= 1.5 s", essential=False)
    wanted = Bound(metric="recovered_s", operator="<=", value=1.5, unit="s")
    assert found == Objective(promise="back in time", bound=wanted, essential=False)
    assert str(found.bound) == "recovered_s <= 1.5 s" and bound(str(found.bound)) == wanted


@pytest.mark.parametrize("text", ["", "x", "x < 3", "x<=3", "x <= three", "x <= 3 s more"])
def test_what_is_no_bound_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        bound(text)
