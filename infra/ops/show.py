"""Tables and JSON objects of the commands. Data goes to standard output; off a terminal without colour or cut lines."""

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from holdfast.contract.exit_codes import EXIT_DONE, EXIT_FINDINGS, EXIT_NOT_JUDGED
from infra.environments import Environment
from infra.ops.doctor import Check, Verdict
from infra.ops.leftovers import Leftover
from infra.ops.plan import Change, counts


def print_json(thing: str, **fields: object) -> None:
    print(json.dumps({"schema": f"holdfast.{thing}/1", **fields}, indent=2))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """Plain aligned rows off a terminal, whatever their width."""
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=not sys.stdout.isatty(), overflow="fold")
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    # In a pipe rich would wrap at 80 columns, and grep would find half an address.
    width = None if sys.stdout.isatty() else 1_000
    # Addresses hold brackets, which markup would swallow.
    Console(width=width, highlight=False, markup=False).print(table)


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


def plan(stacks: dict[str, list[Change]], findings: list[dict[str, str]], *, full: bool, as_json: bool) -> None:
    """Destroys and replacements first, since they are what a reader must not miss; then what breaks a rule."""
    everything = [change for changes in stacks.values() for change in changes]
    losses = [c for c in everything if c.destroys]
    if as_json:
        print_json(
            "plan",
            destroys=[c.address for c in losses],
            findings=findings,
            counts=counts(everything),
            stacks={stack: counts(changes) for stack, changes in stacks.items()},
        )
        return
    for change in losses:
        print(f"{'REPLACE' if 'create' in change.actions else 'DESTROY'}  {change.address}")
    for found in findings:
        print(f"BROKEN   [{found['rule']}] {found['where']}: got {found['got']}; allowed: {found['allowed']}")
    for stack, changes in stacks.items():
        print_table([stack, ""], [*counts(changes).items(), ("total", len(changes))])
        print()
    if full:
        print_table(["ACTION", "ADDRESS"], [("/".join(c.actions), c.address) for c in everything])
    print(f"{len(everything)} changes, {len(losses)} destroy or replace, {len(findings)} rules broken")


def doctor(checks: list[Check], as_json: bool) -> int:
    """Exit code: broken before unknown, since it can be mended."""
    if as_json:
        print_json("doctor", checks=[asdict(check) for check in checks])
    else:
        print_table(["CHECK", "", "FOUND", "FIX"], [(c.name, c.verdict, c.found, c.fix) for c in checks])
    verdicts = {c.verdict for c in checks}
    if Verdict.BROKEN in verdicts:
        return EXIT_FINDINGS
    return EXIT_NOT_JUDGED if Verdict.UNKNOWN in verdicts else EXIT_DONE


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
