"""What a drill and the demo show on the terminal: the verdict is data (stdout), what leads to it is not (stderr)."""

import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from holdfast.drill.plan import RECOVERED
from holdfast.tables import print_table

_MARKS = {"held": "ok", "broken": "XX", "not measured": "--"}


def moment(t: float, step: str, what: str) -> None:
    clock = time.strftime("%H:%M:%S", time.localtime(t))
    Console(stderr=True).print(f"  {clock}  {step:<19} {what}", markup=False, highlight=False, soft_wrap=True)


def verdict(journal: dict[str, Any]) -> None:
    rows = [
        (_MARKS[each["verdict"]], each["promise"], each["verdict"], each["wanted"], number(each["measured"]))
        for each in journal["objectives"]
    ]
    if rows:
        print_table(["", "OBJECTIVE", "VERDICT", "WANTED", "MEASURED"], rows)
    print(sentence(journal))


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


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


class Stage:
    """Progress of one stage of the demo: a bar on a terminal, plain lines elsewhere."""

    def __init__(self, console: Console, bar: Progress) -> None:
        self._console, self._bar = console, bar

    def log(self, line: str) -> None:
        self._console.print(f"  {line}", markup=False, highlight=False)

    def at(self, done: int) -> None:
        self._bar.update(self._bar.task_ids[0], completed=done)


@contextmanager
def stage(console: Console, area: str, what: str, total: int | None = None) -> Generator[Stage]:
    console.print(f"[bold]{area:<9}[/] {what}", highlight=False)
    began = time.monotonic()
    columns = (TextColumn("          "), BarColumn(bar_width=40), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        bar.add_task(what, total=total)
        yield Stage(console, bar)
    console.print(f"          done in {time.monotonic() - began:.1f} s", style="dim", highlight=False)
