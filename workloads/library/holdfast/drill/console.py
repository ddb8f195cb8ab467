"""Tables and lines on the terminal: the verdict is data (stdout), what leads to it is not (stderr)."""

import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from holdfast.drill.plan import RECOVERED, Drill

_COLOURS = {"held": "green", "broken": "red"}
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


def _table(left: Sequence[str], right: Sequence[str] = ()) -> Table:
    table = Table(*left, box=None, pad_edge=False, header_style="bold")
    for column in right:
        table.add_column(column, justify="right")
    return table


def moment(console: Console, t: float, step: str, what: str) -> None:
    clock = time.strftime("%H:%M:%S", time.localtime(t))
    console.print(f"  {clock}  {step:<19} {what}", markup=False, soft_wrap=True)


def verdict(console: Console, journal: dict[str, Any]) -> None:
    if journal["objectives"]:
        table = _table(("", "OBJECTIVE", "VERDICT", "WANTED"), ("MEASURED", "LAST RUN", "CHANGE"))
        for each in journal["objectives"]:
            word = each["verdict"]
            coloured = f"[{_COLOURS.get(word, 'yellow')}]{word}[/]"
            numbers = (number(each["measured"]), number(each["last"]), _change(each))
            table.add_row(_MARKS[word], each["promise"], coloured, each["wanted"], *numbers)
        console.print(table)
    colour = _COLOURS.get(journal["verdict"], "yellow")
    console.print(sentence(journal), style=f"bold {colour}", markup=False, soft_wrap=True)


def series(console: Console, made: dict[str, Any]) -> None:
    """The spread over the runs of one drill."""
    table = _table(("OBJECTIVE", "WANTED"), ("HELD", "NOT MEASURED", "LEAST", "MEDIAN", "MOST"))
    for each in made["objectives"]:
        counts = (f"{each['held']} of {each['judged']}", str(each["not_measured"]))
        spread = (number(each[key]) for key in ("least", "median", "most"))
        table.add_row(each["promise"], each["wanted"], *counts, *spread)
    console.print(table)
    console.print(together(made), style="bold", markup=False, soft_wrap=True)


def drills(console: Console, known: Sequence[Drill], last: dict[str, str]) -> None:
    table = _table(("DRILL", "TARGET", "FAULT", "BLAST", "LAST", "QUESTION"))
    for drill in known:
        named = " (by name only)" if drill.control else ""
        row = (drill.name, drill.place.value, drill.fault.value, str(drill.blast), last.get(drill.name, "-"))
        table.add_row(*row, drill.question + named)
    console.print(table)


def plan(console: Console, drill: Drill) -> None:
    """The drill as the catalogue has it."""
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


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _change(objective: dict[str, Any]) -> str:
    """Against the run before: `+0.3`, `same`, or nothing to compare with."""
    measured, last = objective["measured"], objective["last"]
    if measured is None or last is None:
        return "-"
    difference = round(measured - last, 2)
    return f"{difference:+.4g}" if difference else "same"


def sentence(journal: dict[str, Any]) -> str:
    """The whole outcome in one line."""
    objectives = journal["objectives"]
    clauses = [f"{journal['drill']['name']}: {journal['verdict']}"]
    if objectives:
        held = sum(each["verdict"] == "held" for each in objectives)
        clauses.append(f"{held} of {len(objectives)} objectives held")
    if broken := [each["promise"] for each in objectives if each["verdict"] == "broken"]:
        clauses.append(f"broken: {', '.join(broken)}")
    back = next((o["measured"] for o in objectives if o["metric"] == RECOVERED and o["measured"] is not None), None)
    if back is not None and journal["verdict"] == "held":
        clauses.append(f"back after {back:.1f} s")
    if journal["fail_step"]:
        clauses.append(f"at step `{journal['fail_step']}`: {journal['why'].splitlines()[0]}")
    return "; ".join(clauses) + f" ({journal['duration']:.0f} s)"


def together(made: dict[str, Any]) -> str:
    """Several runs of one drill in one line."""
    clauses = [f"{made['drill']}: held in {made['held']} of {made['judged']} judged runs"]
    if made["judged"] < made["runs"]:
        clauses.append(f"{made['runs'] - made['judged']} of {made['runs']} showed nothing")
    if made["holds_at_least"] is not None:
        share = f"{100 * made['holds_at_least']:.0f} %"
        clauses.append(f"so it holds in at least {share} of runs ({100 * made['confidence']:.0f} % confidence)")
    return "; ".join(clauses)
