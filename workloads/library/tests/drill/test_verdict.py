"""The last line of the demo names each promise that was not kept."""

import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from holdfast.drill.demo import Demo, Size, twin_outcome, verdict
from holdfast.drill.errors import DrillError
from holdfast.drill.events import completed

DEMO = Demo(out=Path("out"), seed=1, data=None, size=Size(), console=Console(), owner="test")
NAIVE = {"lost_steps": 9, "bit_exact": False, "false_completion_steps": [26]}
KEPT: dict[str, dict[str, Any]] = {
    "training": {
        "evictions": 6,
        "bit_exact": True,
        "false_completions": 0,
        "lost_steps": 4,
        "steps": 240,
        "naive": NAIVE,
    },
    "batch": {"documents": 5, "kills": 8, "lost": 0, "duplicated": 0, "same_scores": True},
}


def test_all_promises_kept_is_ok(capsys: pytest.CaptureFixture[str]) -> None:
    assert verdict(DEMO, KEPT | {"seconds": 1.0}) == 0
    assert capsys.readouterr().out.startswith("demo ok: ")


@pytest.mark.parametrize(
    ("area", "change", "promise"),
    [
        ("training", {"bit_exact": False}, "identical to the last bit"),
        ("training", {"false_completions": 1}, "no false completion"),
        ("batch", {"lost": 1}, "no document lost"),
        ("batch", {"duplicated": 1}, "no document stored twice"),
        ("batch", {"same_scores": False}, "same scores as undisturbed"),
    ],
)
def test_a_broken_promise_is_named(
    area: str, change: dict[str, Any], promise: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verdict(DEMO, KEPT | {"seconds": 1.0, area: KEPT[area] | change}) == 1
    output = capsys.readouterr().out
    assert output.startswith("demo broken: ")
    assert promise in output


def test_a_twin_that_fared_well_is_not_slandered() -> None:
    assert (
        twin_outcome(NAIVE | {"false_completion_steps": [], "bit_exact": True}, 240)
        == "9 steps done again, same result"
    )


def test_a_command_may_exit_with_findings_where_that_is_expected() -> None:
    command = [sys.executable, "-c", "import sys; print('output'); sys.exit(1)"]
    assert completed(command, done=(0, 1)) == "output\n"
    with pytest.raises(DrillError, match="exit 1"):
        completed(command)
