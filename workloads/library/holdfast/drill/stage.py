"""Progress of one stage: a bar on a terminal, plain lines elsewhere."""

import time
from collections.abc import Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class Stage:
    def __init__(self, console: Console, bar: Progress) -> None:
        self._console, self._bar = console, bar
        self._task = bar.task_ids[0]

    def log(self, line: str) -> None:
        self._console.print(f"  {line}", markup=False, highlight=False)

    def at(self, done: int) -> None:
        self._bar.update(self._task, completed=done)


@contextmanager
def stage(console: Console, area: str, what: str, total: int | None = None) -> Generator[Stage]:
    console.print(f"[bold]{area:<9}[/] {what}", highlight=False)
    began = time.monotonic()
    columns = (TextColumn("          "), BarColumn(bar_width=40), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        bar.add_task(what, total=total)
        yield Stage(console, bar)
    console.print(f"          done in {time.monotonic() - began:.1f} s", style="dim", highlight=False)
