"""What the commands print, as a table or as one JSON object."""

from dataclasses import asdict

from holdfast.contract.exit_codes import EXIT_DONE, EXIT_FINDINGS
from holdfast.tables import print_json, print_table
from infra.environments import Environment
from infra.ops.leftovers import Leftover
from infra.ops.plan import Change, counts
from infra.rules import Finding


def pools(environment: Environment, as_json: bool) -> None:
    found = [
        {
            "pool": p.name,
            "role": p.role.value,
            "capacity": p.capacity.value,
            "machine": p.machine_type,
            "gpus": f"{p.gpus_per_node} x {p.accelerator}" if p.gpus_per_node else "",
            "nodes": f"{p.min_nodes}..{p.max_nodes}",
            "window": f"{p.window.pod_s} s" if p.interruptible else "",
            "taints": ", ".join(str(t) for t in p.taints),
        }
        for p in environment.pools()
    ]
    if as_json:
        print_json("pools", environment=environment.name, pools=found)
    else:
        print_table([key.upper() for key in found[0]], [list(p.values()) for p in found])


def plan(stacks: dict[str, list[Change]], findings: list[Finding], *, full: bool, as_json: bool) -> None:
    """Destroys and replacements first, since they are what a reader must not miss; then what breaks a rule."""
    everything = [change for changes in stacks.values() for change in changes]
    losses = [c for c in everything if c.destroys]
    if as_json:
        print_json(
            "plan",
            destroys=[c.address for c in losses],
            findings=[asdict(found) for found in findings],
            counts=counts(everything),
            stacks={stack: counts(changes) for stack, changes in stacks.items()},
        )
        return
    for change in losses:
        print(f"{'REPLACE' if 'create' in change.actions else 'DESTROY'}  {change.address}")
    for found in findings:
        print(f"BROKEN   [{found.rule}] {found.where}: got {found.got}; allowed: {found.allowed}")
    for stack, changes in stacks.items():
        print_table([stack, ""], [*counts(changes).items(), ("total", len(changes))])
        print()
    if full:
        print_table(["ACTION", "ADDRESS"], [("/".join(c.actions), c.address) for c in everything])
    print(f"{len(everything)} changes, {len(losses)} destroy or replace, {len(findings)} rules broken")


def leftovers(found: list[Leftover], as_json: bool) -> int:
    bills = [item for item in found if item.bills]
    if as_json:
        print_json("leftovers", found=[asdict(item) for item in found], bills=len(bills))
    else:
        columns = ["KIND", "NAME", "WHERE", "BILLS", "REMOVE WITH"]
        print_table(columns, [(i.kind, i.name, i.where, "yes" if i.bills else "no", i.remove) for i in found])
        print(f"{len(found)} left, {len(bills)} of them bill")
    # What costs nothing is shown and is no finding: a forgotten firewall rule must not fail a clean destroy.
    return EXIT_FINDINGS if bills else EXIT_DONE
