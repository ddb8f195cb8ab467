"""Prints the results of the commands, as a table or as one JSON object."""

from collections.abc import Sequence
from dataclasses import asdict

from holdfast.support.tables import print_json, print_table
from holdfast.vocabulary.exit_codes import EXIT_DONE, EXIT_FINDINGS
from holdfast.vocabulary.pools import Pool
from infra.contract.names import AREAS
from infra.effects import Effect
from infra.environments import Environment, placeholders, source_path
from infra.environments.checks import PLACEHOLDER
from infra.ops import cost
from infra.ops.cost import HOURS_A_MONTH
from infra.ops.leftovers import Leftover
from infra.ops.plan import Change, counts
from infra.rules import RULES, Finding, judge_environment
from infra.rules.notes import list_notes
from infra.specs import outputs as specs_outputs


def plan(
    stacks: dict[str, list[Change]],
    findings: list[Finding],
    *,
    full: bool,
    as_json: bool,
) -> None:
    """Print destroys and replacements first, since a reader must not miss them; then broken rules,
    then counts.
    """
    all_changes: list[Change] = []
    for changes in stacks.values():
        all_changes += changes
    losses: list[Change] = []
    for change in all_changes:
        if change.destroys:
            losses.append(change)
    if as_json:
        print_json(
            "plan",
            destroys=[change.address for change in losses],
            findings=[asdict(finding) for finding in findings],
            counts=counts(all_changes),
            stacks={stack: counts(changes) for stack, changes in stacks.items()},
        )
        return
    for change in losses:
        print(f"{'REPLACE' if 'create' in change.actions else 'DESTROY'}  {change.address}")
    for finding in findings:
        value = f"got {finding.got}; allowed: {finding.allowed}"
        print(f"BROKEN   [{finding.rule}] {finding.where}: {value}")
    for stack, changes in stacks.items():
        rows = [*counts(changes).items(), ("total", len(changes))]
        print_table([stack, ""], rows)
        print()
    if full:
        rows = [("/".join(change.actions), change.address) for change in all_changes]
        print_table(["ACTION", "ADDRESS"], rows)
    print(
        f"{len(all_changes)} changes, {len(losses)} destroy or replace,"
        f" {len(findings)} rules broken"
    )


def leftovers(items: list[Leftover], as_json: bool) -> int:
    """Print leftovers. Returns the exit code: resources that cost nothing are no finding, since a
    forgotten firewall rule must not fail a clean destroy.
    """
    bills = sum(item.bills for item in items)
    if as_json:
        print_json("leftovers", found=[asdict(item) for item in items], bills=bills)
    else:
        rows = []
        for item in items:
            answer = "yes" if item.bills else "no"
            rows.append((item.kind, item.name, item.where, answer, item.remove))
        print_table(["KIND", "NAME", "WHERE", "BILLS", "REMOVE WITH"], rows)
        print(f"{len(items)} left, {bills} of them bill")
    return EXIT_FINDINGS if bills else EXIT_DONE


def rules(as_json: bool) -> None:
    """Print all rules with reason and source."""
    items = []
    for rule in RULES.values():
        item = {
            "id": rule.id,
            "title": rule.title,
            "reason": rule.reason,
            "source": rule.source,
        }
        items.append(item)
    if as_json:
        print_json("rules", rules=items)
    else:
        rows = [list(item.values()) for item in items]
        print_table(("RULE", "WHAT HOLDS", "OTHERWISE", "SOURCE"), rows)


def check(environment: Environment, as_json: bool, changes: Sequence[Effect] = ()) -> int:
    """Check the environment before Terraform starts. Returns the exit code: 0 if it may be deployed
    as it is.

    A CHANGE-ME breaks no rule: the state is then "valid, but not ready to deploy".
    """
    findings = judge_environment(environment)
    fields = placeholders(environment)
    state = _state(findings, fields)
    estimate = cost.estimate(environment)
    notes = list_notes(environment)
    if as_json:
        takes: list[str] = []
        gives: list[str] = []
        for change in changes:
            if change.takes:
                takes.append(change.text)
            else:
                gives.append(change.text)
        print_json(
            "check",
            environment=environment.name,
            state=state,
            rules=len(RULES),
            findings=[asdict(finding) for finding in findings],
            placeholders=fields,
            takes=takes,
            gives=gives,
            notes=notes,
            cost=_cost_fields(estimate),
        )
    else:
        for change in changes:
            print(change)
        for note in notes:
            print(f"note: {note}")
        for finding in findings:
            print(lines(finding))
        for field in fields:
            print(f"{source_path(environment.name)}: {field} is still {PLACEHOLDER}")
        print(*estimate.lines(), sep="\n")
        numbers = f"{len(RULES)} rules, {len(findings)} findings, {len(fields)} placeholders"
        result = "valid, but not ready to deploy" if state == "not settled" else state
        print(f"{environment.name}: {numbers}: {result}")
    return EXIT_DONE if state == "right" else EXIT_FINDINGS


def _cost_fields(estimate: cost.Cost) -> dict[str, object]:
    return {
        "floor_usd_per_month": round(estimate.floor_usd_per_month, 2),
        "full_load_usd_per_hour": round(estimate.full_usd_per_hour, 2),
        "unpriced": estimate.list_omissions(),
    }


def _state(findings: list[Finding], fields: list[str]) -> str:
    if findings:
        return "broken"
    return "not settled" if fields else "right"


def lines(finding: Finding) -> str:
    """Return the four lines of a finding."""
    return (
        f"{finding.where} [{finding.rule}]\n"
        f"  got:     {finding.got}\n"
        f"  allowed: {finding.allowed}\n"
        f"  fix:     {finding.fix}"
    )


def outputs(environment: Environment, as_json: bool = False) -> None:
    """Print what people need after a deployment, from the environment alone. `cdktf output` reads
    the deployed values.
    """
    by_area = specs_outputs.outputs(environment)
    values: dict[str, str] = {}
    # The first lines have the command that people type next.
    for area in ("cluster", *AREAS):
        values |= by_area[area]
    pools = [_describe_pool(pool) for pool in environment.pools()]
    estimate = cost.estimate(environment)
    if as_json:
        print_json(
            "outputs",
            environment=environment.name,
            outputs=values,
            pools=pools,
            cost=_cost_fields(estimate),
        )
    else:
        print_table(("OUTPUT", "VALUE"), list(values.items()))
        print()
        columns = [key.upper() for key in pools[0]]
        print_table(columns, [list(pool.values()) for pool in pools])
        print()
        rows = []
        for part in estimate.floor:
            price = "no price"
            if part.usd_per_hour is not None:
                price = f"{HOURS_A_MONTH * part.usd_per_hour:,.0f}"
            rows.append((part.name, price))
        print_table(("ALWAYS RUNS", "USD A MONTH"), rows)
        print(*estimate.lines(), sep="\n")


def _describe_pool(pool: Pool) -> dict[str, str]:
    return {
        "pool": pool.name,
        "role": pool.role.value,
        "capacity": pool.capacity.value,
        "machine": pool.machine_type,
        "gpus": f"{pool.gpus_per_node} x {pool.accelerator}" if pool.gpus_per_node else "",
        "nodes": f"{pool.min_nodes}..{pool.max_nodes}",
        "window": f"{pool.window.pod_s} s" if pool.interruptible else "",
        "taints": ", ".join(str(taint) for taint in pool.taints),
    }
