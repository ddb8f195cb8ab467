"""Several runs of one drill: what held how often, and what the numbers spread over."""

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.drill.console import together
from holdfast.drill.runner import DrillRunner, Refused
from holdfast.drill.series import floor
from holdfast.drill.suite import DrillSuite
from workloads.library.tests.drill.by_hand import DRILL, ByHand, never_fires, no_log

NUMBERS = ({"lost": 0.0, "recovered_s": 0.05}, {"lost": None, "recovered_s": 0.15}, {"lost": 2.0, "recovered_s": 0.1})


def suite(out: Path, targets: list[ByHand], runner: DrillRunner | None = None) -> DrillSuite:
    rest = iter(targets)
    made = runner or DrillRunner(log=no_log, alert=never_fires)
    return DrillSuite(out=out, build=lambda _drill, _folder: next(rest), runner=lambda _last: made)


def test_three_runs_show_the_spread_of_each_number_and_what_was_not_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [ByHand({"pulse": 1.0} | each) for each in NUMBERS]
    code, result = suite(tmp_path, runs).run([DRILL], 3)
    (made,) = result["series"]
    assert code == 1, "one of them broke"
    assert [journal["verdict"] for journal in result["drills"]] == ["held", "inconclusive", "broken"]
    assert (made["runs"], made["held"], made["judged"]) == (3, 1, 2)
    by_promise: dict[str, Any] = {each["promise"]: each for each in made["objectives"]}
    lost, back = by_promise["nothing lost"], by_promise["recovered in time"]
    assert (lost["held"], lost["judged"], lost["not_measured"], lost["most"]) == (1, 2, 1, 2.0)
    assert (back["held"], back["least"], back["median"], back["most"]) == (3, 0.05, 0.1, 0.15)
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[-5:] == ["1", "of", "2", "1", "0"] or "1 of 2" in line for line in lines)
    assert lines[-1] == together(made)
    assert json.loads(json.dumps(result))["series"][0]["schema"] == "holdfast.drill-series/1"


def test_one_run_makes_no_series(tmp_path: Path) -> None:
    code, result = suite(tmp_path, [ByHand()]).run([DRILL])
    assert (code, set(result)) == (0, {"schema", "drills"})


def test_a_drill_that_was_stopped_is_not_played_again(tmp_path: Path) -> None:
    def no(*_: object) -> None:
        raise Refused("no")

    first = ByHand()
    code, result = suite(tmp_path, [first], DrillRunner(log=no_log, consent=no)).run([DRILL], 5)
    assert (code, len(result["drills"]), result["series"][0]["judged"]) == (4, 1, 0)


@pytest.mark.parametrize(
    ("held", "judged", "share"),
    [(0, 0, None), (0, 5, 0.0), (1, 1, 0.1), (5, 5, 0.631), (22, 22, 0.9006), (9, 10, 0.6632)],
)
def test_the_share_is_the_exact_lower_bound_at_90_percent(held: int, judged: int, share: float | None) -> None:
    assert floor(held, judged) == (share if share is None else pytest.approx(share, abs=1e-3))


def test_the_line_states_what_so_few_runs_can_show() -> None:
    made = {"drill": "x", "runs": 5, "held": 5, "judged": 5, "holds_at_least": 0.631, "confidence": 0.9}
    assert together(made) == "x: held in 5 of 5 judged runs; so it holds in at least 63 % of runs (90 % confidence)"
