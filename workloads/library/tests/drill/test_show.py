"""What the terminal shows of drills and of their verdicts."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast.commands import app
from holdfast.contract.errors import InputError
from holdfast.drill import console, store
from holdfast.drill.catalogue import drills
from holdfast.drill.console import sentence
from holdfast.drill.plan import Drill
from holdfast.drill.runner import DrillRunner
from workloads.library.tests.drill.by_hand import DRILL, ByHand, no_log

QUIET = DrillRunner(log=no_log)


def journal_of(target: ByHand, drill: Drill = DRILL, last: Mapping[str, float | None] | None = None) -> dict[str, Any]:
    return replace(QUIET, last=last or {}).run(drill, target).journal()


HELD = journal_of(ByHand(), last={"recovered in time": 0.05, "nothing lost": 0.0})
BROKEN = journal_of(ByHand({"pulse": 1.0, "recovered_s": 0.1, "lost": 3.0}))
NOT_STEADY = journal_of(ByHand({"pulse": 0.0}))


def test_the_table_shows_the_change_against_the_last_run(capsys: pytest.CaptureFixture[str]) -> None:
    console.verdict(HELD)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[-3:] == ["0.1", "0.05", "+0.05"]
    assert lines[2].split()[-1] == "same"
    assert lines[-1].startswith("by-hand: held; 2 of 3 objectives held; back after 0.1 s")


def test_a_drill_that_showed_nothing_names_the_step() -> None:
    assert "inconclusive; at step `steady state`: not steady: pulse >= 1 wanted" in sentence(NOT_STEADY)


def test_the_list_knows_the_last_verdict(tmp_path: Path) -> None:
    store.write(store.fresh(tmp_path, "trainer-notice"), BROKEN)
    run = CliRunner()
    listed = run.invoke(app, ["drill", "--list", "--out", str(tmp_path)])
    assert listed.exit_code == 0
    rows = {line.split()[0]: line for line in listed.output.splitlines()[1:]}
    assert set(rows) == set(drills())
    assert "broken" in rows["trainer-notice"]
    done = run.invoke(app, ["drill", "--list", "--json", "--out", str(tmp_path)])
    assert json.loads(done.output)["schema"] == "holdfast.drill-list/1"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [(["--target", "node"], "make drill-node"), (["--target", "cluster"], "needs the names of its targets")],
    ids=["node", "cluster"],
)
def test_a_place_that_needs_more_names_it(arguments: list[str], text: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        CliRunner().invoke(app, ["drill", *arguments, "--out", str(tmp_path)], catch_exceptions=False)
    assert text in error.value.lines()
