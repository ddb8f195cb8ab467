"""Values of single arguments that Google refuses are found, and those that it takes are not."""

import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infra.environments import load, names
from infra.rules import RULES, judge
from infra.rules.limits import find_values, load_limits
from infra.rules.model import Facts, PlannedResource, read_specs
from infra.rules.queries import find_filter_defect
from monitoring import stack
from tests.infra.rules.broken import sound
from tests.infra.samples import make_hardened

LIMITS = "arguments-are-in-limits"
PROMQL = "condition_prometheus_query_language"
TABLE = tomllib.loads(Path(__file__).with_name("limit_cases.toml").read_text())
QUERIES = TABLE.pop("queries")
FILTERS = TABLE.pop("filters")
REPEATED = TABLE.pop("repeated")


def make_facts(kind: str, path: str, value: Any, *, as_plan: bool) -> Facts:
    """Returns facts of one resource; a plan wraps each block in a list."""
    nested: Any = value
    for step in reversed(path.split(".")):
        nested = {step: nested}
        if as_plan and step != path.split(".")[0]:
            nested = [nested]
    resource = PlannedResource(
        kind=kind,
        address=f"{kind}.extra",
        values=nested,
    )
    return replace(sound(), resources=(resource,))


def find(facts: Facts, rule: str) -> list[str]:
    return [finding.got for finding in RULES[rule].check(facts)]


def iter_values(which: str) -> Iterator[tuple[str, str, Any]]:
    for kind, paths in TABLE.items():
        for path, values in paths.items():
            for value in values[which]:
                yield kind, path, value
    for kind, paths in REPEATED.items():
        for path, row in paths.items():
            yield kind, path, row["item"] * row[which]


@pytest.mark.parametrize(("kind", "path", "value"), [*iter_values("refused")])
def test_refused_value_is_found_in_specs_and_plans(kind: str, path: str, value: Any) -> None:
    for as_plan in (False, True):
        assert find(make_facts(kind, path, value, as_plan=as_plan), LIMITS)


@pytest.mark.parametrize(("kind", "path", "value"), [*iter_values("accepted")])
def test_accepted_value_is_not_found(kind: str, path: str, value: Any) -> None:
    for as_plan in (False, True):
        assert not find(make_facts(kind, path, value, as_plan=as_plan), LIMITS)


def test_values_that_terraform_fills_in_are_not_judged() -> None:
    reference = "${google_storage_bucket.state.name}"
    assert not find(make_facts("google_storage_bucket", "name", reference, as_plan=False), LIMITS)


def test_each_limit_has_a_page_and_a_case() -> None:
    refused = {(kind, path) for kind, path, _ in iter_values("refused")}
    accepted = {(kind, path) for kind, path, _ in iter_values("accepted")}
    for limit in load_limits():
        assert limit.source.startswith("https://")
        # A case gives a whole list, of which the limit is about each item.
        path = limit.path.partition(".*")[0]
        assert (limit.kind, path) in refused & accepted, (
            "write values that are refused and that are accepted"
        )
    paths = [(limit.kind, limit.path) for limit in load_limits()]
    assert len(set(paths)) == len(paths), "a limit stands twice"


def test_each_limit_is_about_an_argument_that_the_platform_sets() -> None:
    written: set[tuple[str, str]] = set()
    for environment in (*map(load, names()), make_hardened()):
        planned = [*read_specs(environment).resources]
        for resource in stack.resources(environment):
            address = f"{resource.kind}.{resource.id}"
            planned.append(
                PlannedResource(kind=resource.kind, address=address, values=resource.arguments)
            )
        for limit in load_limits():
            for resource in planned:
                if resource.kind == limit.kind and list(find_values(resource, limit.path)):
                    written.add((limit.kind, limit.path))
    assert {(limit.kind, limit.path) for limit in load_limits()} == written


@pytest.mark.parametrize(
    ("region", "zone"), [("us-middle9", ""), ("", "us-central1-z"), ("", "europe-west4-a")]
)
def test_locations_that_do_not_exist_are_found(region: str, zone: str) -> None:
    environment = load("example")
    if region:
        environment = replace(environment, region=region, zones=(f"{region}-a",))
    facts = replace(read_specs(load("example")), environment=environment)
    if zone:
        [cluster, *_] = facts.cluster()
        moved = replace(
            cluster,
            values={
                **cluster.values,
                "node_locations": [zone],
            },
        )
        facts = replace(facts, resources=(moved,))
    assert find(facts, "locations-exist")


@pytest.mark.parametrize("query", [*QUERIES["refused"], *QUERIES["accepted"]])
def test_query_that_does_not_parse_is_found(query: str) -> None:
    values = {"conditions": [{PROMQL: {"query": query}}]}
    kind = "google_monitoring_alert_policy"
    policy = PlannedResource(
        kind=kind,
        address=f"{kind}.extra",
        values=values,
    )
    facts = replace(sound(), resources=(policy,))
    assert bool(find(facts, "queries-parse")) is (query in QUERIES["refused"])


@pytest.mark.parametrize("text", [*FILTERS["refused"], *FILTERS["accepted"]])
def test_filter_that_does_not_parse_is_found(text: str) -> None:
    assert bool(find_filter_defect(text)) is (text in FILTERS["refused"])


@pytest.mark.parametrize("name", names())
def test_shipped_environments_are_within_the_limits(name: str) -> None:
    rules = {LIMITS, "locations-exist", "queries-parse", "log-filters-parse"}
    findings = []
    for finding in judge(read_specs(load(name))):
        if finding.rule in rules:
            findings.append(finding)
    assert findings == []
