"""Terminal output of drills and the demo: the verdict on stdout, progress on stderr."""

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console

from holdfast.drill.errors import in_one_line
from holdfast.drill.plan import RECOVERED, format_number
from holdfast.support.tables import print_table

_MARKS = {
    "held": "ok",
    "broken": "XX",
    "not measured": "--",
}


def print_step(moment: float, step: str, text: str) -> None:
    clock = time.strftime("%H:%M:%S", time.localtime(moment))
    Console(stderr=True).print(
        f"  {clock}  {step:<19} {text}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def print_verdict(journal: dict[str, Any]) -> None:
    rows = []
    for objective in journal["objectives"]:
        rows.append(
            (
                _MARKS[objective["verdict"]],
                objective["promise"],
                objective["verdict"],
                objective["wanted"],
                format_number(objective["measured"]),
            )
        )
    if rows:
        print_table(["", "OBJECTIVE", "VERDICT", "WANTED", "MEASURED"], rows)
    print(summarize(journal))


def summarize(journal: dict[str, Any]) -> str:
    """Returns the whole outcome in one line."""
    objectives = journal["objectives"]
    clauses = [f"{journal['drill']['name']}: {journal['verdict']}"]
    if objectives:
        count = sum(objective["verdict"] == "held" for objective in objectives)
        clauses.append(f"{count} of {len(objectives)} objectives held")
    broken = [o["promise"] for o in objectives if o["verdict"] == "broken"]
    if broken:
        clauses.append(f"broken: {', '.join(broken)}")
    recovery_s = _find_recovery(objectives)
    if recovery_s is not None and journal["verdict"] == "held":
        clauses.append(f"back after {recovery_s:.1f} s")
    if journal["fail_step"]:
        clauses.append(f"at step `{journal['fail_step']}`: {in_one_line(journal['why'])}")
    text = "; ".join(clauses)
    return f"{text} ({journal['duration']:.0f} s)"


def _find_recovery(objectives: Sequence[dict[str, Any]]) -> float | None:
    for objective in objectives:
        if objective["metric"] == RECOVERED and objective["measured"] is not None:
            return objective["measured"]
    return None


@contextmanager
def stage(console: Console, area: str, title: str) -> Generator[Callable[[str], None]]:
    """Announces one stage of the demo and its duration; yields a function that prints a line."""
    console.print(f"[bold]{area:<9}[/] {title}", highlight=False)
    start = time.monotonic()
    # Off a terminal, rich would break lines at 80 columns.
    yield lambda line: console.print(
        f"  {line}",
        markup=False,
        highlight=False,
        soft_wrap=not console.is_terminal,
    )
    seconds = time.monotonic() - start
    console.print(f"          done in {seconds:.1f} s", style="dim", highlight=False)
