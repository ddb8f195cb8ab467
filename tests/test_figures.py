"""The page of figures says what the benches printed, and each bench on it can be run again."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from workloads.library.tests.bench import figures

ROOT = Path(__file__).parents[1]
RECORDED = sorted(figures.RECORDED.glob("*.json"))
TARGETS = set(
    re.findall(r"^([a-z-]+):", (ROOT / "workloads/library/library.mk").read_text(), re.MULTILINE)
)


def test_the_page_is_what_was_recorded() -> None:
    assert figures.PAGE.read_text() == figures.page(figures.RECORDED), (
        "python -m workloads.library.tests.bench.figures"
    )


def test_the_page_has_a_row_for_each_bench() -> None:
    rows = re.findall(r"^\| `make (bench-[a-z-]+)` \|", figures.PAGE.read_text(), re.MULTILINE)
    assert rows == [*figures.TEXTS]
    assert {file.stem for file in RECORDED} == {*figures.TEXTS}


def test_readme_has_five_recorded_figures_with_their_commands() -> None:
    readme = figures.README.read_text()
    assert readme.count(figures.BEGIN) == 1
    rows = figures.summary(figures.RECORDED)
    assert readme == figures.with_summary(readme, rows), (
        "python -m workloads.library.tests.bench.figures"
    )
    assert len(re.findall(r"\| `make bench-[a-z-]+` \|$", rows, re.MULTILINE)) == 5


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.stem)
def test_a_recorded_bench_can_be_run_again(file: Path) -> None:
    recorded = json.loads(file.read_text())
    make, target, *settings = recorded["command"].split()
    assert make == "make"
    assert target == file.stem
    assert target in TARGETS
    for setting in settings:
        assert "=" in setting
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", recorded["day"])
    goals = recorded["result"]["goals"]
    assert goals
    for goal in goals.values():
        assert goal in (True, False, "not run")


def test_a_missed_goal_is_shown(tmp_path: Path) -> None:
    result = {
        "goals": {
            "fast_enough": False,
            "exact": True,
            "alone": "not run",
        }
    }
    facts = {
        "command": "make bench-x",
        "day": "2026-11-23",
        "machine": "2 cores",
        "result": result,
    }
    (tmp_path / "bench-x.json").write_text(json.dumps(facts))
    text = figures.page(tmp_path)
    assert "2026-11-23; 2 cores; 1 of 3 goals met." in text
    assert "- Met: exact.\n- **Missed**: fast enough.\n- Not run: alone.\n" in text


@pytest.fixture
def printing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Returns a function: `printing(text)` makes a bench-x that prints this and fails, with records
    in a folder of the test.
    """
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    monkeypatch.setattr(figures, "RECORDED", tmp_path)

    def write_makefile(text: str) -> None:
        (tmp_path / "Makefile").write_text(f"bench-x:\n\t@echo '{text}'; exit 1\n")

    return write_makefile


@pytest.mark.parametrize("text", ['{"n": 1}', "no figures", "{half"])
def test_a_bench_without_goals_is_not_recorded(
    tmp_path: Path,
    printing: Callable[[str], None],
    text: str,
) -> None:
    printing(text)
    with pytest.raises(SystemExit, match="nothing was recorded"):
        figures.record("bench-x")
    assert not (tmp_path / "bench-x.json").exists()


def test_a_recorded_part_leaves_the_others_alone(
    tmp_path: Path, printing: Callable[[str], None]
) -> None:
    printing('{"n": 2, "new": {"n": 1}, "goals": {"met": true}}')
    result = {
        "n": 1,
        "old": {"n": 1},
        "goals": {"met": False, "exact": True},
    }
    facts = {
        "command": "make bench-x",
        "day": "2026-11-23",
        "machine": "2 cores",
        "result": result,
    }
    (tmp_path / "bench-x.json").write_text(json.dumps(facts))
    figures.record("bench-x", "ONLY=new")
    recorded = json.loads((tmp_path / "bench-x.json").read_text())
    assert recorded["result"] == {
        **result,
        "new": {"n": 1},
        "goals": {"met": True, "exact": True},
    }
    day = recorded["parts"]["new"]
    assert f"2026-11-23, new {day}; 2 cores; 2 of 2 goals met." in figures.page(tmp_path)
