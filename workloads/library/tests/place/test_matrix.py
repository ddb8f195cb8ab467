from itertools import product
from pathlib import Path
from typing import Any

import pytest

from holdfast.place.matrix import RULES, Deadline, Kind, Workload, decide
from holdfast.vocabulary import pools
from holdfast.vocabulary.capacity import ANNOTATION_RULE, Placement, PlacementRule
from tests.platforms import names
from tests.workloads.manifests import rendered

METHOD = Path(__file__).parents[2] / "docs/explanation/placement-method.md"
GANGS = ((1, ""), *product((3, 4), ("", "elastic", "sharded")))
ALL_WORKLOADS = [
    Workload(
        kind=kind,
        resumable=resumable,
        nodes=nodes,
        elastic=how == "elastic",
        sharded=how == "sharded",
        deadline=deadline,
        beyond_flex=beyond,
    )
    for kind, resumable, (nodes, how), deadline, beyond in product(
        Kind, (True, False), GANGS, Deadline, (True, False)
    )
]


def test_every_workload_reaches_a_rule_and_what_cannot_resume_or_has_a_deadline_is_not_left_to_spot_alone() -> (
    None
):
    assert (
        {decide(workload).id for workload in ALL_WORKLOADS}
        == {rule.id for rule in RULES}
        == set(PlacementRule)
    )
    assert not [
        w for w in ALL_WORKLOADS if not w.resumable and decide(w).placement is Placement.SPOT
    ]
    dated = [w for w in ALL_WORKLOADS if w.deadline is not Deadline.NONE]
    assert {decide(w).placement for w in dated} == {Placement.ON_DEMAND, Placement.HYBRID}
    # A deadline is tight when its slack is below the limit.
    given = [Deadline.of(10, hours) for hours in (10.9, 11.0, float("inf"))]
    assert given == [Deadline.TIGHT, Deadline.LOOSE, Deadline.NONE]


SPOT = Placement.SPOT
FLEX = Placement.FLEX_START
DEMAND = Placement.ON_DEMAND
MIX = Placement.HYBRID


@pytest.mark.parametrize(
    ("kind", "more", "placement"),
    [
        ("platform", {}, DEMAND),
        ("serving", {}, MIX),
        ("batch", {}, SPOT),
        ("training", {}, SPOT),
        ("training", {"nodes": 8}, FLEX),
        ("training", {"nodes": 4, "elastic": True}, SPOT),
        ("training", {"nodes": 3, "elastic": True}, FLEX),
        (
            "training",
            {
                "nodes": 4,
                "elastic": True,
                "resumable": False,
            },
            FLEX,
        ),
        ("training", {"resumable": False}, FLEX),
        ("training", {"resumable": False, "beyond_flex": True}, DEMAND),
        ("batch", {"deadline": Deadline.LOOSE}, MIX),
        ("batch", {"deadline": Deadline.TIGHT}, DEMAND),
    ],
)
def test_the_matrix_answers(kind: str, more: dict[str, Any], placement: Placement) -> None:
    assert decide(Workload(kind=Kind(kind), **more)).placement is placement


def test_the_page_shows_the_matrix() -> None:
    page = METHOD.read_text()
    body = ((r.scenario, r.placement.value, r.discount, r.reason, f"`{r.id.value}`") for r in RULES)
    rows = (("Workload", "Runs on", "Discount", "Because", "Rule"), ("---",) * 5, *body)
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in rows)
    assert f"<!-- matrix:begin -->\n{table}\n<!-- matrix:end -->" in page


# Every shipped workload cites the rule of the decision matrix that it follows, and runs where that
# rule places it.

# A DaemonSet runs on the nodes that others chose.
WORKLOADS = {"Job", "JobSet", "Deployment", "StatefulSet", "CronJob"}
PLACED = {rule.id: rule.placement for rule in RULES}


def under(node: Any, key: str) -> list[Any]:
    """All values of the key in the object and in its pod templates."""
    if isinstance(node, dict):
        return ([node[key]] if key in node else []) + [
            found for value in node.values() for found in under(value, key)
        ]
    if isinstance(node, list):
        return [found for value in node for found in under(value, key)]
    return []


@pytest.mark.parametrize("env", names())
def test_each_workload_cites_its_rule_and_runs_where_the_rule_places_it(env: str) -> None:
    documents = [each for each in rendered.bodies(env) if each["kind"] in WORKLOADS]
    assert documents
    for document in documents:
        name = f"{document['kind']}/{document['metadata']['name']}"
        (rule,) = set(under(document, ANNOTATION_RULE))
        chosen = under(document, "nodeSelector")
        on_spot = any(s.get(pools.LABEL_SPOT) == "true" for s in chosen)
        on_flex = any(s.get(pools.LABEL_FLEX_START) == "true" for s in chosen)
        allowed = {
            Placement.SPOT: on_spot and not on_flex,
            Placement.FLEX_START: on_flex and not on_spot,
            Placement.ON_DEMAND: not on_spot and not on_flex,
            Placement.HYBRID: not on_flex,
        }
        assert allowed[PLACED[PlacementRule(rule)]], f"{name} cites {rule} but selects {chosen}"
