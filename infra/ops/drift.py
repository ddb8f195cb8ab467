"""What a deployment would change, without cdktf: for pull requests and for the night, with an exit
code for it.
"""

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
from infra.ops.plan import Change, changes_of
from infra.ops.synth import ROOT, synthesise
from infra.specs import Resource, resources

IGNORED = ("ignored",)
# gcloud spells some components otherwise than the API.
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
    """Stack -> changes, against the real state and the real project. Read-only; takes no lock of
    the state.

    `show_plan` gets each stack's plan as the engine prints it.
    """
    run = engine.connected()
    stacks = synthesise(environment.name, out / environment.name, local_state=False)
    found: dict[str, list[Change]] = {}
    for stack, folder in stacks.items():
        # Without -reconfigure, `init` in a folder of an earlier run asks whether to move the state
        # to another bucket.
        run.run(folder, "init", "-no-color", "-reconfigure")
        # A lock is an object in the state's bucket: it needs the right to write, and
        # a nightly look must not make a deployment fail.
        run.run(folder, "plan", "-no-color", "-lock=false", "-out=plan")
        if show_plan:
            show_plan(run.run(folder, "show", "-no-color", "plan"))
        plan_json = json.loads(run.run(folder, "show", "-json", "plan"))
        found[stack] = [*changes_of(plan_json), *ignored_differences(environment, plan_json)]
    return found


def ignored_differences(environment: Environment, plan_json: Mapping[str, Any]) -> Iterator[Change]:
    """Lists that Terraform leaves alone for the API's order of them, where they differ as sets,
    too.

    Read from the plan, whose refresh has just read the API: the account that plans needs no further
    right.
    """
    planned = {c["address"]: c for c in plan_json.get("resource_changes", [])}
    for resource in resources(environment):
        # Nothing is there before the first deployment.
        there = planned.get(resource.address, {}).get("change", {}).get("before")
        for path in resource.ignore_changes if there else ():
            stated = _at(resource.arguments, path)
            if isinstance(stated, list) and (
                difference := _as_sets(stated, _at(there, path) or ())
            ):
                yield Change(
                    address=resource.address,
                    kind=resource.kind,
                    actions=IGNORED,
                    difference=f"{path} {difference}",
                    fix=_fix(environment, resource, path),
                )


def _fix(environment: Environment, resource: Resource, path: str) -> str:
    """The command that sets the list as it is stated, in gcloud's words."""
    stated: list[Any] = _at(resource.arguments, path)
    place = f"--region={environment.region}"
    if resource.kind == "google_container_cluster":
        flag = f"--{path.partition('_')[0]}={','.join(COMMAND_NAMES.get(str(each), str(each)) for each in stated)}"
        return f"gcloud container clusters update {environment.cluster_name} {place} {flag}"
    effects = {effect.provider_value: effect.value for effect in Effect}
    taints = ",".join(f"{each['key']}={each['value']}:{effects[each['effect']]}" for each in stated)
    pool = f"{resource.arguments['name']} --cluster={environment.cluster_name}"
    return f"gcloud container node-pools update {pool} {place} --node-taints={taints}"


def _at(values: Any, path: str) -> Any:
    """`path` as ignore_changes has it. A block that occurs at most once is a list in a plan, and
    none in the specs.
    """
    for name in re.split(r"(?:\[0\])?\.", path):
        values = values[0] if isinstance(values, list) and values else values
        values = values.get(name) if isinstance(values, Mapping) else None
    return values


def _as_sets(stated: Iterable[Any], found: Iterable[Any]) -> str:
    """Empty where both hold the same, in any order (infra/decisions/0016)."""
    wanted, there = (
        {json.dumps(item, sort_keys=True) for item in items} for items in (stated, found)
    )
    both = (("lacks", wanted - there), ("has in addition", there - wanted))
    return "; ".join(f"{word} {', '.join(sorted(items))}" for word, items in both if items)


def show(environment: Environment, found: Mapping[str, Sequence[Change]], as_json: bool) -> None:
    listed = [(stack, c) for stack, changes in found.items() for c in changes]
    rows = [
        (stack, "/".join(c.actions), f"{c.address} {c.difference}".rstrip()) for stack, c in listed
    ]
    if as_json:
        named = [
            {
                "stack": stack,
                "actions": "/".join(c.actions),
                "address": c.address,
                "difference": c.difference,
                "fix": c.fix,
            }
            for stack, c in listed
        ]
        print_json("drift", environment=environment.name, changes=named)
        return
    # Losses first: a comment on a pull request is read from the top.
    losses = [row for row in rows if "delete" in row[1]]
    print_table(
        ("STACK", "ACTION", "ADDRESS"), [*losses, *(row for row in rows if row not in losses)]
    )
    print(f"{environment.name}: {len(rows)} changes, {len(losses)} destroy or replace")
    for fix in (c.fix for _, c in listed if c.fix):  # `deploy` ignores these
        print(f"Next: {fix}", file=sys.stderr)
