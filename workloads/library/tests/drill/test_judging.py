"""Tests verdicts of measurements, exit codes of verdicts, and the last line of the demo."""

import sys
from pathlib import Path

import pytest
from rich.console import Console

from holdfast.drill.demo import Demo, Size, describe_twin, judge
from holdfast.drill.errors import DrillError
from holdfast.drill.events import run_command
from holdfast.drill.plan import Bound, Objective, parse_bound, parse_objective
from holdfast.drill.verdict import Result, Verdict, exit_code, judge_drill
from holdfast.support.errors import InputError
from workloads.library.tests import sample


@pytest.mark.parametrize(
    ("bound", "measured", "verdict"),
    [
        (parse_bound("x <= 20"), 20, Verdict.HELD),
        (parse_bound("x <= 20"), 20.01, Verdict.BROKEN),
        (parse_bound("x >= 1"), 1, Verdict.HELD),
        (parse_bound("x >= 1"), 0, Verdict.BROKEN),
        (parse_bound("x = 143"), 143, Verdict.HELD),
        (parse_bound("x = 143"), 137, Verdict.BROKEN),
        (parse_bound("x = 0"), None, Verdict.NOT_MEASURED),
    ],
)
def test_an_objective_is_judged_by_its_bound(
    bound: Bound, measured: float | None, verdict: Verdict
) -> None:
    objective = Objective(promise="p", bound=bound)
    assert Result(objective=objective, measured=measured).verdict is verdict


OBJECTIVE = Objective(promise="p", bound=parse_bound("x <= 1"))
HELD = Result(objective=OBJECTIVE, measured=1)
BROKEN = Result(objective=OBJECTIVE, measured=2)
UNSEEN = Result(objective=OBJECTIVE, measured=None)


@pytest.mark.parametrize(
    ("judged", "injected", "stopped", "deviated", "verdict"),
    [
        ([HELD], True, False, False, Verdict.HELD),
        ([HELD, UNSEEN], True, False, False, Verdict.INCONCLUSIVE),
        ([UNSEEN, BROKEN], True, True, False, Verdict.BROKEN),
        ([HELD], True, True, False, Verdict.STOPPED),
        ([HELD], True, False, True, Verdict.BROKEN),
        ([], False, False, False, Verdict.INCONCLUSIVE),
        ([], False, True, False, Verdict.STOPPED),
        ([], True, False, False, Verdict.INCONCLUSIVE),
    ],
)
def test_a_drill_is_judged_by_its_objectives(
    judged: list[Result],
    injected: bool,
    stopped: bool,
    deviated: bool,
    verdict: Verdict,
) -> None:
    assert (
        judge_drill(
            judged,
            injected=injected,
            stopped=stopped,
            deviated=deviated,
        )
        is verdict
    )


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        ("hh", 0),
        ("hi", 3),
        ("is", 4),
        ("sbh", 1),
        ("", 3),
    ],
)
def test_the_worst_drill_decides_and_none_is_never_zero(verdicts: str, code: int) -> None:
    by_letter: dict[str, Verdict] = {}
    for verdict in Verdict:
        by_letter[verdict.value[0]] = verdict
    assert exit_code([by_letter[letter] for letter in verdicts]) == code


def test_objectives_are_parsed_and_invalid_bounds_refused() -> None:
    objective = parse_objective("back in time: recovered_s <= 1.5 s")
    bound = Bound(
        metric="recovered_s",
        operator="<=",
        value=1.5,
        unit="s",
    )
    assert objective == Objective(promise="back in time", bound=bound)
    assert str(bound) == "recovered_s <= 1.5 s"
    assert parse_bound(str(bound)) == bound
    for text in ("", "x", "x < 3", "x<=3", "x <= three", "x <= 3 s more"):
        with pytest.raises(InputError, match="cannot be read"):
            parse_bound(text)


# The last line of the demo names each objective that was not met.

DEMO = Demo(
    out=Path("out"),
    seed=1,
    size=Size(),
    console=Console(),
    owner="test",
)


@pytest.mark.parametrize(
    ("missing", "code", "text"),
    [
        (0, 0, "demo ok: training bit-exact after 6 evictions"),
        (1, 1, "demo broken: no document lost"),
    ],
)
def test_the_last_line_names_broken_objectives(
    missing: int,
    code: int,
    text: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    batch = sample.SUMMARY["batch"] | {"lost": missing}
    assert judge(DEMO, sample.SUMMARY | {"seconds": 1.0, "batch": batch}) == code
    assert capsys.readouterr().out.startswith(text)


def test_a_twin_with_the_same_result_is_reported_so() -> None:
    twin = {
        "lost_steps": 9,
        "bit_exact": True,
        "false_completion_steps": [],
    }
    assert describe_twin(twin, 240) == "9 steps done again, same result"


def test_a_command_may_exit_with_findings_where_that_is_expected() -> None:
    command = [sys.executable, "-c", "import sys; print('output'); sys.exit(1)"]
    assert run_command(command, done=(0, 1)) == "output\n"
    with pytest.raises(DrillError, match="exit 1"):
        run_command(command)
