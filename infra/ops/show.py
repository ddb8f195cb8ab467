"""What the commands print, as a table or as one JSON object."""

from dataclasses import asdict

from holdfast.support.tables import print_json, print_table
from holdfast.vocabulary.exit_codes import EXIT_DONE, EXIT_FINDINGS
from infra.contract.names import AREAS
from infra.environments import Environment, placeholders, source_of
from infra.environments.checks import PLACEHOLDER
from infra.ops.leftovers import Leftover
from infra.ops.plan import Change, counts
from infra.rules import RULES, Finding, judge_environment
from infra.specs.outputs import outputs as outputs_of


def plan(
    stacks: dict[str, list[Change]],
    findings: list[Finding],
    *,
    full: bool,
    as_json: bool,
) -> None:
    """Destroys and replacements first, since they are what a reader must not miss; then what breaks
    a rule.
    """
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
    print(
        f"{len(everything)} changes, {len(losses)} destroy or replace, {len(findings)} rules broken"
    )


def leftovers(found: list[Leftover], as_json: bool) -> int:
    bills = [item for item in found if item.bills]
    if as_json:
        print_json("leftovers", found=[asdict(item) for item in found], bills=len(bills))
    else:
        columns = ["KIND", "NAME", "WHERE", "BILLS", "REMOVE WITH"]
        print_table(
            columns,
            [(i.kind, i.name, i.where, "yes" if i.bills else "no", i.remove) for i in found],
        )
        print(f"{len(found)} left, {len(bills)} of them bill")
    # What costs nothing is shown and is no finding: a forgotten firewall rule must not fail a clean
    # destroy.
    return EXIT_FINDINGS if bills else EXIT_DONE


def rules(as_json: bool) -> None:
    rows = [(r.id, r.title, r.reason, r.source) for r in RULES.values()]
    if as_json:
        keys = ("id", "title", "reason", "source")
        print_json("rules", rules=[dict(zip(keys, row, strict=True)) for row in rows])
    else:
        print_table(("RULE", "WHAT HOLDS", "OTHERWISE", "SOURCE"), rows)


def check(environment: Environment, as_json: bool) -> int:
    """Judge the environment before Terraform starts. The exit code: 0 when it may be deployed as it
    is.

    A CHANGE-ME breaks no rule: "valid, but not ready to deploy" is a state of its own.
    """
    findings = judge_environment(environment)
    open_fields = placeholders(environment)
    state = "broken" if findings else "not settled" if open_fields else "right"
    if as_json:
        found = [asdict(finding) for finding in findings]
        print_json(
            "check",
            environment=environment.name,
            state=state,
            rules=len(RULES),
            findings=found,
            placeholders=open_fields,
        )
    else:
        still = []
        for field in open_fields:
            still.append(f"{source_of(environment.name)}: {field} is still {PLACEHOLDER}")
        for line in [*map(lines, findings), *still]:
            print(line)
        counted = f"{len(RULES)} rules, {len(findings)} findings, {len(open_fields)} placeholders"
        print(
            f"{environment.name}: {counted}:"
            f" {'valid, but not ready to deploy' if state == 'not settled' else state}"
        )
    return EXIT_DONE if state == "right" else EXIT_FINDINGS


def lines(found: Finding) -> str:
    return (
        f"{found.where} [{found.rule}]\n  got:     {found.got}\n  allowed: {found.allowed}\n  fix: "
        f"    {found.fix}"
    )


def outputs(environment: Environment, as_json: bool = False) -> None:
    """What people need after a deployment, from the environment alone. `cdktf output` reads what is
    deployed.
    """
    by_area = outputs_of(environment)
    # What is typed next comes first.
    found = {name: value for area in ("cluster", *AREAS) for name, value in by_area[area].items()}
    pools = _pools(environment)
    if as_json:
        print_json(
            "outputs",
            environment=environment.name,
            outputs=found,
            pools=pools,
        )
    else:
        print_table(("OUTPUT", "VALUE"), list(found.items()))
        print()
        print_table([key.upper() for key in pools[0]], [list(pool.values()) for pool in pools])


def _pools(environment: Environment) -> list[dict[str, str]]:
    return [
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
