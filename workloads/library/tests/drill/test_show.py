"""Every report shows the same verdict, and each can be read where it is meant to be read."""

import json
from collections.abc import Mapping
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from holdfast.commands import app
from holdfast.contract.errors import InputError
from holdfast.drill import store
from holdfast.drill.catalogue import DRILLS
from holdfast.drill.journal import journal
from holdfast.drill.plan import Drill
from holdfast.drill.runner import DrillRunner
from holdfast.drill.show import console
from holdfast.drill.show.numbers import sentence
from holdfast.drill.show.page import page
from workloads.library.tests.drill.by_hand import DRILL, ByHand, never_fires, no_log

QUIET = DrillRunner(log=no_log, alert=never_fires)


def journal_of(target: ByHand, drill: Drill = DRILL, last: Mapping[str, float | None] | None = None) -> dict[str, Any]:
    return journal(replace(QUIET, last=last or {}).run(drill, target))


HELD = journal_of(ByHand(), last={"recovered in time": 0.05, "nothing lost": 0.0})
BROKEN = journal_of(ByHand({"pulse": 1.0, "recovered_s": 0.1, "lost": 3.0}))
NOT_STEADY = journal_of(ByHand({"pulse": 0.0}), replace(DRILL, question="Does <b>markup</b> & more pass?"))
UNSEEN = journal_of(ByHand({"pulse": 1.0, "recovered_s": 0.1}))


class Outside(HTMLParser):
    """Collects what a browser would fetch or run, and whether tags close."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [name for name, _ in attrs if name in ("src", "href")] + [tag] * (tag in ("script", "link"))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.mark.parametrize("made", [HELD, BROKEN, NOT_STEADY, UNSEEN], ids=["held", "broken", "not steady", "unseen"])
def test_the_page_fetches_nothing_and_shows_the_verdict_first(made: dict[str, Any]) -> None:
    reader = Outside()
    html = page(made)
    reader.feed(html)
    assert not reader.fetched
    assert "url(" not in html and "@import" not in html
    assert sentence(made) in " ".join(reader.text)
    assert html.index(made["verdict"]) < html.index("What happened")


def test_text_from_outside_is_no_markup() -> None:
    assert "<b>markup" not in page(NOT_STEADY)
    assert "Does &lt;b&gt;markup&lt;/b&gt; &amp; more pass?" in page(NOT_STEADY)


def test_the_table_shows_the_change_against_the_last_run(capsys: pytest.CaptureFixture[str]) -> None:
    console.verdict(Console(width=200), HELD)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[-3:] == ["0.1", "0.05", "+0.05"]
    assert lines[2].split()[-1] == "same"
    assert lines[-1].startswith("by-hand: held; 3 of 3 objectives held; back after 0.1 s")


def test_a_drill_that_showed_nothing_names_the_step() -> None:
    assert "inconclusive; at step `steady state`: not steady: pulse >= 1 wanted" in sentence(NOT_STEADY)


def test_list_and_show_know_the_last_verdict(tmp_path: Path) -> None:
    store.write(store.fresh(tmp_path, "trainer-notice"), BROKEN)
    run = CliRunner()
    listed = run.invoke(app, ["drill", "list", "--out", str(tmp_path)])
    assert listed.exit_code == 0
    rows = {line.split()[0]: line for line in listed.output.splitlines()[1:]}
    assert set(rows) == set(DRILLS)
    assert "broken" in rows["trainer-notice"]
    shown = run.invoke(app, ["drill", "show", "trainer-notice", "--out", str(tmp_path)])
    assert shown.exit_code == 0
    assert "else nothing is injected" in shown.output
    assert "last run" in shown.output


@pytest.mark.parametrize("arguments", [["list"], ["show", "gke-delete"]], ids=["list", "show"])
def test_json_is_one_object_with_a_schema(arguments: list[str], tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["drill", *arguments, "--json", "--out", str(tmp_path)])
    assert done.exit_code == 0
    assert json.loads(done.output)["schema"].startswith("holdfast.drill-")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [(["--target", "node"], "make drill TARGET=node"), (["--target", "cluster"], "hits only what is named")],
    ids=["node", "cluster"],
)
def test_a_place_that_needs_more_names_it(arguments: list[str], text: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        CliRunner().invoke(app, ["drill", "run", *arguments, "--out", str(tmp_path)], catch_exceptions=False)
    assert text in error.value.lines()
