"""Drills are data, and data is checked."""

from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.contract.errors import InputError
from holdfast.drill.catalogue import drills, find, of
from holdfast.drill.commands import chosen, local
from holdfast.drill.plan import RECOVERED, Blast, Drill, Place, promised
from holdfast.drill.targets import cluster
from holdfast.drill.targets.local import Local

DRILLS = drills()
NOTICE = DRILLS["trainer-notice"]


def asked(drill: Drill) -> set[str]:
    return {bound.metric for bound in (drill.steady, drill.stop_when, *(o.bound for o in drill.objectives))}


def measured(drill: Drill, folder: Path) -> set[str]:
    if drill.place is not Place.LOCAL:
        return set(cluster.METRICS)
    target = local(drill, folder)
    assert isinstance(target, Local)
    return set(target.metrics())


@pytest.mark.parametrize("drill", DRILLS.values(), ids=lambda d: d.name)
def test_a_drill_asks_only_for_what_its_target_measures(drill: Drill, tmp_path: Path) -> None:
    assert asked(drill) <= measured(drill, tmp_path)


@pytest.mark.parametrize("drill", DRILLS.values(), ids=lambda d: d.name)
def test_every_drill_judges_the_recovery(drill: Drill) -> None:
    assert RECOVERED in {objective.bound.metric for objective in drill.objectives}
    assert drill.question.endswith("?")


@pytest.mark.parametrize(
    "wrong",
    [
        {"objectives": ()},
        {"objectives": promised("x: lost_steps <= 1", essential=False)},
        {"objectives": promised(f"x: {RECOVERED} <= 121")},
        {"blast": Blast(of="pods", most=0)},
        {"blast": Blast(of="pods", percent=101)},
    ],
)
def test_an_incomplete_drill_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError, match="not complete"):
        replace(NOTICE, **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("most", "percent", "present", "hit"),
    [(1, 100, 5, 1), (9, 30, 10, 3), (9, 30, 2, 1), (3, 100, 2, 2), (3, 50, 0, 0), (2, 90, 100, 2)],
)
def test_the_blast_radius_is_the_lesser_of_number_and_share(most: int, percent: int, present: int, hit: int) -> None:
    assert Blast(of="pods", most=most, percent=percent).size(present) == hit


def test_a_misspelt_drill_gets_the_nearest_name() -> None:
    with pytest.raises(InputError) as error:
        find("trainer-notise")
    assert error.value.fix == "did you mean trainer-notice?"


def test_controls_run_only_when_they_are_named() -> None:
    assert {drill.control for drill in of(Place.LOCAL)} == {False}
    assert [drill.name for drill in chosen(["naive-notice"], "local")] == ["naive-notice"]


def test_a_target_that_does_not_exist_and_a_drill_of_another_are_refused() -> None:
    with pytest.raises(InputError, match="no such target"):
        chosen([], "moon")
    with pytest.raises(InputError, match="this drill has another target"):
        chosen(["trainer-notice"], "gke")
