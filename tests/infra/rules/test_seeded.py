"""Defects of a plan and of an environment, each one change of a sound set: no recorded inventory guards a fork's."""

from dataclasses import replace
from functools import cache

import pytest

from holdfast.contract.errors import InputError
from infra.rules import RULES, Finding, judge, judge_environment
from infra.rules.model import PlannedResource, facts_of_plans
from tests.infra.rules.breaking import BREAKING, sound
from tests.infra.rules.edits import Edit
from tests.infra.rules.seeded_plan import ALLOW, PLAN, firewall
from tests.infra.rules.seeded_refusals import ENVIRONMENT, REFUSED
from tests.infra.rules.test_rules import in_plan_shape
from tests.infra.samples import hardened


@pytest.mark.parametrize("defect", PLAN)
def test_a_defect_of_a_plan_is_found(defect: str) -> None:
    facts = PLAN[defect](sound())
    found = judge(facts)
    assert found and rules_of(found) == rules_of(judge(in_plan_shape(facts))), "as specs, and as a plan"
    assert all(each.where and each.got and each.allowed and each.fix for each in found)


@pytest.mark.parametrize("change", REFUSED)
def test_what_google_refuses_is_found_before_it_is_asked(change: str) -> None:
    """By the rule or by the schema, as the table says, and so that no other finding could stand for it."""
    edit, finder, source = REFUSED[change]
    assert source.startswith("https://")
    try:
        facts = edit(sound())
    except InputError as error:
        assert finder in error.what, error
        return
    found = broken(edit)
    assert finder in rules_of(found), found
    assert facts.resources == sound().resources or rules_of(found) == rules_of(judge(in_plan_shape(facts)))


def test_every_rule_is_broken_alone_by_some_edit() -> None:
    refused = (edit for edit, finder, _ in REFUSED.values() if finder in RULES)
    found = [rules_of(broken(edit)) for edit in (*PLAN.values(), *refused)]
    alone = {rule for rules in found if len(rules) == 1 for rule in rules}
    assert alone | set(BREAKING) == set(RULES)


@cache
def broken(edit: Edit) -> list[Finding]:
    """What the edited resources break; the edited environment's own, where it changed that alone."""
    facts = edit(sound())
    return judge(facts) if facts.resources != sound().resources else judge_environment(facts.environment)


def rules_of(found: list[Finding]) -> set[str]:
    return {each.rule for each in found}


def test_a_child_module_hides_nothing() -> None:
    """Also one of its own, and a resource with `for_each`."""
    bad = PLAN["firewall with empty sources"](sound()).resources[-1]
    inner = {"resources": [{"type": bad.kind, "address": 'module.a.module.b.any["x"]', "values": dict(bad.values)}]}
    plan = {"planned_values": {"root_module": {"child_modules": [{"child_modules": [inner]}]}}}
    found = judge(facts_of_plans(hardened(), [plan]))
    assert {"no-open-firewall"} == {each.rule for each in found if "module.b" in each.where}


@pytest.mark.parametrize("defect", ENVIRONMENT)
def test_a_defect_of_an_environment_is_refused(defect: str) -> None:
    """By a rule; what one value shows, the schema refuses (tests/infra/environments/test_fields.py)."""
    assert judge_environment(ENVIRONMENT[defect](sound()).environment)


def test_what_is_sound_is_not_refused() -> None:
    plan = {"planned_values": {"root_module": {}}}
    assert judge(sound()) == [] == judge(facts_of_plans(hardened(), [plan]))
    firewall_of_ours = firewall(source_ranges=["10.0.0.0/8"])
    assert judge(firewall_of_ours(sound())) == []
    tagged = PlannedResource(kind="google_compute_firewall", address="google_compute_firewall.a", values={"allow": ALLOW, "source_tags": ["x"]})  # fmt: skip
    assert judge(replace(sound(), resources=(*sound().resources, tagged))) == []
