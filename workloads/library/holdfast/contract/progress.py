"""What a command is at while somebody waits for it: one line of a terminal's standard error, and nothing elsewhere."""

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import TextIO, TypeVar

from holdfast.contract.printable import printable

_T = TypeVar("_T")
SILENT_S = 1.0
"""What is over by then shows nothing."""
_EVERY_S = 0.2
_WIPE = "\r\x1b[2K"


@contextmanager
def working(what: str) -> Generator[Callable[[str], None]]:
    """Shows `what` and its seconds until the block ends. Yields a function that names the step that begins.

    The line is wiped before the block's end is seen: what is printed afterwards stands alone. Inside the block
    nothing else should be printed.
    """
    stream = sys.stderr
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        yield lambda _: None
        return
    line = _Line(stream, what)
    thread = threading.Thread(target=line.draw_until_over, name="progress", daemon=True)
    thread.start()
    try:
        yield line.name_step
    finally:
        line.over.set()
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


class _Line:
    def __init__(self, stream: TextIO, what: str) -> None:
        self.over = threading.Event()
        self._stream, self._what, self._step = stream, what, ""
        self._began_s = time.monotonic()

    def name_step(self, step: str) -> None:
        self._step = step

    def draw_until_over(self) -> None:
        if self.over.wait(SILENT_S):
            return
        while not self.over.wait(_EVERY_S):
            self._write(_WIPE + self._text())
        self._write(_WIPE)

    def _text(self) -> str:
        steps = f": {self._step}" if self._step else ""
        text = f"{self._what}{steps} ({time.monotonic() - self._began_s:.0f} s)"
        # A line that wraps could not be wiped again.
        return printable(text)[: shutil.get_terminal_size().columns - 1]

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
