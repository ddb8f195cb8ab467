"""What a person at a terminal sees; silent where nobody looks."""

import time
from collections.abc import Callable
from contextlib import nullcontext

from rich.console import Console
from rich.live import Live
from rich.text import Text

from holdfast.inference.results.status import Status, table


def show_until_drained(read: Callable[[], Status], *, every_s: float, price_per_hour: float) -> None:
    """One table that changes in place; off a terminal one below the other."""
    console = Console()
    with Live(console=console, auto_refresh=False) if console.is_terminal else nullcontext() as live:
        while True:
            found = read()
            shown = table(found, price_per_hour)
            if live:
                live.update(Text(shown), refresh=True)
            else:
                print(shown, end="\n\n", flush=True)
            if found.done + found.failed >= found.total:
                return
            time.sleep(every_s)
