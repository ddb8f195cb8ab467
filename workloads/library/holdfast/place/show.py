"""Prints what the placement room answers: tables on standard output, JSON on request, the rest on
standard error.

The answer of `place` has at most 25 lines.
"""

import datetime
import json
import math
import sys
from typing import Any

from holdfast.cost import prices as price_table
from holdfast.place import advice, belief, policies
from holdfast.place import matrix as decision
from holdfast.place.ask import Answer
from holdfast.place.belief import Case, Option
from holdfast.place.job import Job
from holdfast.support.tables import print_json, print_table
from holdfast.support.values import finite
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.machines import ACCELERATORS, MachineType


def matrix(*, as_json: bool) -> None:
    if as_json:
        print(json.dumps(decision.as_json(), indent=2))
    else:
        print_table(
            ("rule", "workload", "runs on", "discount", "because"),
            [
                (r.id.value, r.scenario, r.placement.value, r.discount, r.reason)
                for r in decision.RULES
            ],
        )


def prices(*, as_json: bool) -> None:
    table = price_table.load()
    rows = [
        (
            accelerator,
            region,
            machine.name,
            *(_price(table, machine, region, c) for c in price_table.CAPACITIES),
        )
        for accelerator in ACCELERATORS
        for machine in [price_table.reference_machine(accelerator)]
        for region in table.regions(accelerator)
    ]
    head = ("gpu", "region", "machine", *(c.value for c in price_table.CAPACITIES))
    if as_json:
        body = []
        for row in rows:
            body.append(
                dict(zip(head, row, strict=True)) | {"as_of": _dates(table, row[0], row[1])}
            )
        print_json("price-list", fetched_at=table.fetched_at.isoformat(), usd_per_hour=body)
    else:
        print_table(head, rows)
        # Not on standard output: a script that reads the table must not meet it.
        print(basis(table), file=sys.stderr)
        print("* inferred: from the same GPU elsewhere, or its ratio there", file=sys.stderr)
        for note in table.notes:
            print(f"note: {note.accelerator} in {note.region}: {note.text}", file=sys.stderr)


def refresh() -> None:
    """Rewrites the table of this installation."""
    from holdfast.cost import billing_catalog

    table = billing_catalog.refresh(
        price_table.load(), datetime.datetime.now(tz=datetime.UTC).date()
    )
    price_table.TABLE.write_text(price_table.dump(table))
    listed = sum(sku.basis == price_table.LISTED for sku in table.skus)
    print(
        f"{price_table.TABLE}: {listed} SKUs listed, {len(table.skus) - listed} inferred",
        file=sys.stderr,
    )


def basis(table: price_table.Table) -> str:
    age = (datetime.datetime.now(tz=datetime.UTC).date() - table.fetched_at).days
    stale = f"; {age} days old, `holdfast prices --refresh`" if age > price_table.STALE_DAYS else ""
    return f"prices of {table.fetched_at}, list, USD{stale}; * inferred"


def _dates(table: price_table.Table, accelerator: str, region: str) -> dict[str, str | None]:
    """Date of each capacity's price; null where a part has none."""
    machine = price_table.reference_machine(accelerator)
    quotes = {c: table.quote(machine, region, c) for c in price_table.CAPACITIES}
    return {c.value: quote.as_of or None for c, quote in quotes.items() if quote}


def _price(
    table: price_table.Table,
    machine: MachineType,
    region: str,
    capacity: Capacity,
) -> str:
    quote = table.quote(machine, region, capacity)
    return "-" if quote is None else f"{quote.usd:.4f}{'*' if quote.inferred else ''}"


SCHEMA = "holdfast.place/3"
SHOWN_REGIONS = 3
"""Of the more expensive ones; all are in the JSON."""


def place(job: Job, answer: Answer, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(body(job, answer), indent=2))
        return
    names = [scenario.name for scenario in answer.world.scenarios(job)]
    head = ("capacity", "how", "USD/h", *names, "")
    print_table(
        head, [_row(job, option, option is answer.chosen, len(names)) for option in answer.options]
    )
    cells = "mean cost, done after p50/p95 hours" + (
        ", share late" if math.isfinite(job.deadline_h) else ""
    )
    print(f"each scenario: {cells}; * price inferred\n")
    print(f"{answer.chosen.placement.value} in {answer.region}: {answer.reason}")
    print("\n".join(_notes(job, answer)))


def _notes(job: Job, answer: Answer) -> list[str]:
    world = answer.world
    notes = [f"{each.name}: {each.basis}" for each in world.scenarios(job)[1:]]
    notes.append(f"preemptions: {world.churn.per_hour:.3g} a node-hour ({world.churn.basis})")
    assumed = "flex-start queue 30 min (median), on-demand always granted"
    notes.append(f"assumed: restart {job.restart_h * 60:g} min, {assumed}")
    interval = checkpoint_s(job, answer)
    if interval:
        notes.append(f"checkpoint every {interval} s of work on Spot{_copies(job, interval)}")
    if needs_mover(answer.chosen):
        notes.append(
            "the mover carries this out, no ComputeClass can: submit `holdfast new-job"
            " --deadline-hours`"
        )
    notes.append(basis(world.prices))
    if answer.elsewhere:
        near = ", ".join(
            f"{e.region} {e.capacity.value} {usd(e.usd)}" for e in answer.elsewhere[:SHOWN_REGIONS]
        )
        notes.append(f"elsewhere: {near}")
    note = world.prices.note(job.accelerator, answer.region)
    if note:
        notes.append(f"note: {note}")
    return notes


def _copies(job: Job, interval_s: int) -> str:
    copied_s = round(advice.COPIED_EVERY_H * 3600)
    if not job.sharded or interval_s <= copied_s:
        return ""
    every = f"; copies in memory every {copied_s} s, which is what a loss costs"
    share = advice.neighbours_lost(job)
    return every + (f", apart from the {share:.0%} that take two neighbours" if share else "")


def usd(amount: float) -> str:
    """Cents below ten dollars: a short job costs no `$0`."""
    # Two digits after the point would print a job of seconds as free.
    if amount < 0.01:
        return f"${amount:.2g}" if amount >= 1e-4 else "under $0.0001"
    return f"${amount:,.0f}" if amount >= 10 else f"${amount:.2f}"


def _row(job: Job, option: Option, chosen: bool, scenarios: int) -> tuple[str, ...]:
    if option.refused:
        return (option.placement.value, option.policy, "-", *("-",) * scenarios, option.refused)
    price = f"{option.usd_per_hour:.2f}{'*' if option.inferred else ''}"
    cells = (_cell(job, case) for case in option.cases)
    return (option.placement.value, option.policy, price, *cells, "<- chosen" if chosen else "")


def _cell(job: Job, case: Case) -> str:
    late = f" {case.late:.0%}" if math.isfinite(job.deadline_h) else ""
    return f"{usd(case.mean_usd)} {_hours(case.finish_at(50))}/{_hours(case.finish_at(95))}h{late}"


def _hours(hours: float) -> str:
    return f"{hours:.1f}" if hours < 10 else f"{hours:,.0f}"


def body(job: Job, answer: Answer) -> dict[str, Any]:
    world = answer.world
    chosen = answer.chosen
    flip = answer.flip
    scenarios = world.scenarios(job)
    dates = {c: advice.quote(job, world, answer.region, c) for c in price_table.CAPACITIES}
    table = world.prices
    note = world.prices.note(job.accelerator, answer.region)
    as_of = {c.value: found.as_of or None for c, found in dates.items() if found}
    return {
        "schema": SCHEMA,
        "region": answer.region,
        "machine": job.machine.name,
        "nodes": job.nodes,
        "chosen": {
            "placement": chosen.placement.value,
            "how": chosen.policy,
            "needs_mover": needs_mover(chosen),
        },
        "reason": answer.reason,
        "scenarios": [{"name": each.name, "basis": each.basis} for each in scenarios],
        "options": [
            _option(option, [each.name for each in scenarios]) for option in answer.options
        ],
        # JSON has no infinity: null says that it never turns.
        "break_even": (
            flip
            and {
                "against": flip.against.value,
                "churn_per_hour": finite(flip.churn_per_hour),
            }
        ),
        "churn": {"per_hour": world.churn.per_hour, "basis": world.churn.basis},
        "checkpoint_seconds": checkpoint_s(job, answer),
        "prices": {
            "fetched_at": table.fetched_at.isoformat(),
            "as_of": as_of,
            "note": note,
        },
        "elsewhere": [
            {
                "region": e.region,
                "placement": e.capacity.value,
                "mean_usd": e.usd,
            }
            for e in answer.elsewhere
        ],
    }


def checkpoint_s(job: Job, answer: Answer) -> int | None:
    """Work between checkpoints on Spot; None where there are none."""
    # What saves nothing, or loses one micro-batch, has no interval to choose.
    if job.batch or not job.resumable:
        return None
    node_churn = answer.world.churn.per_hour
    # A rigid gang stops with each of its groups. An elastic one stops less often than one node is
    # lost.
    churn = node_churn if job.elastic else advice.job_churn(job, node_churn)
    return round(advice.interval_h(job, churn) * 3600)


def _option(option: Option, names: list[str]) -> dict[str, Any]:
    head = {
        "placement": option.placement.value,
        "how": option.policy,
        "refused": option.refused or None,
    }
    if option.refused:
        return head
    cases = {name: _case(case) for name, case in zip(names, option.cases, strict=True)}
    return head | {
        "usd_per_hour": option.usd_per_hour,
        "price_inferred": option.inferred,
        "scenarios": cases,
    }


def _case(case: Case) -> dict[str, Any]:
    return {
        "usd": {
            "mean": case.mean_usd,
            "p50": case.usd_at(50),
            "p95": case.usd_at(95),
        },
        "finish_hours": {
            "p50": case.finish_at(50),
            "p95": case.finish_at(95),
        },
        "late": case.late,
        "evictions": case.evictions,
    }


def needs_mover(option: Option) -> bool:
    """It watches the deadline from Spot: a class has an order of capacities and no clock."""
    return belief.in_time(option) in policies.IN_TIME
