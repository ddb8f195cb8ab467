"""Plans a configuration against the state that another plan would leave, to find the effects of a
change of code without a cloud and without a state.

The state is made from planned values, without those that only the cloud knows, so a plan against it
shows some differences that no real state has. Two plans against one state are compared: differences
that both show come from the state.
"""

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from infra.ops import engine
from infra.ops.plan import EMPTY_STATE, plan_stacks, take_over
from infra.ops.synth import synthesize

Plan = Mapping[str, Any]
Change = dict[str, Any]
# Terraform requires a lineage, and compares it with nothing here. It is constant, so that a state
# is the same in every run.
LINEAGE = "00000000-0000-0000-0000-000000000000"
# Attributes that the cloud chooses and other resources refer to, apart from the id. A list must
# not hold a null instead, and a required argument must have a value.
CHOSEN_BY_GOOGLE = {
    "google_monitoring_notification_channel": ("name", ""),
    "google_monitoring_alert_policy": ("name", ""),
    "google_billing_budget": ("name", ""),
    "google_logging_project_sink": ("writer_identity", "serviceAccount:"),
}
"""Kind -> the attribute, and how its values begin."""

# These attributes have no fixed type: a state names the type with the value.
OF_ANY_TYPE = {"terraform_data": ("input", "triggers_replace")}


def make_state(plan: Plan) -> dict[str, Any]:
    """Make Terraform's state, version 4, in which everything that `plan` creates exists."""
    planned = plan["planned_values"]["root_module"].get("resources", [])
    return {
        "version": 4,
        "terraform_version": plan["terraform_version"],
        "serial": 1,
        "lineage": LINEAGE,
        "outputs": {},
        "resources": [_to_state(resource) for resource in planned],
    }


def _to_state(resource: Mapping[str, Any]) -> dict[str, Any]:
    attributes = {"id": resource["address"]}
    if resource["type"] in CHOSEN_BY_GOOGLE:
        name, beginning = CHOSEN_BY_GOOGLE[resource["type"]]
        attributes[name] = beginning + resource["address"]
    attributes |= resource["values"]
    for name in OF_ANY_TYPE.get(resource["type"], ()):
        if isinstance(attributes.get(name), str):
            attributes[name] = {"value": attributes[name], "type": "string"}
    # Without the version the provider would upgrade the attributes from an older schema.
    instance = {
        "schema_version": resource["schema_version"],
        "attributes": attributes,
        "sensitive_attributes": [],
    }
    return {
        "mode": "managed",
        "type": resource["type"],
        "name": resource["name"],
        "provider": f'provider["{resource["provider_name"]}"]',
        "instances": [instance],
    }


def remove_protections(stack: Path) -> dict[str, Any]:
    """Return the configuration of a synthesized stack without its protections."""
    configuration = json.loads((stack / "cdk.tf.json").read_text())
    for resources in configuration.get("resource", {}).values():
        for resource in resources.values():
            resource.get("lifecycle", {}).pop("prevent_destroy", None)
    return configuration


def plan_against(
    configuration: Mapping[str, Any],
    state: Mapping[str, Any],
    folder: Path,
    *options: str,
    initialized: Path | None = None,
) -> Plan:
    """Plan a configuration against a state, in `folder`, as Terraform reads both.

    `initialized`: a folder with the same providers, whose `init` is reused.
    """
    (folder / "cdk.tf.json").write_text(json.dumps(configuration))
    (folder / "recorded.tfstate").write_text(json.dumps(state))
    (folder / "backend_override.tf.json").write_text(json.dumps(EMPTY_STATE))
    init = engine.offline()
    if initialized:
        take_over(initialized, folder)
    else:
        init.run(folder, "init", "-no-color", "-reconfigure")
    run = engine.isolate(init)
    # The recorded resources exist nowhere: a refresh would ask the cloud for each of them.
    run.run(folder, "plan", "-no-color", "-refresh=false", "-lock=false", "-out=plan", *options)
    return json.loads(run.run(folder, "show", "-json", "plan"))


Effect = tuple[str, str]
"""One of destroyed, replaced, changed or created; and the line that describes it."""


def effects(
    environment: str,
    root: Path,
    other: Path,
    folder: Path,
) -> list[Effect]:
    """Return the effects of the code in `other` on what the code in `root` deployed.

    Needs the provider of this checkout, and that of `other` if it pins another.
    """
    with ThreadPoolExecutor(max_workers=2) as pool:
        current = pool.submit(synthesize, environment, folder / "now", local_state=True, root=root)
        merged = pool.submit(synthesize, environment, folder / "then", local_state=True, root=other)
        now = current.result()
        then = merged.result()
        # Equal configurations need no plan: most merges change one stack, or none.
        stacks = []
        changed: dict[str, Path] = {}
        for stack in now | then:
            if not _is_equal(now.get(stack), then.get(stack)):
                stacks.append(stack)
                if stack in now:
                    changed[stack] = now[stack]
        files = plan_stacks(changed, folder / "plans")
        comparisons = []
        for stack in stacks:
            plan = json.loads(files[stack].read_text()) if stack in files else None
            comparisons.append(
                pool.submit(_compare, stack, now.get(stack), then.get(stack), plan, folder)
            )
        all_effects: list[Effect] = []
        for comparison in comparisons:
            all_effects += comparison.result()
        return all_effects


def _is_equal(now: Path | None, then: Path | None) -> bool:
    if now is None or then is None:
        return False
    return _configuration(now) == _configuration(then)


def _configuration(stack: Path) -> dict[str, Any]:
    """Read a stack, without the backend, which names the folder of its checkout."""
    configuration = json.loads((stack / "cdk.tf.json").read_text())
    configuration["terraform"].pop("backend", None)
    return configuration


def _providers(stack: Path) -> object:
    return _configuration(stack)["terraform"]["required_providers"]


def _compare(
    stack: str,
    now: Path | None,
    then: Path | None,
    plan: Plan | None,
    folder: Path,
) -> list[Effect]:
    if now is None or plan is None:
        return [("created", f"{stack} (a new stack)")]
    if then is None:
        planned = plan["planned_values"]["root_module"].get("resources", [])
        return [("destroyed", f"{stack} {resource['address']}") for resource in planned]
    state = make_state(plan)
    initialized = now if _providers(now) == _providers(then) else None
    before = _plan_stack(now, state, folder / "replay-now" / stack, now)
    after = _plan_stack(then, state, folder / "replay-then" / stack, initialized)
    stack_effects: list[Effect] = []
    for address, change in after.items():
        stack_effects += _effect(f"{stack} {address}", change, before.get(address, {}))
    return stack_effects


def _plan_stack(
    stack: Path,
    state: Mapping[str, Any],
    folder: Path,
    initialized: Path | None,
) -> dict[str, Change]:
    """Return address -> change. Without protections, the plan shows the destroy of a protected
    resource instead of failing.
    """
    folder.mkdir(parents=True)
    plan = plan_against(remove_protections(stack), state, folder, initialized=initialized)
    return {resource["address"]: resource["change"] for resource in plan["resource_changes"]}


def _effect(resource: str, change: Change, before: Change) -> list[Effect]:
    """Describe the changes of the other side that this side does not have. Those on both sides are
    gaps of a state that is made from a plan.
    """
    if change["actions"] == ["delete"]:
        return [("destroyed", resource)]
    if change["actions"] == ["create"]:
        return [("created", resource)]
    forcing = sorted(list_forcing(change) - list_forcing(before))
    if forcing:
        return [("replaced", f"{resource}: {', '.join(forcing)}")]
    attributes = list_differences(change.get("after") or {}, before.get("after") or {})
    if attributes:
        return [("changed", f"{resource}: {', '.join(attributes)}")]
    return []


def list_forcing(change: Change) -> set[str]:
    """Return the attributes that force a replacement, as `node_config.oauth_scopes`."""
    attributes = set()
    for path in change.get("replace_paths", []):
        names = [part for part in path if not isinstance(part, int)]
        attributes.add(".".join(names))
    return attributes


def list_differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return the keys whose values differ."""
    keys = []
    for key in before | after:
        if before.get(key) != after.get(key):
            keys.append(key)
    return sorted(keys)
