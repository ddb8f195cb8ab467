from itertools import product

import pytest

from infra.contract.capacity import Placement, PlacementRule
from infra.placement import matrix
from infra.placement.matrix import Deadline, Kind, Workload, decide

ALL_WORKLOADS = [
    Workload(kind=kind, resumable=resumable, gang=gang, deadline=deadline, beyond_flex=beyond)
    for kind, resumable, gang, deadline, beyond in product(Kind, (True, False), (True, False), Deadline, (True, False))
]


def test_every_rule_is_reached_by_some_workload_and_every_workload_reaches_a_rule() -> None:
    assert {decide(workload).id for workload in ALL_WORKLOADS} == set(PlacementRule)


def test_every_rule_stands_in_the_matrix_once() -> None:
    ids = [rule.id for rule in matrix.RULES]
    assert sorted(ids) == sorted(PlacementRule)


def test_every_placement_is_answered_for_something() -> None:
    assert {rule.placement for rule in matrix.RULES} == set(Placement)


@pytest.mark.parametrize("workload", [w for w in ALL_WORKLOADS if not w.resumable], ids=str)
def test_what_cannot_resume_is_never_put_on_spot_alone(workload: Workload) -> None:
    assert decide(workload).placement is not Placement.SPOT


@pytest.mark.parametrize("workload", [w for w in ALL_WORKLOADS if w.deadline is not Deadline.NONE], ids=str)
def test_a_deadline_never_depends_on_interruptible_capacity_alone(workload: Workload) -> None:
    assert decide(workload).placement in (Placement.ON_DEMAND, Placement.HYBRID)


@pytest.mark.parametrize(
    ("workload", "placement"),
    [
        (Workload(kind=Kind.PLATFORM), Placement.ON_DEMAND),
        (Workload(kind=Kind.SERVING), Placement.HYBRID),
        (Workload(kind=Kind.BATCH), Placement.SPOT),
        (Workload(kind=Kind.TRAINING), Placement.SPOT),
        (Workload(kind=Kind.TRAINING, gang=True), Placement.FLEX_START),
        (Workload(kind=Kind.TRAINING, resumable=False), Placement.FLEX_START),
        (Workload(kind=Kind.TRAINING, resumable=False, beyond_flex=True), Placement.ON_DEMAND),
        (Workload(kind=Kind.BATCH, deadline=Deadline.LOOSE), Placement.HYBRID),
        (Workload(kind=Kind.BATCH, deadline=Deadline.TIGHT), Placement.ON_DEMAND),
    ],
    ids=str,
)
def test_the_matrix_answers(workload: Workload, placement: Placement) -> None:
    assert decide(workload).placement is placement


def test_markdown_has_a_line_for_each_rule_and_one_width() -> None:
    lines = matrix.markdown().splitlines()
    assert len(lines) == 2 + len(matrix.RULES)
    assert len({line.count("|") for line in lines}) == 1
