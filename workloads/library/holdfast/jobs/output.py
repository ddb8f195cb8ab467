"""Tables of submit, list and explain: data on stdout, never cut off without a terminal."""

import json
import sys
from typing import Any

import typer

from holdfast.jobs.diagnose.explain import Explanation, Row
from holdfast.jobs.submit.submission import Plan
from holdfast.support.errors import InputError
from holdfast.support.printable import printable
from holdfast.support.tables import print_table
from holdfast.support.values import finite
from holdfast.vocabulary.exit_codes import EXIT_STOPPED

LIST_HEAD = (
    "NAME",
    "KIND",
    "CAPACITY",
    "STATUS",
    "WHY",
    "STEP",
    "SAVED",
    "EVICTED",
    "CRASHED",
    "WAITED",
    "RAN",
    "USEFUL%",
    "$SOFAR",
)


def as_json(body: dict[str, Any]) -> None:
    print(json.dumps(finite(body), indent=1))


def explanation(found: Explanation) -> None:
    for name, text in found.lines():
        print(f"{name + ':':10} {printable(text, 4_000)}")


def listing(found: list[Row]) -> None:
    rows = []
    for row in found:
        rows.append(
            (
                row.name,
                row.kind,
                row.capacity,
                row.status,
                row.why,
                "-" if row.step is None else str(row.step),
                _age(row.saved_age_s),
                str(row.evicted),
                str(row.crashed),
                _age(row.waited_s),
                _age(row.ran_s),
                "-" if row.useful_ratio is None else f"{100 * row.useful_ratio:.1f}",
                _usd(row.usd),
            )
        )
    _grid(LIST_HEAD, rows)


def plan(made: Plan, file: str) -> None:
    """What will be bought, on stderr where the manifest itself goes to stdout."""
    head = ("JOB", "CAPACITY", "POOL", "PODS", "GPUS", "$/H")
    rows = []
    for b in made.purchases:
        rows.append(
            (
                b.job,
                b.capacity.value,
                " ".join(b.pools) or ("none" if b.usd_per_hour is None else "auto-provisioned"),
                str(b.pods),
                str(b.gpus),
                _usd(b.usd_per_hour),
            )
        )
    _grid(head, rows)
    print(f"\nPrices of {made.price_date}, list price without discounts; {file}")


def note(text: str) -> None:
    print(text, file=sys.stderr)


def agree(yes: bool) -> None:
    """Raises InputError without a terminal, and ends the command where the answer is no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise InputError(
            "no terminal to ask on",
            got="no --yes",
            allowed="an answer, or --yes",
            fix="add --yes",
        )
    if not typer.confirm("Start it?", err=True):
        raise typer.Exit(EXIT_STOPPED)


def _grid(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    print_table(head, [tuple(map(printable, row)) for row in rows])


def _age(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"


def _usd(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
