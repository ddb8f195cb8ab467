"""Finds what a deployment would change, without cdktf: for pull requests and nightly runs."""

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.support.tables import print_json, print_table
from holdfast.vocabulary.pools import Effect
from infra.environments import Environment
from infra.ops import engine
from infra.ops.plan import Change, list_changes
from infra.ops.synth import ROOT, synthesize
from infra.specs import Resource, resources

IGNORED = ("ignored",)
# gcloud spells some components differently from the API.
COMMAND_NAMES = {
    "APISERVER": "API_SERVER",
    "SYSTEM_COMPONENTS": "SYSTEM",
    "WORKLOADS": "WORKLOAD",
}


def drift(
    environment: Environment,
    show_plan: Callable[[str], None] | None = None,
    out: Path = ROOT / "out" / "drift",
) -> dict[str, list[Change]]:
    """Return stack -> changes, against the real state and the real project. Read-only; takes no
    lock of the state.

    `show_plan` gets each stack's plan as the engine prints it.
    """
    run = engine.online()
    stacks = synthesize(environment.name, out / environment.name, local_state=False)
    changes: dict[str, list[Change]] = {}
    for stack, folder in stacks.items():
        # Without -reconfigure, `init` in a folder of an earlier run asks whether to move the state
        # to another bucket.
        run.run(folder, "init", "-no-color", "-reconfigure")
        # A lock is an object in the state's bucket: it needs the right to write, and a nightly run
        # must not make a deployment fail.
        run.run(folder, "plan", "-no-color", "-lock=false", "-out=plan")
        if show_plan:
            show_plan(run.run(folder, "show", "-no-color", "plan"))
        plan_json = json.loads(run.run(folder, "show", "-json", "plan"))
        changes[stack] = [*list_changes(plan_json), *find_list_changes(environment, plan_json)]
    return changes


def find_list_changes(environment: Environment, plan_json: Mapping[str, Any]) -> Iterator[Change]:
    """Yield changes of lists that Terraform ignores because the API reorders them, if they differ
    as sets.

    They are read from the plan, whose refresh has read the API: the account that plans needs no
    further right.
    """
    planned = {change["address"]: change for change in plan_json.get("resource_changes", [])}
    for resource in resources(environment):
        deployed = planned.get(resource.address, {}).get("change", {}).get("before")
        if not deployed:  # before the first deployment
            continue
        for path in resource.ignore_changes:
            expected = _get(resource.arguments, path)
            if not isinstance(expected, list):
                continue
            difference = _compare_sets(expected, _get(deployed, path) or ())
            if difference:
                yield Change(
                    address=resource.address,
                    kind=resource.kind,
                    actions=IGNORED,
                    difference=f"{path} {difference}",
                    fix=_make_command(environment, resource, path),
                )


def _make_command(environment: Environment, resource: Resource, path: str) -> str:
    """Return the gcloud command that sets the list at `path` as the specs state it."""
    items: list[Any] = _get(resource.arguments, path)
    region = f"--region={environment.region}"
    if resource.kind == "google_container_cluster":
        option = path.partition("_")[0]
        components = []
        for item in items:
            components.append(COMMAND_NAMES.get(item, item))
        cluster = f"{environment.cluster_name} {region}"
        names = ",".join(components)
        return f"gcloud container clusters update {cluster} --{option}={names}"
    effects = {effect.provider_value: effect.value for effect in Effect}
    taints = []
    for taint in items:
        effect = effects[taint["effect"]]
        taints.append(f"{taint['key']}={taint['value']}:{effect}")
    pool = f"{resource.arguments['name']} --cluster={environment.cluster_name} {region}"
    return f"gcloud container node-pools update {pool} --node-taints={','.join(taints)}"


def _get(values: Any, path: str) -> Any:
    """Return the value at a path of ignore_changes. A block that occurs at most once is a list in a
    plan, but not in the specs.
    """
    for name in re.split(r"(?:\[0\])?\.", path):
        if isinstance(values, list) and values:
            values = values[0]
        values = values.get(name) if isinstance(values, Mapping) else None
    return values


def _compare_sets(expected: Iterable[Any], deployed: Iterable[Any]) -> str:
    """Describe how the lists differ in any order; empty if they do not (infra/decisions/0016)."""
    expected_items = {json.dumps(item, sort_keys=True) for item in expected}
    deployed_items = {json.dumps(item, sort_keys=True) for item in deployed}
    differences = []
    if missing := expected_items - deployed_items:
        differences.append(f"lacks {', '.join(sorted(missing))}")
    if extra := deployed_items - expected_items:
        differences.append(f"has in addition {', '.join(sorted(extra))}")
    return "; ".join(differences)


def show(
    environment: Environment,
    changes_by_stack: Mapping[str, Sequence[Change]],
    as_json: bool,
) -> None:
    """Print the changes; losses come first, since a comment on a pull request is read from the
    top.
    """
    items: list[dict[str, str]] = []
    for stack, changes in changes_by_stack.items():
        for change in changes:
            items.append(
                {
                    "stack": stack,
                    "actions": "/".join(change.actions),
                    "address": change.address,
                    "difference": change.difference,
                    "fix": change.fix,
                }
            )
    if as_json:
        print_json("drift", environment=environment.name, changes=items)
        return
    losses: list[tuple[str, str, str]] = []
    other_changes: list[tuple[str, str, str]] = []
    for item in items:
        address = f"{item['address']} {item['difference']}".rstrip()
        rows = losses if "delete" in item["actions"] else other_changes
        rows.append((item["stack"], item["actions"], address))
    print_table(("STACK", "ACTION", "ADDRESS"), [*losses, *other_changes])
    print(f"{environment.name}: {len(items)} changes, {len(losses)} destroy or replace")
    for item in items:
        if item["fix"]:  # `deploy` does not change what Terraform ignores
            print(f"Next: {item['fix']}", file=sys.stderr)
