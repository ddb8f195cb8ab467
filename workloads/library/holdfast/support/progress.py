"""The state of a command while a person waits for it: one line of a terminal's standard error, and
nothing elsewhere.
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
"""What is over by then shows nothing."""
_EVERY_S = 0.2
_WIPE = "\r\x1b[2K"


@contextmanager
def working(what: str) -> Generator[Callable[[str], None]]:
    """Shows `what` and its seconds until the block ends. Yields a function that names the step that
    begins.

    The line is wiped before the block's end is seen: what is printed afterwards has a line of its
    own. Inside the block nothing else should be printed.
    """
    stream = sys.stderr
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        yield lambda _: None
        return
    over = threading.Event()
    began_s = time.monotonic()
    step = [""]

    def draw_until_over() -> None:
        if over.wait(SILENT_S):
            return
        while not over.wait(_EVERY_S):
            text = printable(f"{what}{step[0]} ({time.monotonic() - began_s:.0f} s)")
            # A line that wraps could not be wiped again.
            stream.write(_WIPE + text[: shutil.get_terminal_size().columns - 1])
            stream.flush()
        stream.write(_WIPE)
        stream.flush()

    thread = threading.Thread(
        target=draw_until_over,
        name="progress",
        daemon=True,
    )
    thread.start()
    try:
        yield lambda name: step.__setitem__(0, f": {name}")
    finally:
        over.set()
        thread.join()


def awaited(what: str, items: Iterable[_T]) -> Iterator[_T]:
    """The items; `working` while each is made, and quiet while it is in hand."""
    rest = iter(items)
    while True:
        with working(what):
            try:
                found = next(rest)
            except StopIteration:
                return
        yield found
