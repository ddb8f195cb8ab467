"""Every shipped workload cites the rule of the decision matrix that it follows, and runs where that rule places it."""

from typing import Any

import pytest

from holdfast.contract import pools
from holdfast.contract.capacity import ANNOTATION_RULE, Placement, PlacementRule
from holdfast.place.matrix import RULES
from tests.platforms import names
from tests.workloads.manifests import rendered

# A DaemonSet runs on the nodes that others chose.
WORKLOADS = {"Job", "JobSet", "Deployment", "StatefulSet", "CronJob"}
PLACED = {rule.id: rule.placement for rule in RULES}


def documents() -> list[tuple[str, dict[str, Any]]]:
    loaded = [(env, d) for env in names() for d in rendered.bodies(env)]
    return [(f"{env}:{d['kind']}/{d['metadata']['name']}", d) for env, d in loaded if d["kind"] in WORKLOADS]


def selectors(node: Any) -> list[dict[str, str]]:
    if isinstance(node, dict):
        own = [node["nodeSelector"]] if "nodeSelector" in node else []
        return own + [s for value in node.values() for s in selectors(value)]
    return [s for value in node for s in selectors(value)] if isinstance(node, list) else []


def citations(node: Any) -> set[str]:
    """Of the object and of its pod templates."""
    if isinstance(node, dict):
        own = {node["annotations"][ANNOTATION_RULE]} if ANNOTATION_RULE in (node.get("annotations") or {}) else set()
        return own.union(*(citations(value) for value in node.values()))
    return set().union(*(citations(value) for value in node)) if isinstance(node, list) else set()


def test_there_are_workloads() -> None:
    assert documents()


@pytest.mark.parametrize(("name", "document"), documents(), ids=lambda v: v if isinstance(v, str) else "")
def test_workload_cites_its_rule_and_runs_where_the_rule_places_it(name: str, document: dict[str, Any]) -> None:
    cited = citations(document)
    assert len(cited) == 1 and cited <= set(PlacementRule), (
        f"{name}: annotate {ANNOTATION_RULE} with one rule of `holdfast place`"
    )
    (rule,) = cited
    chosen = selectors(document)
    on_spot = any(s.get(pools.LABEL_SPOT) == "true" for s in chosen)
    on_flex = any(s.get(pools.LABEL_FLEX_START) == "true" for s in chosen)
    allowed = {
        Placement.SPOT: on_spot and not on_flex,
        Placement.FLEX_START: on_flex and not on_spot,
        Placement.ON_DEMAND: not on_spot and not on_flex,
        Placement.HYBRID: not on_flex,
    }
    assert allowed[PLACED[PlacementRule(rule)]], f"{name} cites {rule} but selects {chosen}"
