"""Shows a waiting person what a command does: one line of a terminal's standard error.

Nothing is shown off a terminal.
"""

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from holdfast.support.printable import printable

_T = TypeVar("_T")
SILENT_S = 1.0
"""Work that ends sooner shows nothing."""
_EVERY_S = 0.2
_WIPE = "\r\x1b[2K"


@contextmanager
def working(what: str, *, since_s: float | None = None) -> Generator[Callable[[str], None]]:
    """Shows `what` and its seconds until the block ends. Yields a function that names a new step.

    The seconds count from `since_s` of the monotonic clock, by default from the block's beginning.

    The line is wiped when the block ends, so that later output has a line of its own. Nothing else
    should be printed inside the block.
    """
    stream = sys.stderr
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        yield lambda _: None
        return
    over = threading.Event()
    start_s = time.monotonic() if since_s is None else since_s
    step = [""]

    def draw_until_over() -> None:
        elapsed_s = time.monotonic() - start_s
        if over.wait(max(0.0, SILENT_S - elapsed_s)):
            return
        while not over.wait(_EVERY_S):
            elapsed_s = time.monotonic() - start_s
            text = printable(f"{what}{step[0]} ({elapsed_s:.0f} s)")
            # A line that wraps could not be wiped again.
            width = shutil.get_terminal_size().columns - 1
            stream.write(_WIPE + text[:width])
            stream.flush()
        stream.write(_WIPE)
        stream.flush()

    thread = threading.Thread(target=draw_until_over, name="progress", daemon=True)
    thread.start()
    try:
        yield lambda name: step.__setitem__(0, f": {name}")
    finally:
        over.set()
        thread.join()


def show_waiting(what: str, items: Iterable[_T]) -> Iterator[_T]:
    """Yields the items, and shows `what` while it waits for the next one."""
    iterator = iter(items)
    while True:
        with working(what):
            try:
                item = next(iterator)
            except StopIteration:
                return
        yield item
