"""What a drill and the demo show on the terminal: the verdict is data (stdout), what leads to it is
not (stderr).
"""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from rich.console import Console

from holdfast.drill.errors import in_one_line
from holdfast.drill.plan import RECOVERED, number
from holdfast.support.tables import print_table

_MARKS = {
    "held": "ok",
    "broken": "XX",
    "not measured": "--",
}


def moment(t: float, step: str, what: str) -> None:
    clock = time.strftime("%H:%M:%S", time.localtime(t))
    Console(stderr=True).print(
        f"  {clock}  {step:<19} {what}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def verdict(journal: dict[str, Any]) -> None:
    rows = []
    for each in journal["objectives"]:
        rows.append(
            (
                _MARKS[each["verdict"]],
                each["promise"],
                each["verdict"],
                each["wanted"],
                number(each["measured"]),
            )
        )
    if rows:
        print_table(["", "OBJECTIVE", "VERDICT", "WANTED", "MEASURED"], rows)
    print(sentence(journal))


def sentence(journal: dict[str, Any]) -> str:
    """The whole outcome in one line."""
    objectives = journal["objectives"]
    clauses = [f"{journal['drill']['name']}: {journal['verdict']}"]
    if objectives:
        held = sum(each["verdict"] == "held" for each in objectives)
        clauses.append(f"{held} of {len(objectives)} objectives held")
    broken = [each["promise"] for each in objectives if each["verdict"] == "broken"]
    if broken:
        clauses.append(f"broken: {', '.join(broken)}")
    back = next(
        (
            o["measured"]
            for o in objectives
            if o["metric"] == RECOVERED and o["measured"] is not None
        ),
        None,
    )
    if back is not None and journal["verdict"] == "held":
        clauses.append(f"back after {back:.1f} s")
    if journal["fail_step"]:
        clauses.append(f"at step `{journal['fail_step']}`: {in_one_line(journal['why'])}")
    return "; ".join(clauses) + f" ({journal['duration']:.0f} s)"


@contextmanager
def stage(console: Console, area: str, what: str) -> Generator[Callable[[str], None]]:
    """One stage of the demo; what is called with a line shows it."""
    console.print(f"[bold]{area:<9}[/] {what}", highlight=False)
    began = time.monotonic()
    yield lambda line: console.print(f"  {line}", markup=False, highlight=False)
    console.print(
        f"          done in {time.monotonic() - began:.1f} s", style="dim", highlight=False
    )
