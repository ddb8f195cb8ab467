"""Commands print losses before other changes, and `diff` finds changes of lists that Terraform
ignores.
"""

import copy
import json
from typing import Any

import pytest

from infra.ops import drift, show
from infra.ops.plan import Change, list_changes
from infra.rules import Finding
from infra.specs import resources
from tests.infra.rules.test_rules import to_plan_shape
from tests.infra.samples import EXAMPLE

PLAN = {
    "resource_changes": [
        {
            "address": f"google_a.{name}",
            "type": "google_a",
            "change": {"actions": actions},
        }
        for name, actions in {
            "new": ["create"],
            "same": ["no-op"],
            "gone": ["delete", "create"],
        }.items()
    ]
}


def test_losses_stand_first_and_what_stays_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    ignored = Change(
        address="google_a.b",
        kind="google_a",
        actions=drift.IGNORED,
        difference='x[0].y lacks "Z"',
        fix="correct it",
    )
    drift.show(EXAMPLE, {"cluster-example": [*list_changes(PLAN), ignored]}, as_json=False)
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert "google_a.gone" in lines[1]
    assert "google_a.new" in lines[2]
    assert 'google_a.b x[0].y lacks "Z"' in lines[3]
    assert "Next: correct it" in shown.err
    assert lines[-1] == "example: 3 changes, 1 destroy or replace"
    drift.show(EXAMPLE, {"cluster-example": list_changes(PLAN)}, as_json=True)
    output = json.loads(capsys.readouterr().out)
    assert output["schema"] == "holdfast.drift/1"
    assert len(output["changes"]) == 2


def make_deployed_plan() -> dict[str, Any]:
    """Each resource as the refresh of a plan finds it, its lists in another order than stated."""
    plan: dict[str, Any] = {"resource_changes": []}
    for resource in resources(EXAMPLE):
        values = copy.deepcopy(to_plan_shape(dict(resource.arguments)))
        for block, name in (("monitoring_config", "enable_components"), ("node_config", "taint")):
            if name in values.get(block, [{}])[0]:
                values[block][0][name].reverse()
        change = {
            "actions": ["no-op"],
            "before": values,
        }
        plan["resource_changes"].append(
            {
                "address": resource.address,
                "type": resource.kind,
                "change": change,
            }
        )
    return plan


def test_ignored_lists_are_compared_as_sets() -> None:
    plan = make_deployed_plan()
    assert list(drift.find_list_changes(EXAMPLE, plan)) == [], "in any order"
    deployed_values = {c["address"]: c["change"]["before"] for c in plan["resource_changes"]}
    deployed_values["google_container_cluster.cluster"]["monitoring_config"][0][
        "enable_components"
    ].remove("DCGM")
    deployed_values["google_container_cluster.cluster"]["logging_config"][0][
        "enable_components"
    ].append("KCP_HPA")
    deployed_values["google_container_node_pool.pool-spot-a100"]["node_config"][0]["taint"].pop(0)
    logs, metrics, taint = sorted(
        drift.find_list_changes(EXAMPLE, plan), key=lambda c: c.difference
    )
    assert logs.difference == 'logging_config[0].enable_components has in addition "KCP_HPA"'
    assert metrics.difference == 'monitoring_config[0].enable_components lacks "DCGM"'
    assert taint.address.endswith("pool-spot-a100")
    assert "taint lacks" in taint.difference
    cluster = "holdfast-example --region=us-central1"
    assert logs.fix.startswith(
        f"gcloud container clusters update {cluster} --logging=API_SERVER,CONTROLLER_MANAGER"
    )
    taints = "nvidia.com/gpu=present:NoSchedule,provisioning-tier=preemptible:NoSchedule"
    assert (
        taint.fix == f"gcloud container node-pools update spot-a100 --cluster={cluster}"
        f" --node-taints={taints}"
    )
    for change in plan["resource_changes"]:
        change["change"]["before"] = None
    assert list(drift.find_list_changes(EXAMPLE, plan)) == [], "before the first deployment"


FINDING = Finding(
    rule="gpu-taint",
    where="google_a.gone",
    got="none",
    allowed="the taint",
    fix="add it",
)


def test_destroys_and_replacements_come_first_then_broken_rules(
    capsys: pytest.CaptureFixture[str],
) -> None:
    destroyed = Change(
        address="google_c.old",
        kind="google_c",
        actions=("delete",),
    )
    changes = {
        "cluster-x": list_changes(PLAN),
        "foundation-x": [destroyed],
    }
    show.plan(changes, [FINDING], full=True, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["REPLACE  google_a.gone", "DESTROY  google_c.old"]
    assert lines[2].startswith("BROKEN   [gpu-taint] google_a.gone")
    assert lines[-1] == "3 changes, 2 destroy or replace, 1 rules broken"
    show.plan(changes, [FINDING], full=False, as_json=True)
    output = json.loads(capsys.readouterr().out)
    assert output["schema"] == "holdfast.plan/1"
    assert output["findings"][0]["rule"] == "gpu-taint"
    assert output["destroys"] == ["google_a.gone", "google_c.old"]
