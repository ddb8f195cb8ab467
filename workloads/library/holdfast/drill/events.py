"""Follows the event file of a job while its processes write it, and waits for what it says."""

import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from holdfast.drill.errors import DrillError
from holdfast.ledger.events import Tail, parse
from holdfast.ledger.job_summary import JobSummary, job_summary
from holdfast.vocabulary.exit_codes import EXIT_COMPLETE

SILENCE_S = 180.0  # no event for this long: the run hangs
POLL_S = 0.02
Event = dict[str, Any]


class Follower:
    """A file that does not exist yet is empty."""

    def __init__(self, path: Path) -> None:
        self._tail = Tail(path)
        self._lines: list[bytes] = []
        self.seen: list[Event] = []

    def read(self) -> list[Event]:
        """The new events; all of them so far are in `seen`."""
        lines = self._tail.read()
        self._lines += lines
        new = [event.fields for event in parse(lines).events]
        self.seen += new
        return new

    def summary(self) -> JobSummary | None:
        """What the ledger makes of the lines so far; None while there is none that it can use."""
        events = parse(self._lines).events
        return job_summary(events) if events else None

    def last(self, event_type: str, field: str) -> Any:
        """The field of the newest event of that word; None if there is none."""
        return next(
            (e[field] for e in reversed(self.seen) if e["event"] == event_type and field in e), None
        )

    def of(self, event_type: str) -> list[Event]:
        return [event for event in self.seen if event["event"] == event_type]


def until(
    done: Callable[[], bool],
    *,
    events: Follower,
    watch: Callable[[], None],
    tail: Callable[[], str],
) -> None:
    """Read events until `done`. `watch` runs each round and raises where waiting is useless; `tail`
    gives the last lines of a run that fell silent.
    """
    heard = time.monotonic()
    while True:
        heard = time.monotonic() if events.read() else heard
        if done():
            return
        watch()
        if time.monotonic() - heard > SILENCE_S:
            raise DrillError(f"no event for {SILENCE_S:.0f} s:\n{tail()}")
        time.sleep(POLL_S)


def completed(command: Sequence[str], *, done: Sequence[int] = (EXIT_COMPLETE,)) -> str:
    """Standard output of a short command; DrillError with its last lines unless its exit is one of
    `done`.
    """
    ended = subprocess.run(
        list(command),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if ended.returncode not in done:
        raise DrillError(
            f"{' '.join(command[2:6])}: exit {ended.returncode}\n{ended.stderr.strip()[-2000:]}"
        )
    return ended.stdout
