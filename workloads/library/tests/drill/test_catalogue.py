"""Tests of the drills as data: their checks, their choice and their output."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.commands import app
from holdfast.drill import console
from holdfast.drill.catalogue import BUILT_IN, GROUP, drills, list_by_place
from holdfast.drill.commands import build_local, choose_drills
from holdfast.drill.plan import RECOVERED, Blast, Drill, Place, parse_objective
from holdfast.drill.runner import DrillRun
from holdfast.drill.targets import cluster
from holdfast.drill.targets.local import Local
from holdfast.support.errors import InputError
from holdfast.support.extensions import load_extensions
from workloads.library.tests import distribution
from workloads.library.tests.drill.by_hand import DRILL, ByHand, no_log

DRILLS = drills()
NOTICE = DRILLS["trainer-notice"]


def list_metrics(drill: Drill, folder: Path) -> set[str]:
    if drill.place is not Place.LOCAL:
        return set(cluster.METRICS)
    target = build_local(drill, folder)
    assert isinstance(target, Local)
    return set(target.metrics())


@pytest.mark.parametrize("drill", DRILLS.values(), ids=lambda d: d.name)
def test_a_drill_judges_its_recovery_and_uses_measured_metrics(
    drill: Drill, tmp_path: Path
) -> None:
    objective_metrics = {objective.bound.metric for objective in drill.objectives}
    metrics = {drill.steady.metric, drill.stop_when.metric} | objective_metrics
    assert metrics <= list_metrics(drill, tmp_path)
    assert RECOVERED in objective_metrics
    assert drill.question.endswith("?")


@pytest.mark.parametrize(
    "wrong",
    [
        {"objectives": ()},
        {"objectives": (parse_objective(f"x: {RECOVERED} <= 121"),)},
        {"blast": Blast(of="pods", most=0)},
        {"blast": Blast(of="pods", percent=101)},
    ],
)
def test_an_incomplete_drill_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError, match="not complete"):
        replace(NOTICE, **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("most", "percent", "present", "hit"),
    [
        (1, 100, 5, 1),
        (9, 30, 10, 3),
        (9, 30, 2, 1),
        (3, 100, 2, 2),
        (3, 50, 0, 0),
        (2, 90, 100, 2),
    ],
)
def test_the_smaller_limit_sets_the_blast_radius(
    most: int, percent: int, present: int, hit: int
) -> None:
    assert Blast(of="pods", most=most, percent=percent).limit(present) == hit


@pytest.mark.parametrize(
    ("names", "target", "shown"),
    [
        (["trainer-notise"], "local", "did you mean trainer-notice?"),
        ([], "moon", "no such target"),
        (["trainer-notice"], "gke", "this drill has another target"),
    ],
)
def test_unknown_drills_and_targets_are_refused(names: list[str], target: str, shown: str) -> None:
    with pytest.raises(InputError) as error:
        choose_drills(names, target)
    assert shown in error.value.lines()
    drills = list_by_place(Place.LOCAL)
    assert drills
    for drill in drills:
        assert not drill.control, drill.name
    (control,) = choose_drills(["naive-notice"], "local")
    assert control.name == "naive-notice"


# Drills of other distributions: found by their entry point, and named where they cannot be used.

MODULE = """
from dataclasses import replace
from holdfast.drill.catalogue import BUILT_IN

made = lambda: [replace(BUILT_IN[0], name="of-acme", question="Does it hold at Acme?")]
clashing = lambda: [BUILT_IN[0]]
failing = lambda: open("/no/such")
words = lambda: ["a drill"]
nothing = None
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Installs a tiny distribution whose entry point has this value."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return lambda value: distribution.install(
        tmp_path, "acme-drills", MODULE, GROUP, f"ours = {value}"
    )


def print_list(*options: str) -> str:
    result = CliRunner().invoke(app, ["drill", "--list", *options], catch_exceptions=False)
    return result.stdout


def test_extension_drills_are_listed_after_built_in_ones(install: Callable[[str], None]) -> None:
    assert list(drills().values()) == list(BUILT_IN)
    install("acme_drills:made")
    body = json.loads(print_list("--json"))
    questions = {}
    for drill in body["drills"]:
        questions[drill["name"]] = drill["question"]
    assert body["schema"] == "holdfast.drill-list/1"
    assert list(questions) == [drill.name for drill in BUILT_IN] + ["of-acme"]
    assert questions["of-acme"] == "Does it hold at Acme?"
    lines = print_list().splitlines()[1:]
    for name, line in zip(questions, lines, strict=True):
        assert line.split()[0] == name
    [(distribution_name, entry, _)] = load_extensions(GROUP)
    assert distribution_name == "acme-drills"
    assert entry == "ours"


@pytest.mark.parametrize(
    ("value", "got"),
    [
        ("acme_drills:clashing", f"a second drill {BUILT_IN[0].name}"),
        ("acme_drills:failing", "FileNotFoundError"),
        ("acme_drills:words", "'a drill'"),
        ("acme_drills:nothing", "TypeError"),
    ],
)
def test_an_unusable_extension_is_named(
    install: Callable[[str], None], value: str, got: str
) -> None:
    install(value)
    with pytest.raises(InputError) as error:
        drills()
    assert "acme-drills" in error.value.what
    assert GROUP in error.value.what
    assert got in error.value.got
    assert "pip uninstall acme-drills" in error.value.fix
    assert len(error.value.lines().splitlines()) == 4


# What the terminal shows of drills and of their verdicts.


def test_the_table_ends_with_the_whole_outcome_or_the_step_that_failed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for target in (ByHand(), ByHand({"pulse": 0.0})):
        console.print_verdict(DrillRun(DRILL, target, no_log).run().journal())
    header, first, *_, success, not_steady = capsys.readouterr().out.splitlines()
    assert header.split()[-1] == "MEASURED"
    assert first.split()[-1] == "0.1"
    assert success.startswith("by-hand: held; 2 of 2 objectives held; back after 0.1 s")
    assert "inconclusive; at step `steady state`: not steady: expected pulse >= 1" in not_steady
