"""Tables and lines on the terminal: the verdict is data (stdout), what leads to it is not (stderr)."""

import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from holdfast.drill.plan import Drill
from holdfast.drill.show.numbers import change, number, sentence, together

_COLOURS = {"held": "green", "broken": "red", "not measured": "yellow", "inconclusive": "yellow", "stopped": "yellow"}
_MARKS = {"held": "ok", "broken": "XX", "not measured": "--"}


def stdout() -> Console:
    return _console(stderr=False)


def stderr() -> Console:
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal:
        console.width = 200  # a pipe cuts no table
    return console


def moment(console: Console, t: float, step: str, what: str) -> None:
    clock = time.strftime("%H:%M:%S", time.localtime(t))
    console.print(f"  {clock}  {step:<19} {what}", markup=False, soft_wrap=True)


def verdict(console: Console, journal: dict[str, Any]) -> None:
    if journal["objectives"]:
        table = Table("", "OBJECTIVE", "VERDICT", "WANTED", box=None, pad_edge=False, header_style="bold")
        for column in ("MEASURED", "LAST RUN", "CHANGE"):
            table.add_column(column, justify="right")
        for each in journal["objectives"]:
            verdict = each["verdict"]
            numbers = (number(each["measured"]), number(each["last"]), change(each))
            table.add_row(
                _MARKS[verdict], each["promise"], f"[{_COLOURS[verdict]}]{verdict}[/]", each["wanted"], *numbers
            )
        console.print(table)
    console.print(sentence(journal), style=f"bold {_COLOURS[journal['verdict']]}", markup=False, soft_wrap=True)


def series(console: Console, made: dict[str, Any]) -> None:
    """The spread over the runs of one drill."""
    table = Table("OBJECTIVE", "WANTED", box=None, pad_edge=False, header_style="bold")
    for column in ("HELD", "NOT MEASURED", "LEAST", "MEDIAN", "MOST"):
        table.add_column(column, justify="right")
    for each in made["objectives"]:
        counts = (f"{each['held']} of {each['judged']}", str(each["not_measured"]))
        table.add_row(
            each["promise"], each["wanted"], *counts, *(number(each[key]) for key in ("least", "median", "most"))
        )
    console.print(table)
    console.print(together(made), style="bold", markup=False, soft_wrap=True)


def drills(console: Console, known: Sequence[Drill], last: dict[str, str]) -> None:
    table = Table(
        "DRILL", "TARGET", "FAULT", "BLAST", "LAST", "QUESTION", box=None, pad_edge=False, header_style="bold"
    )
    for drill in known:
        named = " (by name only)" if drill.control else ""
        row = (drill.name, drill.place.value, drill.fault.value, str(drill.blast), last.get(drill.name, "-"))
        table.add_row(*row, drill.question + named)
    console.print(table)


def plan(console: Console, drill: Drill) -> None:
    """The drill as it stands in the catalogue."""
    rows = {
        "question": drill.question,
        "target": f"{drill.place.value}, {drill.work.value}",
        "steady state": f"{drill.steady_state.bound} within {drill.steady_state.within_s:g} s, else nothing is injected",
        "blast radius": str(drill.blast),
        "fault": drill.fault.value,
        "stop when": f"{drill.stop_when}, or not back within {drill.recovery_s:g} s",
        "rollback": drill.rollback,
        "budget": f"{drill.budget.minutes:g} min, ${drill.budget.usd:g}",
    }
    for name, text in rows.items():
        console.print(f"{name:<13} {text}", markup=False)
    for objective in drill.objectives:
        essential = "" if objective.essential else " (if it can be measured)"
        console.print(f"{'objective':<13} {objective.promise}: {objective.bound}{essential}", markup=False)
