"""Each rule is broken by one edit, alone, in the shape of the specs and in the shape of a plan."""

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from holdfast.contract.errors import InputError
from infra.environments import load, names
from infra.rules import RULES, judge, judge_environment, require_clean
from infra.rules.hardening import MIN_MAINTENANCE_H
from infra.rules.model import Facts
from infra.rules.order import API_OF_KIND, SERVICE
from infra.specs import resources
from tests.infra.rules.breaking import BREAKING, sound
from tests.infra.samples import EXAMPLE, hardened

MAPS = {"labels", "resource_labels", "user_labels", "metadata"}


def as_planned(value: Any, key: str = "") -> Any:
    """The shape of `terraform show -json`: every block is a list."""
    if isinstance(value, dict):
        inner = {k: as_planned(v, k) for k, v in value.items()}
        return inner if key in MAPS or key == "" else [inner]
    if isinstance(value, list):
        return [as_planned(v) if isinstance(v, dict) else v for v in value]
    return value


def in_plan_shape(facts: Facts) -> Facts:
    found = tuple(replace(f, values=as_planned(dict(f.values))) for f in facts.resources)
    return replace(facts, resources=found)


def test_the_sound_facts_break_no_rule() -> None:
    assert judge(sound()) == []
    assert judge(in_plan_shape(sound())) == []


@pytest.mark.parametrize("rule", sorted(BREAKING))
@pytest.mark.parametrize("shape", [lambda facts: facts, in_plan_shape], ids=["specs", "plan"])
def test_one_edit_breaks_exactly_its_rule(rule: str, shape: Any) -> None:
    findings = judge(shape(BREAKING[rule](sound())))
    assert {f.rule for f in findings} == {rule}
    for finding in findings:
        assert all((finding.where, finding.got, finding.allowed, finding.fix)), finding


def test_every_rule_says_why_and_who_says_so() -> None:
    assert len(RULES) >= 40
    for rule in RULES.values():
        assert rule.title.endswith(".") and rule.reason and rule.source, rule


@pytest.mark.parametrize("environment", names())
def test_no_shipped_environment_breaks_a_rule(environment: str) -> None:
    assert judge_environment(load(environment)) == []


def test_a_broken_environment_fails_before_terraform_with_the_rule_and_its_file() -> None:
    groups = tuple(replace(g, zones=("us-central1-z",)) if g.name == "spot-a100" else g for g in EXAMPLE.groups)
    with pytest.raises(InputError) as caught:
        require_clean(replace(EXAMPLE, groups=groups))
    lines = caught.value.lines()
    assert "[zone-sells-the-gpu]" in lines and "infra/environments/example.py" in lines
    assert "us-central1-a" in caught.value.allowed


def test_production_asks_for_what_a_trial_may_leave_out() -> None:
    broken = {f.rule for f in judge_environment(replace(EXAMPLE, production=True))}
    assert {"dns-endpoint-inside", "secrets-encrypted", "deletion-protection", "flow-logs"} <= broken
    assert judge_environment(hardened()) == []


@pytest.mark.process
def test_roles_of_a_project_are_not_judged_by_the_specs_that_ask_for_them() -> None:
    """In a process of its own: a rule that copied them would have done so when it was imported."""
    code = "import infra.specs.identities as i; i.PROJECT_ROLES['nodes'] = 'roles/storage.objectViewer'; "
    code += "import infra.environments as e, infra.rules as r; print({f.rule for f in r.judge_environment(e.load('example'))})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "{'project-roles'}\n"


def test_the_rule_about_apis_knows_every_kind_that_is_planned() -> None:
    """A kind that it does not know would pass in any order."""
    environments = (EXAMPLE, hardened(), *map(load, names()))
    kinds = {resource.kind for environment in environments for resource in resources(environment)}
    unknown = {kind for kind in kinds if not kind.startswith(tuple(API_OF_KIND))}
    assert unknown == {SERVICE, "terraform_data"}


def test_who_plans_from_a_workflow_may_read_the_image_policy_and_who_deploys_may_write_it() -> None:
    granted = {r.id: str(r.arguments["role"]) for r in resources(hardened()) if r.kind == "google_project_iam_member"}
    assert granted["planner-binaryauthorization-policyViewer"] == "roles/binaryauthorization.policyViewer"
    assert granted["deployer-binaryauthorization-policyEditor"] == "roles/binaryauthorization.policyEditor"


# Hours of maintenance in the worst 32 days, as GKE counts them.

CLUSTER = replace(EXAMPLE.cluster, maintenance_start="2026-01-03T02:00:00Z", maintenance_end="2026-01-03T08:00:00Z")


@pytest.mark.parametrize(
    ("days", "hours"),
    [("FREQ=DAILY", 192), ("FREQ=WEEKLY;BYDAY=SA,SU", MIN_MAINTENANCE_H), ("FREQ=WEEKLY;BYDAY=SU", 24)],
)
def test_least_hours(days: str, hours: float) -> None:
    assert replace(CLUSTER, maintenance_days=days).least_maintenance_h() == hours
