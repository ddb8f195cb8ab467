"""From numbers to verdicts, and from verdicts to exit codes."""

import pytest

from workloads.drill.catalogue import at_least, at_most, equal
from workloads.drill.plan import Bound, Objective
from workloads.drill.verdict import Result, Word, exit_code, results, whole


@pytest.mark.parametrize(
    ("bound", "measured", "word"),
    [
        (at_most("x", 20), 20, Word.HELD),
        (at_most("x", 20), 20.01, Word.BROKEN),
        (at_least("x", 1), 1, Word.HELD),
        (at_least("x", 1), 0, Word.BROKEN),
        (equal("x", 143), 143, Word.HELD),
        (equal("x", 143), 137, Word.BROKEN),
        (equal("x", 0), None, Word.NOT_MEASURED),
    ],
)
def test_an_objective_is_judged_by_its_bound(bound: Bound, measured: float | None, word: Word) -> None:
    assert Result(objective=Objective(promise="p", bound=bound), measured=measured).word is word


HELD = Result(objective=Objective(promise="a", bound=at_most("x", 1)), measured=1)
BROKEN = Result(objective=Objective(promise="b", bound=at_most("x", 1)), measured=2)
UNSEEN = Result(objective=Objective(promise="c", bound=at_most("x", 1)), measured=None)
OPTIONAL = Result(objective=Objective(promise="d", bound=at_most("x", 1), essential=False), measured=None)


@pytest.mark.parametrize(
    ("judged", "injected", "stopped", "deviated", "word"),
    [
        ([HELD], True, False, False, Word.HELD),
        ([HELD, OPTIONAL], True, False, False, Word.HELD),
        ([HELD, UNSEEN], True, False, False, Word.INCONCLUSIVE),
        ([UNSEEN, BROKEN], True, True, False, Word.BROKEN),
        ([HELD], True, True, False, Word.STOPPED),
        ([HELD], True, False, True, Word.BROKEN),
        ([], False, False, False, Word.INCONCLUSIVE),
        ([], False, True, False, Word.STOPPED),
        ([], True, False, False, Word.INCONCLUSIVE),
    ],
)
def test_the_whole_drill_follows_from_its_parts(
    judged: list[Result], injected: bool, stopped: bool, deviated: bool, word: Word
) -> None:
    assert whole(judged, injected=injected, stopped=stopped, deviated=deviated) is word


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ([Word.HELD, Word.HELD], 0),
        ([Word.HELD, Word.INCONCLUSIVE], 3),
        ([Word.INCONCLUSIVE, Word.STOPPED], 4),
        ([Word.STOPPED, Word.BROKEN, Word.HELD], 1),
        ([], 3),
    ],
)
def test_the_worst_drill_decides_and_none_is_never_zero(words: list[Word], code: int) -> None:
    assert exit_code(words) == code


def test_a_number_is_compared_with_the_same_promise_of_the_last_run() -> None:
    (found,) = results([HELD.objective], {"x": 0.5}, {"a": 0.75, "b": 9})
    assert (found.measured, found.last, found.change) == (0.5, 0.75, -0.25)
