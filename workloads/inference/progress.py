"""What a person at a terminal sees; silent where nobody looks."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from workloads.inference.status import Status, table


@contextmanager
def counting(what: str) -> Generator[Callable[[int], None]]:
    """A counter without a total: how many a source has is known when it ends."""
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn(what), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda seen: bar.update(task, completed=seen)


def show_until_drained(read: Callable[[], Status], *, every_s: float, price_per_hour: float) -> None:
    with Live(console=Console(), auto_refresh=False) as live:
        while True:
            found = read()
            live.update(table(found, price_per_hour), refresh=True)
            if found.done + found.failed >= found.total:
                return
            time.sleep(every_s)
