"""Each rule is broken by one edit, alone; what Google refuses is found; no recorded inventory
guards a fork's environment.
"""

from dataclasses import replace
from typing import Any

import pytest

from holdfast.support.errors import InputError
from infra.environments import load, names
from infra.rules import RULES, judge, judge_environment, require_clean
from infra.rules.model import Facts, read_plans, read_specs
from infra.specs import identities, resources
from tests.infra.rules.broken import BROKEN, firewall, sound
from tests.infra.rules.edits import Edit, both, cluster
from tests.infra.rules.seeded_refusals import REFUSED
from tests.infra.samples import EXAMPLE, make_hardened

MAPS = {"labels", "resource_labels", "user_labels", "metadata"}


def to_plan_shape(value: Any, key: str = "") -> Any:
    """The shape of `terraform show -json`: every block is a list."""
    if isinstance(value, dict):
        inner = {}
        for k, v in value.items():
            inner[k] = to_plan_shape(v, k)
        return inner if key in MAPS or key == "" else [inner]
    if isinstance(value, list):
        return [to_plan_shape(v) if isinstance(v, dict) else v for v in value]
    return value


def in_plan_shape(facts: Facts) -> Facts:
    planned = list(facts.resources)
    for index, resource in enumerate(planned):
        values = to_plan_shape(dict(resource.values))
        planned[index] = replace(resource, values=values)
    return replace(facts, resources=tuple(planned))


def test_the_sound_facts_break_no_rule() -> None:
    assert judge(sound()) == []
    assert judge(in_plan_shape(sound())) == []


def broken(edit: Edit) -> Facts:
    """Returns the edited resources; reads them again if only the environment was edited."""
    facts = edit(sound())
    if facts.resources != sound().resources:
        return facts
    return read_specs(facts.environment)


def find_rules(facts: Facts) -> set[str]:
    findings = judge(facts)
    for finding in findings:
        assert finding.where, findings
        assert finding.got, findings
        assert finding.allowed, findings
        assert finding.fix, findings
    return {finding.rule for finding in findings}


@pytest.mark.parametrize("defect", BROKEN)
def test_one_edit_breaks_exactly_its_rule(defect: str) -> None:
    """The rule finds it in the shape of the specs, and in the shape of a plan."""
    edit, rules = BROKEN[defect]
    facts = broken(edit)
    assert find_rules(facts) == find_rules(in_plan_shape(facts)) == set(rules.split())


@pytest.mark.parametrize("change", REFUSED)
def test_values_that_google_refuses_are_found(change: str) -> None:
    """The rule or the schema of the table finds it, and nothing else does."""
    edit, finder, source = REFUSED[change]
    assert source.startswith("https://")
    try:
        facts = broken(edit)
    except InputError as error:
        assert finder in error.what, error
    else:
        assert find_rules(facts) == find_rules(in_plan_shape(facts)) == set(finder.split())


def test_every_rule_is_broken_alone_by_some_edit() -> None:
    rules = set()
    for _, finder, _ in REFUSED.values():
        if finder in RULES:
            rules.add(finder)
    for _, finders in BROKEN.values():
        if " " not in finders:
            rules.add(finders)
    assert rules == set(RULES)


def test_a_child_module_hides_nothing() -> None:
    """Neither does a child of a child, nor a resource with `for_each`."""
    bad = BROKEN["firewall with empty sources"][0](sound()).resources[-1]
    inner = {
        "resources": [
            {
                "type": bad.kind,
                "address": 'module.a.module.b.any["x"]',
                "values": dict(bad.values),
            }
        ]
    }
    plan = {"planned_values": {"root_module": {"child_modules": [{"child_modules": [inner]}]}}}
    findings = judge(read_plans(make_hardened(), [plan]))
    in_child = [finding.rule for finding in findings if "module.b" in finding.where]
    assert set(in_child) == {"no-open-firewall"}


def test_a_plan_knows_the_arguments_that_terraform_ignores() -> None:
    """A plan does not show them, so they are taken from the specs."""
    cluster = {
        "type": "google_container_cluster",
        "address": "google_container_cluster.cluster",
        "values": {"description": "any words"},
    }
    other = cluster | {"address": "google_container_cluster.other"}
    plan = {"planned_values": {"root_module": {"resources": [cluster, other]}}}
    findings = judge(read_plans(EXAMPLE, [plan]))
    texts = [finding.where for finding in findings if finding.rule == "texts-can-change"]
    assert texts == ["google_container_cluster.other: description"]


def test_sound_values_are_not_refused() -> None:
    plan = {"planned_values": {"root_module": {}}}
    tagged = firewall(source_tags=["x"])
    assert judge(read_plans(make_hardened(), [plan])) == []
    assert judge(both(firewall(source_ranges=["10.0.0.0/8"]), tagged)(sound())) == []
    assert judge(cluster(maintenance_days="FREQ=DAILY")(sound())) == []


def test_every_rule_says_why_and_who_says_so() -> None:
    assert len(RULES) >= 40
    for rule in RULES.values():
        assert rule.title.endswith("."), rule
        assert rule.reason, rule
        assert rule.source, rule


@pytest.mark.parametrize("environment", names())
def test_no_shipped_environment_breaks_a_rule(environment: str) -> None:
    assert judge_environment(load(environment)) == []


def test_broken_environment_fails_before_terraform_with_rule_and_file() -> None:
    groups = []
    for group in EXAMPLE.groups:
        is_a100 = group.name == "spot-a100"
        groups.append(replace(group, zones=("us-central1-z",)) if is_a100 else group)
    with pytest.raises(InputError) as caught:
        require_clean(replace(EXAMPLE, groups=tuple(groups)))
    lines = caught.value.lines()
    assert "[zone-sells-the-gpu]" in lines
    assert "infra/environments/example.py" in lines
    assert "us-central1-a" in caught.value.allowed


def test_production_asks_for_what_a_trial_may_leave_out() -> None:
    rules = {f.rule for f in judge_environment(replace(EXAMPLE, production=True))}
    assert {
        "production-is-hardened",
        "production-is-safe",
        "deletion-protection",
        "data-encrypted",
    } <= rules
    assert judge_environment(make_hardened()) == []


def test_project_roles_are_judged_independently_from_the_specs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(identities.PROJECT_ROLES, "nodes", "roles/storage.objectViewer")
    rules = {finding.rule for finding in judge_environment(EXAMPLE)}
    assert rules == {"project-roles", "features-have-what-they-need"}


def test_planner_may_read_and_deployer_may_write_the_image_policy() -> None:
    granted = {}
    for r in resources(make_hardened()):
        if r.kind == "google_project_iam_member":
            granted[r.id] = str(r.arguments["role"])
    assert (
        granted["planner-binaryauthorization-policyViewer"]
        == "roles/binaryauthorization.policyViewer"
    )
    assert (
        granted["deployer-binaryauthorization-policyEditor"]
        == "roles/binaryauthorization.policyEditor"
    )
