"""Prints the answers of this package: tables on standard output, JSON on request, notes on stderr.

The answer of `place` has at most 25 lines.
"""

import datetime
import json
import math
import os
import shutil
import sys
from collections.abc import Mapping
from typing import Any

from holdfast.cost import prices as price_table
from holdfast.place import losses, matrix, policies, recommendation
from holdfast.place.break_even import Estimate, Flip
from holdfast.place.job import Job
from holdfast.place.options import Case, Option, in_time
from holdfast.place.recommendation import Answer
from holdfast.support.tables import print_json, print_sentences, print_table
from holdfast.support.values import finite
from holdfast.vocabulary.capacity import Capacity, Placement
from holdfast.vocabulary.machines import ACCELERATORS, MachineType

SCHEMA = "holdfast.place/3"
NOW_COLUMN = 3
SHOWN_REGIONS = 3
"""Number of more expensive regions in the notes; all are in the JSON."""


def print_matrix(*, as_json: bool) -> None:
    if as_json:
        print(json.dumps(matrix.as_json(), indent=2))
        return
    rows: list[tuple[str, ...]] = []
    for rule in matrix.RULES:
        placement = rule.placement.value
        rows.append((rule.id.value, rule.scenario, placement, rule.discount, rule.reason))
    print_table(("rule", "workload", "runs on", "discount", "because"), rows)


def print_prices(*, as_json: bool) -> None:
    table = price_table.load()
    capacities = price_table.CAPACITIES
    head = ("gpu", "region", "machine", "gpus", *(capacity.value for capacity in capacities))
    rows: list[tuple[str, ...]] = []
    for accelerator in ACCELERATORS:
        machine = price_table.reference_machine(accelerator)
        for region in table.regions(accelerator):
            row = [accelerator, region, machine.name, str(machine.gpus)]
            for capacity in capacities:
                row.append(_price(table, machine, region, capacity))
            rows.append(tuple(row))
    if as_json:
        body: list[dict[str, Any]] = []
        for row in rows:
            dates = _dates(table, row[0], row[1])
            cells = dict(zip(head, row, strict=True))
            body.append(_convert_cells(cells) | {"as_of": dates})
        print_json("price-list", fetched_at=table.fetched_at.isoformat(), usd_per_hour=body)
        return
    print_table(head, rows)
    # Not on standard output: a script that reads the table must not meet it.
    print(describe_basis(table), file=sys.stderr)
    print("prices are those of the whole machine, with the GPUs of its column", file=sys.stderr)
    print("* inferred: from the same GPU elsewhere, or its ratio there", file=sys.stderr)
    for note in table.notes:
        print(f"note: {note.accelerator} in {note.region}: {note.text}", file=sys.stderr)


def _convert_cells(cells: dict[str, str]) -> dict[str, Any]:
    """Return a row for programs: prices are numbers, or null, and inferred ones are listed."""
    values: dict[str, Any] = {
        **cells,
        "gpus": int(cells["gpus"]),
    }
    inferred: list[str] = []
    for capacity in price_table.CAPACITIES:
        text = cells[capacity.value]
        if text.endswith("*"):
            inferred.append(capacity.value)
        values[capacity.value] = None if text == "-" else float(text.rstrip("*"))
    return values | {"inferred": inferred}


def refresh_prices() -> None:
    """Rewrite the price table of this installation."""
    from holdfast.cost import billing_catalog

    today = datetime.datetime.now(tz=datetime.UTC).date()
    table = billing_catalog.refresh(price_table.load(), today)
    # Every command about prices reads it: a full disk or a kill must not leave half of it.
    draft = price_table.TABLE.with_name(f".{price_table.TABLE.name}.{os.getpid()}")
    try:
        draft.write_text(price_table.dump(table))
        shutil.copymode(price_table.TABLE, draft)
        draft.replace(price_table.TABLE)
    finally:
        draft.unlink(missing_ok=True)
    listed = sum(sku.basis == price_table.LISTED for sku in table.skus)
    inferred = len(table.skus) - listed
    print(f"{price_table.TABLE}: {listed} SKUs listed, {inferred} inferred", file=sys.stderr)


def describe_basis(table: price_table.Table) -> str:
    today = datetime.datetime.now(tz=datetime.UTC).date()
    age_days = (today - table.fetched_at).days
    stale = ""
    if age_days > price_table.STALE_DAYS:
        stale = f"; {age_days} days old, `holdfast place prices --refresh`"
    return f"prices of {table.fetched_at}, list, USD{stale}; * inferred"


def _dates(table: price_table.Table, accelerator: str, region: str) -> dict[str, str | None]:
    """Return the date of each capacity's price; null if a part of it has none."""
    machine = price_table.reference_machine(accelerator)
    dates: dict[str, str | None] = {}
    for capacity in price_table.CAPACITIES:
        quote = table.quote(machine, region, capacity)
        if quote:
            dates[capacity.value] = quote.as_of or None
    return dates


def _price(
    table: price_table.Table,
    machine: MachineType,
    region: str,
    capacity: Capacity,
) -> str:
    quote = table.quote(machine, region, capacity)
    if quote is None:
        return "-"
    return f"{quote.usd:.4f}{'*' if quote.inferred else ''}"


def print_answer(
    job: Job,
    answer: Answer,
    *,
    as_json: bool,
    sentence: str = "",
    now: Mapping[Placement, str] | None = None,
) -> None:
    """Print the table, the choice and what it rests on.

    sentence: one about the machines of a platform. now: how obtainable they are, for a column.
    """
    if as_json:
        print(json.dumps(make_body(job, answer), indent=2))
        return
    names = [scenario.name for scenario in answer.world.scenarios(job)]
    head = ["capacity", "how", "USD/h", *names, ""]
    if now:
        head.insert(NOW_COLUMN, "now")
    rows: list[tuple[str, ...]] = []
    for option in answer.options:
        is_recommended = option is answer.recommended
        cells = list(_row(job, option, is_recommended, len(names)))
        if now:
            cells.insert(NOW_COLUMN, now.get(option.placement, "-"))
        rows.append(tuple(cells))
    print_table(tuple(head), rows)
    late = ", share late" if math.isfinite(job.deadline_h) else ""
    print(f"each scenario: mean cost, done after p50/p95 hours{late}; * price inferred\n")
    print_sentences(
        f"{answer.recommended.placement.value} in {answer.region}: {answer.reason}",
        describe_end(answer.recommended),
        sentence or f"{answer.region} is a region of the price list, not that of your platform.",
        *_notes(job, answer),
    )


def describe_end(option: Option) -> str:
    """Return one sentence with the likely and the bad end of an option."""
    likely = _hours(option.finish_at(50))
    bad = _hours(option.finish_at(95))
    worst_h = max(case.finish_at(95) for case in option.cases)
    worst = _hours(worst_h)
    if worst == bad == likely:
        return f"It ends after {likely} h."
    text = f"It likely ends after {likely} h; a bad end (1 in 20) is {bad} h"
    return f"{text}." if worst == bad else f"{text}, {worst} h in the worst scenario."


def _notes(job: Job, answer: Answer) -> list[str]:
    world = answer.world
    scenarios = world.scenarios(job)[1:]
    notes = [f"{scenario.name}: {scenario.basis}" for scenario in scenarios]
    notes.append(f"preemptions: {world.churn.per_hour:.3g} a node-hour ({world.churn.basis})")
    assumptions = "flex-start queue 30 min (median), on-demand always granted"
    notes.append(f"assumed: restart {job.restart_h * 60:g} min, {assumptions}")
    later_usd = recommendation.later_usd(job, answer.options)
    if later_usd:
        share = f"{recommendation.LATER_SHARE:.0%} of on-demand"
        notes.append(f"an hour later counts as {usd(later_usd)} ({share}), as no deadline is given")
    interval = checkpoint_s(job, answer)
    if interval:
        notes.append(f"checkpoint every {interval} s of work on Spot{_copies(job, interval)}")
    if needs_mover(answer.recommended):
        notes.append(
            "the mover carries this out, no ComputeClass can: submit `holdfast new-job --deadline`"
        )
    notes.append(describe_basis(world.prices))
    if answer.elsewhere:
        prices: list[str] = []
        for estimate in answer.elsewhere[:SHOWN_REGIONS]:
            option = f"{estimate.region} {estimate.capacity.value}"
            prices.append(f"{option} {usd(estimate.usd)}")
        notes.append(f"elsewhere: {', '.join(prices)}")
    note = world.prices.note(job.accelerator, answer.region)
    if note:
        notes.append(f"note: {note}")
    return notes


def _copies(job: Job, interval_s: int) -> str:
    copied_s = round(losses.COPIED_EVERY_H * 3600)
    if not job.sharded or interval_s <= copied_s:
        return ""
    loss = "a loss"
    if job.elastic:
        loss = f"a loss without a notice (assumed: {losses.UNNOTICED:.0%} of them)"
    text = f"; copies in memory every {copied_s} s, which is what {loss} costs"
    share = losses.neighbors_lost(job)
    if share:
        text += f", apart from the {share:.0%} that take two neighbors"
    return text


def usd(amount: float) -> str:
    """Format dollars, with cents below ten: a short job costs no `$0`."""
    # Two digits after the point would print a job of seconds as free.
    if amount < 0.01:
        return f"${amount:.2g}" if amount >= 1e-4 else "under $0.0001"
    return f"${amount:,.0f}" if amount >= 10 else f"${amount:.2f}"


def _row(job: Job, option: Option, recommended: bool, scenarios: int) -> tuple[str, ...]:
    head = (option.placement.value, option.policy)
    if option.refused:
        return (*head, "-", *("-",) * scenarios, option.refused)
    price = f"{option.usd_per_hour:.2f}{'*' if option.inferred else ''}"
    cells = [_cell(job, case) for case in option.cases]
    remark = "<- chosen" if recommended else option.unavailable
    return (*head, price, *cells, remark)


def _cell(job: Job, case: Case) -> str:
    late = f" {case.late:.0%}" if math.isfinite(job.deadline_h) else ""
    median = _hours(case.finish_at(50))
    p95 = _hours(case.finish_at(95))
    return f"{usd(case.mean_usd)} {median}/{p95}h{late}"


def _hours(hours: float) -> str:
    return f"{hours:.1f}" if hours < 10 else f"{hours:,.0f}"


def make_body(job: Job, answer: Answer) -> dict[str, Any]:
    """Return the answer as JSON."""
    world = answer.world
    scenarios = world.scenarios(job)
    names = [scenario.name for scenario in scenarios]
    return {
        "schema": SCHEMA,
        "region": answer.region,
        "machine": job.machine.name,
        "nodes": job.nodes,
        "chosen": {
            "placement": answer.recommended.placement.value,
            "how": answer.recommended.policy,
            "needs_mover": needs_mover(answer.recommended),
        },
        "reason": answer.reason,
        "end": describe_end(answer.recommended),
        "hour_later_usd": recommendation.later_usd(job, answer.options),
        "scenarios": [{"name": scenario.name, "basis": scenario.basis} for scenario in scenarios],
        "options": [_option_body(option, names) for option in answer.options],
        "break_even": _flip_body(answer.flip),
        "churn": {"per_hour": world.churn.per_hour, "basis": world.churn.basis},
        "checkpoint_seconds": checkpoint_s(job, answer),
        "prices": _prices_body(job, answer),
        "elsewhere": [_estimate_body(estimate) for estimate in answer.elsewhere],
    }


def _flip_body(flip: Flip | None) -> dict[str, Any] | None:
    if flip is None:
        return None
    # JSON has no infinity: null says that it never turns.
    return {
        "against": flip.against.value,
        "churn_per_hour": finite(flip.churn_per_hour),
    }


def _prices_body(job: Job, answer: Answer) -> dict[str, Any]:
    table = answer.world.prices
    dates: dict[str, str | None] = {}
    for capacity in price_table.CAPACITIES:
        quote = answer.world.quote(job, answer.region, capacity)
        if quote:
            dates[capacity.value] = quote.as_of or None
    return {
        "fetched_at": table.fetched_at.isoformat(),
        "as_of": dates,
        "note": table.note(job.accelerator, answer.region),
    }


def _estimate_body(estimate: Estimate) -> dict[str, Any]:
    return {
        "region": estimate.region,
        "placement": estimate.capacity.value,
        "mean_usd": estimate.usd,
    }


def checkpoint_s(job: Job, answer: Answer) -> int | None:
    """Return the work between checkpoints on Spot, or None if there are none."""
    # What saves nothing, or loses one micro-batch, has no interval to choose.
    if job.batch or not job.resumable:
        return None
    node_churn = answer.world.churn.per_hour
    # A rigid gang stops with each of its groups. An elastic one stops less often than one node is
    # lost.
    churn = node_churn if job.elastic else losses.job_churn(job, node_churn)
    return round(losses.find_interval(job, churn) * 3600)


def _option_body(option: Option, names: list[str]) -> dict[str, Any]:
    head = {
        "placement": option.placement.value,
        "how": option.policy,
        "refused": option.refused or None,
        "unavailable": option.unavailable or None,
    }
    if option.refused:
        return head
    cases: dict[str, Any] = {}
    for name, case in zip(names, option.cases, strict=True):
        cases[name] = _case_body(case)
    return head | {
        "usd_per_hour": option.usd_per_hour,
        "price_inferred": option.inferred,
        "scenarios": cases,
    }


def _case_body(case: Case) -> dict[str, Any]:
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
    """Return whether the option watches the deadline from Spot.

    A ComputeClass has an order of capacities and no clock.
    """
    return in_time(option) in policies.IN_TIME
