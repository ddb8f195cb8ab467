"""Plan a configuration against the state that an earlier plan would have left. Asks no cloud, needs no state.

The state is made from planned values. What only the cloud knows is missing in it, so a plan against it shows some
differences that no real state has: compare two plans against one state, and what both show is of the state.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infra.ops import engine
from infra.ops.plan import EMPTY_STATE, take_over

Plan = Mapping[str, Any]
# Terraform demands one and compares it with nothing here; constant, so that a state is the same in every run.
LINEAGE = "00000000-0000-0000-0000-000000000000"
# Kinds whose name the cloud gives, and which others may refer to: a list may not hold the null that would stand there.
NAMED_BY_GOOGLE = ("google_monitoring_notification_channel", "google_monitoring_alert_policy", "google_billing_budget")

# Attributes of no fixed type: a state names the type beside the value.
OF_ANY_TYPE = {"terraform_data": ("input", "triggers_replace")}


def state_of(plan: Plan) -> dict[str, Any]:
    """Terraform's state, version 4, in which everything that `plan` creates exists."""
    planned = plan["planned_values"]["root_module"].get("resources", [])
    return {
        "version": 4,
        "terraform_version": plan["terraform_version"],
        "serial": 1,
        "lineage": LINEAGE,
        "outputs": {},
        "resources": [_recorded(resource) for resource in planned],
    }


def _recorded(resource: Mapping[str, Any]) -> dict[str, Any]:
    unknown = ("id", "name") if resource["type"] in NAMED_BY_GOOGLE else ("id",)
    attributes = dict.fromkeys(unknown, resource["address"]) | resource["values"]
    for name in OF_ANY_TYPE.get(resource["type"], ()):
        if isinstance(attributes.get(name), str):
            attributes[name] = {"value": attributes[name], "type": "string"}
    # Without the version the provider would upgrade the attributes from a schema that they never had.
    instance = {"schema_version": resource["schema_version"], "attributes": attributes, "sensitive_attributes": []}
    return {
        "mode": "managed",
        "type": resource["type"],
        "name": resource["name"],
        "provider": f'provider["{resource["provider_name"]}"]',
        "instances": [instance],
    }


def replan(stack: Path, state: Mapping[str, Any], folder: Path, *options: str, initialised: Path | None = None) -> Plan:
    """The plan of a synthesised stack against `state`, in `folder`, which is made anew.

    `initialised`: a folder that was planned with the same providers, whose initialisation is taken over.
    Protections are left out: a protected resource that must go shows as such, instead of ending the plan.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    configuration = json.loads((stack / "cdk.tf.json").read_text())
    for resources in configuration.get("resource", {}).values():
        for resource in resources.values():
            resource.get("lifecycle", {}).pop("prevent_destroy", None)
    return plan_against(configuration, state, folder, *options, initialised=initialised)


def plan_against(
    configuration: Mapping[str, Any],
    state: Mapping[str, Any],
    folder: Path,
    *options: str,
    initialised: Path | None = None,
) -> Plan:
    """The plan of a configuration as Terraform reads it, protections included."""
    (folder / "cdk.tf.json").write_text(json.dumps(configuration))
    (folder / "recorded.tfstate").write_text(json.dumps(state))
    (folder / "backend_override.tf.json").write_text(json.dumps(EMPTY_STATE))
    init = engine.offline()
    if initialised:
        take_over(initialised, folder)
    else:
        init.run(folder, "init", "-no-color", "-reconfigure")
    run = engine.cut_off(init)
    # The recorded resources exist nowhere: a refresh would ask the cloud for each of them.
    run.run(folder, "plan", "-no-color", "-refresh=false", "-lock=false", "-out=plan", *options)
    return json.loads(run.run(folder, "show", "-json", "plan"))
