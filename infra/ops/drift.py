"""What a deployment would change, without cdktf: for pull requests and for the night, with an exit code for it."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from infra.environments import Environment
from infra.ops import engine
from infra.ops.plan import Change, changes_of
from infra.ops.show import print_json, print_table
from infra.ops.synth import ROOT, synthesise


def drift(environment: Environment, out: Path = ROOT / "out" / "drift") -> dict[str, list[Change]]:
    """Stack -> changes, against the real state and the real project. Read-only; takes no lock of the state."""
    run = engine.connected()
    stacks = synthesise(environment.name, out / environment.name, local_state=False)
    found: dict[str, list[Change]] = {}
    for stack, folder in stacks.items():
        # Without -reconfigure, `init` in a folder of an earlier run asks whether to move the state to another bucket.
        run.run(folder, "init", "-no-color", "-reconfigure")
        # A lock is an object in the state's bucket: it needs the right to write, and
        # a nightly look must not make a deployment fail.
        run.run(folder, "plan", "-no-color", "-lock=false", "-out=plan")
        found[stack] = changes_of(json.loads(run.run(folder, "show", "-json", "plan")))
    return found


def show(environment: Environment, found: Mapping[str, Sequence[Change]], as_json: bool) -> None:
    rows = [(stack, "/".join(c.actions), c.address) for stack, changes in found.items() for c in changes]
    if as_json:
        named = [{"stack": stack, "actions": actions, "address": address} for stack, actions, address in rows]
        print_json("drift", environment=environment.name, changes=named)
        return
    # What is lost stands first: a comment on a pull request is read from the top.
    losses = [row for row in rows if "delete" in row[1]]
    print_table(("STACK", "ACTION", "ADDRESS"), [*losses, *(row for row in rows if row not in losses)])
    print(f"{environment.name}: {len(rows)} changes, {len(losses)} destroy or replace")
