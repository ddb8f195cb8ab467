"""The real plan holds what was recorded, and each record holds what it is named for."""

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.support.errors import InputError
from infra.environments import load
from infra.rules import judge_plans
from tests.plan import inventory
from tests.support import needs

pytestmark = [pytest.mark.plan, pytest.mark.timeout(600)]
LoadPlans = Callable[[str], dict[str, dict[str, Any]]]


@pytest.mark.parametrize("environment", inventory.ENVIRONMENTS)
def test_the_plan_is_the_recorded_one(load_plans: LoadPlans, environment: str) -> None:
    plans = load_plans(environment)
    recorded = {path.stem for path in (inventory.FOLDER / environment).glob("*.yaml")}
    assert recorded == set(plans), f"stacks changed; record with `{inventory.REGENERATE}`"
    for stack, plan_json in plans.items():
        lines = inventory.differences(inventory.load_inventory(environment, stack), plan_json)
        assert not lines, "\n".join([*lines, f"if this is meant: {inventory.REGENERATE}"])
    addresses_of_environment = []
    for line in inventory.ADDRESSES.read_text().splitlines():
        if line.split()[0].endswith(f"-{environment}"):
            addresses_of_environment.append(line)
    now = sorted(inventory.addresses(plans))
    assert now == addresses_of_environment, (
        f"an address that moves destroys and creates; if this is meant: {inventory.REGENERATE}"
    )


@pytest.mark.parametrize("environment", inventory.ENVIRONMENTS)
def test_the_plan_only_creates_reads_no_data_source_and_breaks_no_rule(
    load_plans: LoadPlans, environment: str
) -> None:
    for plan_json in load_plans(environment).values():
        for change in plan_json["resource_changes"]:
            assert (change["mode"], change["change"]["actions"]) == ("managed", ["create"]), change[
                "address"
            ]
    assert judge_plans(load(environment), load_plans(environment).values()) == []


POOL = "google_container_node_pool.pool-spot-a100"
ADDED: dict[str, tuple[str, dict[str, Any]]] = {
    "queued provisioning": (POOL, {"queued_provisioning": [{"enabled": True}]}),
    "a label": (POOL, {"node_config": [{"resource_labels": {"team": "x"}}]}),
    "a group of somebody else": (
        "google_container_cluster.cluster",
        {"authenticator_groups_config": [{"security_group": "gke-security-groups@x.example"}]},
    ),
    "a dashboard's chart": ("google_monitoring_dashboard.job", {"dashboard_json": "{}"}),
    "a line of the runbook": (
        "google_monitoring_alert_policy.gpu-idle",
        {"documentation": [{"content": "Reboot it."}]},
    ),
}


@pytest.mark.parametrize("added", ADDED)
def test_plan_additions_are_differences_with_their_path(load_plans: LoadPlans, added: str) -> None:
    address, values = ADDED[added]
    (stack, plan_json) = next(
        (s, p)
        for s, p in load_plans("example").items()
        if address in inventory.read_planned_values(p)
    )
    changed = copy.deepcopy(plan_json)
    for resource in changed["planned_values"]["root_module"]["resources"]:
        if resource["address"] == address:
            resource["values"] |= values
    (field,) = values
    lines = inventory.differences(inventory.load_inventory("example", stack), changed)
    assert lines and all(line.startswith(f"{address}.{field}") for line in lines), lines


@needs("prod")
def test_a_forks_plan_is_recorded(
    load_plans: LoadPlans,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`make inventory ENV=example` records it, if only the others were recorded before."""
    fork = "example"
    for shipped in set(inventory.ENVIRONMENTS) - {fork}:
        shutil.copytree(inventory.FOLDER / shipped, tmp_path / shipped)
    everyone = inventory.ADDRESSES.read_text()
    addresses = tmp_path / "addresses.txt"
    addresses.write_text(
        "".join(line for line in everyone.splitlines(keepends=True) if f"-{fork} " not in line)
    )
    files = {stack: tmp_path / f"{stack}.json" for stack in load_plans(fork)}
    for stack, file in files.items():
        file.write_text(json.dumps(load_plans(fork)[stack]))
    monkeypatch.setattr(inventory, "FOLDER", tmp_path)
    monkeypatch.setattr(inventory, "ADDRESSES", addresses)
    monkeypatch.setattr(inventory, "plan", {fork: files}.__getitem__)
    inventory.main([fork])
    assert inventory.list_environments() == inventory.ENVIRONMENTS, "the parameters of these tests"
    assert addresses.read_text() == everyone
    for stack, plan_json in load_plans(fork).items():
        recorded_values = inventory.load_inventory(fork, stack)
        assert inventory.differences(recorded_values, plan_json) == []
        shorter_plan = copy.deepcopy(plan_json)
        resource = shorter_plan["planned_values"]["root_module"]["resources"].pop()
        assert any(
            resource["address"] in line
            for line in inventory.differences(recorded_values, shorter_plan)
        )
    with pytest.raises(InputError, match="unknown environment"):
        inventory.main(["no-such"])


@needs("prod")
def test_the_billing_api_is_told_which_project_asks(load_plans: LoadPlans) -> None:
    """The API refuses a call with a person's credentials that names no project."""
    expressions = load_plans("prod")["monitoring-prod"]["configuration"]["provider_config"][
        "google"
    ]["expressions"]
    assert expressions["billing_project"] == {"constant_value": load("prod").project}
    assert expressions["user_project_override"] == {"constant_value": True}
