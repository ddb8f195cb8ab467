from itertools import product
from pathlib import Path

import pytest

from holdfast.contract.capacity import Capacity, Placement, PlacementRule
from holdfast.place import matrix
from holdfast.place.matrix import Deadline, Kind, Workload, decide
from tests.platforms import load

ALL_WORKLOADS = [
    Workload(
        kind=kind,
        resumable=resumable,
        nodes=nodes,
        elastic=elastic and nodes > 1,
        sharded=sharded and not elastic and nodes > 1,
        deadline=deadline,
        beyond_flex=beyond,
    )
    for kind, resumable, nodes, elastic, sharded, deadline, beyond in product(
        Kind, (True, False), (1, 3, 4), (True, False), (True, False), Deadline, (True, False)
    )
]


def test_every_rule_is_reached_by_some_workload_and_every_workload_reaches_a_rule() -> None:
    assert {decide(workload).id for workload in ALL_WORKLOADS} == set(PlacementRule)


def test_every_rule_stands_in_the_matrix_once() -> None:
    ids = [rule.id for rule in matrix.RULES]
    assert sorted(ids) == sorted(PlacementRule)


def test_what_cannot_resume_is_never_put_on_spot_alone() -> None:
    wrong = [w for w in ALL_WORKLOADS if not w.resumable and decide(w).placement is Placement.SPOT]
    assert not wrong


def test_a_deadline_never_depends_on_interruptible_capacity_alone() -> None:
    dated = [w for w in ALL_WORKLOADS if w.deadline is not Deadline.NONE]
    assert {decide(w).placement for w in dated} == {Placement.ON_DEMAND, Placement.HYBRID}


def test_every_capacity_that_a_rule_answers_has_a_pool_in_the_example_environment() -> None:
    needed = {
        Placement.SPOT: {Capacity.SPOT},
        Placement.FLEX_START: {Capacity.FLEX_START},
        Placement.ON_DEMAND: {Capacity.ON_DEMAND},
        Placement.HYBRID: {Capacity.ON_DEMAND, Capacity.SPOT},
    }
    there = {pool.capacity for pool in load("example").pools}
    missing = {rule.id: needed[rule.placement] - there for rule in matrix.RULES if needed[rule.placement] - there}
    assert not missing


def test_a_deadline_is_tight_when_its_slack_is_below_the_limit() -> None:
    assert Deadline.of(10, 10.9) is Deadline.TIGHT
    assert Deadline.of(10, 11.0) is Deadline.LOOSE
    assert Deadline.of(10, float("inf")) is Deadline.NONE


@pytest.mark.parametrize(
    ("workload", "placement"),
    [
        (Workload(kind=Kind.PLATFORM), Placement.ON_DEMAND),
        (Workload(kind=Kind.SERVING), Placement.HYBRID),
        (Workload(kind=Kind.BATCH), Placement.SPOT),
        (Workload(kind=Kind.TRAINING), Placement.SPOT),
        (Workload(kind=Kind.TRAINING, nodes=8), Placement.FLEX_START),
        (Workload(kind=Kind.TRAINING, nodes=4, elastic=True), Placement.SPOT),
        (Workload(kind=Kind.TRAINING, nodes=3, elastic=True), Placement.FLEX_START),
        (Workload(kind=Kind.TRAINING, nodes=4, elastic=True, resumable=False), Placement.FLEX_START),
        (Workload(kind=Kind.TRAINING, resumable=False), Placement.FLEX_START),
        (Workload(kind=Kind.TRAINING, resumable=False, beyond_flex=True), Placement.ON_DEMAND),
        (Workload(kind=Kind.BATCH, deadline=Deadline.LOOSE), Placement.HYBRID),
        (Workload(kind=Kind.BATCH, deadline=Deadline.TIGHT), Placement.ON_DEMAND),
    ],
    ids=str,
)
def test_the_matrix_answers(workload: Workload, placement: Placement) -> None:
    assert decide(workload).placement is placement


def test_the_page_shows_the_matrix() -> None:
    page = (Path(matrix.__file__).parent / "METHOD.md").read_text()
    assert f"<!-- matrix:begin -->\n{matrix.markdown()}\n<!-- matrix:end -->" in page
