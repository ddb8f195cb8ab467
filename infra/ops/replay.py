"""Plan a configuration against the state that an earlier plan would have left, and what a change of
code does to it.

Asks no cloud, needs no state.

The state is made from planned values. What only the cloud knows is missing in it, so a plan against
it shows some differences that no real state has: compare two plans against one state, and what both
show is of the state.
"""

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from infra.ops import engine
from infra.ops.plan import EMPTY_STATE, plan_stacks, take_over
from infra.ops.synth import synthesise

Plan = Mapping[str, Any]
Change = dict[str, Any]
# Terraform demands one and compares it with nothing here; constant, so that a state is the same in
# every run.
LINEAGE = "00000000-0000-0000-0000-000000000000"
# Kinds whose name the cloud gives, and which others may refer to: a list may not hold a null in its
# place.
NAMED_BY_GOOGLE = (
    "google_monitoring_notification_channel",
    "google_monitoring_alert_policy",
    "google_billing_budget",
)

# Attributes of no fixed type: a state names the type with the value.
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
    # Without the version the provider would upgrade the attributes from a schema that they never
    # had.
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


def unprotected(stack: Path) -> dict[str, Any]:
    """The configuration of a synthesised stack without its protections."""
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


Effect = tuple[str, str]
"""destroyed, replaced, changed or created; and the line that says of what."""


def effects(environment: str, root: Path, other: Path, folder: Path) -> list[Effect]:
    """Of `other` on what `root` deployed. Needs the provider of this checkout, and of `other` if it
    pins another.
    """
    with ThreadPoolExecutor(max_workers=2) as pool:
        sides = [
            pool.submit(
                synthesise,
                environment,
                folder / side,
                local_state=True,
                root=at,
            )
            for side, at in (("now", root), ("then", other))
        ]
        now, then = (side.result() for side in sides)
        # What both sides write the same way needs no plan: most merges touch one stack, or none.
        stacks = [
            s
            for s in [*now, *(s for s in then if s not in now)]
            if not _same(now.get(s), then.get(s))
        ]
        touched = {stack: path for stack, path in now.items() if stack in stacks}
        plans = {
            stack: json.loads(file.read_text())
            for stack, file in plan_stacks(touched, folder / "plans").items()
        }
        running = [
            pool.submit(_stack, s, now.get(s), then.get(s), plans.get(s), folder) for s in stacks
        ]
        return [effect for stack in running for effect in stack.result()]


def _same(now: Path | None, then: Path | None) -> bool:
    return now is not None and then is not None and _configuration(now) == _configuration(then)


def _configuration(stack: Path) -> dict[str, Any]:
    """Without the backend, which names the folder of its checkout."""
    read = json.loads((stack / "cdk.tf.json").read_text())
    read["terraform"].pop("backend", None)
    return read


def _providers(stack: Path) -> object:
    return _configuration(stack)["terraform"]["required_providers"]


def _stack(
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
    state = state_of(plan)
    known = now if _providers(now) == _providers(then) else None
    before = _replanned(now, state, folder / "replay-now" / stack, now)
    after = _replanned(then, state, folder / "replay-then" / stack, known)
    return [
        effect
        for address, change in after.items()
        for effect in _effect(f"{stack} {address}", change, before.get(address, {}))
    ]


def _replanned(
    stack: Path,
    state: Mapping[str, Any],
    folder: Path,
    initialised: Path | None,
) -> dict[str, Change]:
    """Address -> change. Without protections: a protected resource that must go is shown, and does
    not end the plan.
    """
    folder.mkdir(parents=True)
    plan = plan_against(unprotected(stack), state, folder, initialised=initialised)
    return {c["address"]: c["change"] for c in plan["resource_changes"]}


def _effect(where: str, change: Change, before: Change) -> Iterator[Effect]:
    """Only what the other side does and this side does not: a state made from a plan has gaps that
    both show.
    """
    actions = change["actions"]
    if actions == ["delete"]:
        yield ("destroyed", where)
    elif actions == ["create"]:
        yield ("created", where)
    # A state made from planned values forces some replacements of its own; both sides show those.
    elif forced := sorted(forcing(change) - forcing(before)):
        yield ("replaced", f"{where}: {', '.join(forced)}")
    elif different := differing(change.get("after") or {}, before.get("after") or {}):
        yield ("changed", f"{where}: {', '.join(different)}")


def forcing(change: Change) -> set[str]:
    """Attributes that force a replacement, as `node_config.oauth_scopes`."""
    return {
        ".".join(str(part) for part in path if not isinstance(part, int))
        for path in change.get("replace_paths", [])
    }


def differing(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    return sorted(key for key in one | other if one.get(key) != other.get(key))
