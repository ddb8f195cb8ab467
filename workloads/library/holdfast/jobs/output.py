"""Prints the tables of submit and explain: data on stdout, never cut off without a terminal."""

import json
import sys
from collections.abc import Sequence
from typing import Any, Protocol

import typer

from holdfast.jobs.diagnose.explain import Row
from holdfast.jobs.plan.pricing import Purchase, PurchasePlan
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


def print_body(body: dict[str, Any]) -> None:
    """Print a body as JSON."""
    print(json.dumps(finite(body), indent=1))


class Lines(Protocol):
    """Can be printed as lines of a name and a text."""

    def lines(self) -> list[tuple[str, str]]: ...


def print_explanation(explanation: Lines) -> None:
    for name, text in explanation.lines():
        print(f"{name + ':':10} {printable(text, 4_000)}")


def print_jobs(jobs: list[Row]) -> None:
    """Print a row for each job, with its namespace if they have several."""
    head = LIST_HEAD
    rows = [_job_cells(job) for job in jobs]
    if len({job.namespace for job in jobs}) > 1:
        head = (head[0], "NAMESPACE", *head[1:])
        for number, job in enumerate(jobs):
            name, *cells = rows[number]
            rows[number] = (name, job.namespace, *cells)
    _print_table(head, rows)


class Cells(Protocol):
    """Can be printed as a row of a table."""

    def cells(self) -> tuple[str, ...]: ...


def print_services(head: tuple[str, ...], services: Sequence[Cells]) -> None:
    _print_table(head, [service.cells() for service in services])


def _job_cells(job: Row) -> tuple[str, ...]:
    return (
        job.name,
        job.kind,
        job.capacity,
        job.status,
        job.why,
        "-" if job.step is None else str(job.step),
        _age(job.saved_age_s),
        str(job.evicted),
        str(job.crashed),
        _age(job.waited_s),
        _age(job.ran_s),
        "-" if job.useful_ratio is None else f"{100 * job.useful_ratio:.1f}",
        _usd(job.usd),
    )


def print_plan(plan: PurchasePlan, file: str) -> None:
    """Print what the jobs of a file buy."""
    head = (
        "JOB",
        "CAPACITY",
        "POOL",
        "PODS",
        "GPUS",
        "$/H",
    )
    _print_table(head, [_purchase_cells(purchase) for purchase in plan.purchases])
    print(f"\nPrices of {plan.price_date}, list price without discounts; {file}")


def _purchase_cells(purchase: Purchase) -> tuple[str, ...]:
    pools = " ".join(purchase.pools)
    if not pools:
        pools = "none" if purchase.usd_per_hour is None else "auto-provisioned"
    return (
        purchase.job,
        purchase.capacity.value,
        pools,
        str(purchase.pods),
        str(purchase.gpus),
        _usd(purchase.usd_per_hour),
    )


def note(text: str) -> None:
    print(text, file=sys.stderr)


def ask_to_start(yes: bool) -> None:
    """Ask whether to start a job, unless `yes`."""
    ask("Start it?", yes)


def ask(question: str, yes: bool) -> None:
    """Ask for consent, unless `yes`; a no ends the command.

    Raises InputError without a terminal.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise InputError(
            "no terminal to ask on",
            got="no --yes",
            allowed="an answer, or --yes",
            fix="add --yes",
        )
    if not typer.confirm(question, err=True):
        raise typer.Exit(EXIT_STOPPED)


def _print_table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
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
