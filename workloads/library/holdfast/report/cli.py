"""Body of `holdfast report`: reads, judges, writes. Imported only when the command runs."""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.cost.money import Money, money, prices_of
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
    """Returns the exit code: 1 if an objective is broken."""
    from holdfast.report.page import render

    # Judged before anything is drawn: bad input must leave the page of yesterday as it is.
    with working(f"report on {events}"):
        read = read_report(events, summary, machine, region)
        report = replace(read, teams=teams.read(receipts) if receipts else ())
        write_whole(out, render(report))
    print(json.dumps(report.as_json()) if as_json else report.answer)
    print(f"Next: open {out}", file=sys.stderr)
    return exit_code(report)


def read_report(
    events: Path,
    summary: Path | None,
    machine: str = "",
    region: str = "",
) -> Report:
    reading = read_folder(events)
    # An empty page would look like a quiet week; a wrong folder must not.
    if not reading.events:
        raise Unjudged(
            f"no usable event line under {events}:"
            f" {dict(reading.problems) or 'the files are empty'}"
        )
    found = job_ledgers(reading.events)
    seen = capacities(reading.events)
    return build(
        found, reading.problems, read_summary(summary), seen, _money(found, seen, machine, region)
    )


def _money(
    found: Sequence[JobLedger],
    seen: Capacities,
    machine: str,
    region: str,
) -> Money | None:
    """Priced on the machine of the options, else on the one seen most; None where neither is known."""
    # A price follows from both; half of it filled in from the events could price a machine where it
    # is not sold.
    if bool(machine) != bool(region):
        allowed = "--machine and --region together"
        raise InputError(
            "a price needs machine and region",
            got=machine or region,
            allowed=allowed,
            fix="add the other one",
        )
    at, zone = seen.spot
    # A zone is its region and one more letter: us-central1-a.
    machine = machine or at
    region = region or zone.rpartition("-")[0]
    priced = machine in MACHINE_TYPES and bool(MACHINE_TYPES[machine].accelerator)
    # A machine that the events name may have no price: then no money. One of the options fails in
    # prices_of.
    if not machine or not region or (not priced and machine == at):
        return None
    # A baseline is never evicted and the naive twin is no product: either would bend what Spot
    # costs.
    ours = [x for x in found if role_order(x.run) == 1]
    return money(ours, prices_of(machine, region))


def exit_code(report: Report) -> int:
    broken = any(goal.verdict is ObjectiveVerdict.BROKEN for goal in report.objectives)
    return EXIT_FINDINGS if broken else EXIT_DONE


def write_whole(path: Path, text: str) -> None:
    """A reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder, as a rename is atomic within one file system only; by process, as two
    # reports may run.
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


def read_summary(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise _bad_summary(path, error.strerror or "cannot be read") from error
    except ValueError as error:
        raise _bad_summary(path, f"no JSON ({error})") from error
    # JSON may be valid and no object; every reader below takes a mapping for granted.
    if not isinstance(found, dict):
        raise _bad_summary(path, "no object")
    for part, counts in COUNTS.items():
        _check_part(path, part, found.get(part, {}), counts)
    return found


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
    # A count as text would be compared and formatted long after, with a traceback in the middle of
    # a page.
    wrong = [key for key in counts if key in part and not isinstance(part[key], int)]
    if wrong:
        raise _bad_summary(path, f"{name}.{wrong[0]} is no whole number: {part[wrong[0]]!r}")
    if "naive" in part:
        _check_part(path, f"{name}.naive", part["naive"], counts)


def _bad_summary(path: Path, got: str) -> InputError:
    return InputError(
        f"summary {path} is not usable",
        got=got,
        allowed="a JSON object with the objects training and batch, both optional",
        fix="use the summary.json of a demo or drill, or omit --summary",
    )
