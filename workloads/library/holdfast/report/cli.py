"""Implements `holdfast report`: reads events, judges them, and writes the page."""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.cost.money import Money, find_prices, money
from holdfast.ledger.events import read_folder
from holdfast.ledger.job_ledger import JobLedger, job_ledgers
from holdfast.report import teams
from holdfast.report.capacity import Capacities, capacities
from holdfast.report.model import Report, build, role_order
from holdfast.report.objectives import ObjectiveVerdict
from holdfast.support.errors import InputError, Unjudged
from holdfast.support.progress import working
from holdfast.vocabulary.exit_codes import EXIT_DONE, EXIT_FINDINGS
from holdfast.vocabulary.machines import MACHINE_TYPES


def write_report(
    events: Path,
    summary: Path | None,
    out: Path,
    *,
    as_json: bool,
    machine: str = "",
    region: str = "",
    receipts: Path | None = None,
) -> int:
    """Writes the page, prints the answer, and returns 1 if an objective is broken, else 0."""
    from holdfast.report.page import render

    # All input is read before the page is written: bad input must not replace an older page.
    with working(f"report on {events}"):
        report = read_report(events, summary, machine, region)
        if receipts:
            report = replace(report, teams=teams.read(receipts).costs)
        write_atomically(out, render(report))
    answer = json.dumps(report.as_json()) if as_json else report.answer
    print(answer)
    print(f"Next: open {out}", file=sys.stderr)
    return exit_code(report)


def read_report(
    events: Path,
    summary: Path | None,
    machine: str = "",
    region: str = "",
) -> Report:
    """Builds a report from event files.

    Raises Unjudged without a usable event line, and InputError for a bad summary or machine.
    """
    reading = read_folder(events)
    # An empty page for a wrong folder would look like a quiet week.
    if not reading.events:
        problems = dict(reading.problems) or "the files are empty"
        raise Unjudged(f"no usable event line under {events}: {problems}")
    ledgers = job_ledgers(reading.events)
    capacity = capacities(reading.events)
    costs = _compute_money(ledgers, capacity, machine, region)
    return build(ledgers, reading.problems, read_summary(summary), capacity, costs)


def _compute_money(
    ledgers: Sequence[JobLedger],
    capacity: Capacities,
    machine: str,
    region: str,
) -> Money | None:
    """Prices the ledgers on the machine of the options, else on the most frequent one.

    Returns None if neither is known, or the machine of the events has no price.
    """
    # One of the two from the events could price a machine where it is not sold.
    if bool(machine) != bool(region):
        raise InputError(
            "a price needs machine and region",
            got=machine or region,
            allowed="--machine and --region together",
            fix="add the other one",
        )
    spot_machine, zone = capacity.spot
    machine = machine or spot_machine
    # A zone is its region and a letter: us-central1-a.
    region = region or zone.rpartition("-")[0]
    if not machine or not region:
        return None
    has_price = machine in MACHINE_TYPES and bool(MACHINE_TYPES[machine].accelerator)
    # A machine of the options without a price is an error, which find_prices raises.
    if machine == spot_machine and not has_price:
        return None
    # Baselines are never evicted, and naive twins are no product: both would distort the cost.
    runs = [ledger for ledger in ledgers if role_order(ledger.run) == 1]
    return money(runs, find_prices(machine, region))


def exit_code(report: Report) -> int:
    broken = any(goal.verdict is ObjectiveVerdict.BROKEN for goal in report.objectives)
    return EXIT_FINDINGS if broken else EXIT_DONE


def write_atomically(path: Path, text: str) -> None:
    """Writes a file in one step, so that a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder, because a rename is atomic within one file system only; with the process
    # id, because two reports may run.
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


def read_summary(path: Path | None) -> dict[str, Any]:
    """Reads the summary of a demo or a drill. Raises InputError if its counts are not usable."""
    if path is None:
        return {}
    try:
        summary = json.loads(path.read_bytes())
    except OSError as error:
        raise _bad_summary(path, error.strerror or "cannot be read") from error
    except ValueError as error:
        raise _bad_summary(path, f"no JSON ({error})") from error
    if not isinstance(summary, dict):
        raise _bad_summary(path, "no object")
    for part, counts in COUNTS.items():
        _check_part(path, part, summary.get(part, {}), counts)
    return summary


COUNTS = {
    "training": ("evictions", "steps", "lost_steps", "save_every", "false_completions"),
    "batch": ("kills", "documents", "lost", "duplicated"),
    "serving": (
        "servers",
        "evictions",
        "requests",
        "failed",
        "shed",
        "retries",
        "counts_differ",
        "p99_ms",
    ),
}


def _check_part(path: Path, name: str, part: Any, counts: Sequence[str]) -> None:
    if not isinstance(part, dict):
        raise _bad_summary(path, f"{name} is no object")
    # A count as text would fail much later, in the middle of a page.
    for key in counts:
        if key in part and not isinstance(part[key], int):
            raise _bad_summary(path, f"{name}.{key} is no whole number: {part[key]!r}")
    if "naive" in part:
        _check_part(path, f"{name}.naive", part["naive"], counts)


def _bad_summary(path: Path, got: str) -> InputError:
    return InputError(
        f"summary {path} is not usable",
        got=got,
        allowed="a JSON object with the objects training and batch, both optional",
        fix="use the summary.json of a demo or drill, or omit --summary",
    )
