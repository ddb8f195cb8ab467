from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from holdfast.cost import prices
from holdfast.place.matrix import RULES, Deadline, Kind, Traits, decide, describe_discount
from holdfast.vocabulary import pools
from holdfast.vocabulary.capacity import ANNOTATION_RULE, Capacity, Placement, PlacementRule
from tests.platforms import names
from tests.workloads.manifests import rendered

METHOD = Path(__file__).parents[2] / "docs/explanation/placement-method.md"
GANGS = ((1, ""), *product((3, 4), ("", "elastic", "sharded")))


def list_traits() -> Iterator[Traits]:
    cases = product(Kind, (True, False), GANGS, Deadline, (True, False))
    for kind, resumable, (nodes, gang_kind), deadline, beyond in cases:
        yield Traits(
            kind=kind,
            resumable=resumable,
            nodes=nodes,
            elastic=gang_kind == "elastic",
            sharded=gang_kind == "sharded",
            deadline=deadline,
            beyond_flex=beyond,
        )


ALL_TRAITS = list(list_traits())


def test_every_workload_matches_a_rule_and_risky_ones_avoid_spot() -> None:
    rules = set()
    placements_in_time = set()
    for workload in ALL_TRAITS:
        rule = decide(workload)
        rules.add(rule.id)
        assert workload.resumable or rule.placement is not Placement.SPOT
        if workload.deadline is not Deadline.NONE:
            placements_in_time.add(rule.placement)
    assert rules == PLACED.keys() == set(PlacementRule)
    assert placements_in_time == {Placement.ON_DEMAND, Placement.HYBRID}
    # A deadline is tight when its slack is below the limit.
    deadlines = []
    for hours in (10.9, 11.0, float("inf")):
        deadlines.append(Deadline.of(10, hours))
    assert deadlines == [Deadline.TIGHT, Deadline.LOOSE, Deadline.NONE]


SPOT = Placement.SPOT
FLEX = Placement.FLEX_START
DEMAND = Placement.ON_DEMAND
MIX = Placement.HYBRID


@pytest.mark.parametrize(
    ("kind", "traits", "placement"),
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
def test_the_matrix_answers(kind: str, traits: dict[str, Any], placement: Placement) -> None:
    assert decide(Traits(kind=Kind(kind), **traits)).placement is placement


def test_the_page_shows_the_matrix() -> None:
    page = METHOD.read_text()
    body: list[tuple[str, ...]] = []
    for rule in RULES:
        placement = rule.placement.value
        body.append((rule.scenario, placement, rule.discount, rule.reason, f"`{rule.id.value}`"))
    rows = (("Workload", "Runs on", "Discount", "Because", "Rule"), ("---",) * 5, *body)
    table = ""
    for cells in rows:
        table += f"| {' | '.join(cells)} |\n"
    assert f"<!-- matrix:begin -->\n{table}<!-- matrix:end -->" in page


def test_pages_show_the_discounts_that_the_price_table_has() -> None:
    """No slogan: the least and the largest discount of any GPU and region of the table."""
    table = prices.load()
    page = METHOD.with_name("what-you-get.md").read_text()
    for capacity in (Capacity.SPOT, Capacity.FLEX_START):
        shares: list[float] = []
        for accelerator in prices.ACCELERATORS:
            machine = prices.reference_machine(accelerator)
            for region in table.regions(accelerator):
                quote = table.quote(machine, region, capacity)
                on_demand = table.quote(machine, region, Capacity.ON_DEMAND)
                if quote and on_demand:
                    shares.append(100 * (1 - quote.usd / on_demand.usd))
        low, high = describe_discount(capacity).rstrip("%").split(" to ")
        assert 0 <= min(shares) - int(low) < 1
        assert 0 <= max(shares) - int(high) < 1
        assert f"| {capacity.value.replace('spot', 'Spot')} ({low} to {high}% off) |" in page


# Every shipped workload cites the rule of the decision matrix that it follows, and runs where that
# rule places it.

# A DaemonSet runs on the nodes that others chose.
WORKLOADS = {"Job", "JobSet", "Deployment", "StatefulSet", "CronJob"}
PLACED = {rule.id: rule.placement for rule in RULES}


def find_values(node: Any, key: str) -> list[Any]:
    """Returns all values of the key in the object and in its pod templates."""
    values: list[Any] = []
    if isinstance(node, dict):
        if key in node:
            values.append(node[key])
        node = list(node.values())
    if isinstance(node, list):
        for child in node:
            values += find_values(child, key)
    return values


@pytest.mark.parametrize("env", names())
def test_each_workload_cites_its_rule_and_runs_where_the_rule_places_it(env: str) -> None:
    documents = []
    for document in rendered.load_objects(env):
        if document["kind"] in WORKLOADS:
            documents.append(document)
    assert documents
    for document in documents:
        name = f"{document['kind']}/{document['metadata']['name']}"
        (rule,) = set(find_values(document, ANNOTATION_RULE))
        selectors = find_values(document, "nodeSelector")
        on_spot = any(s.get(pools.LABEL_SPOT) == "true" for s in selectors)
        on_flex = any(s.get(pools.LABEL_FLEX_START) == "true" for s in selectors)
        allowed = {
            Placement.SPOT: on_spot and not on_flex,
            Placement.FLEX_START: on_flex and not on_spot,
            Placement.ON_DEMAND: not on_spot and not on_flex,
            Placement.HYBRID: not on_flex,
        }
        assert allowed[PLACED[PlacementRule(rule)]], f"{name} cites {rule} but selects {selectors}"
