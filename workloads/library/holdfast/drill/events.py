"""Follows the event file of a job while its processes write it, and waits for conditions on it."""

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
    """Reads an event file as it grows; a file that does not exist yet is empty."""

    def __init__(self, path: Path) -> None:
        self._tail = Tail(path)
        self._lines: list[bytes] = []
        self.history: list[Event] = []

    def read(self) -> list[Event]:
        """Returns the new events and adds them to `history`."""
        lines = self._tail.read()
        self._lines += lines
        events = [event.fields for event in parse(lines).events]
        self.history += events
        return events

    def summary(self) -> JobSummary | None:
        """Returns the ledger's summary of the lines so far; None if no line is an event."""
        events = parse(self._lines).events
        return job_summary(events) if events else None

    def last(self, event_type: str, field: str) -> Any:
        """Returns the field of the newest event of that type that has it; None if none has."""
        for event in reversed(self.of(event_type)):
            if field in event:
                return event[field]
        return None

    def of(self, event_type: str) -> list[Event]:
        return [event for event in self.history if event["event"] == event_type]


def until(
    done: Callable[[], bool],
    *,
    events: Follower,
    watch: Callable[[], None],
    tail: Callable[[], str],
) -> None:
    """Reads events until `done`.

    `watch` runs each round and raises if waiting is useless. Raises DrillError with the lines of
    `tail` if the run writes no event for SILENCE_S.
    """
    last_event_t = time.monotonic()
    while True:
        if events.read():
            last_event_t = time.monotonic()
        if done():
            return
        watch()
        if time.monotonic() - last_event_t > SILENCE_S:
            raise DrillError(f"no event for {SILENCE_S:.0f} s:\n{tail()}")
        time.sleep(POLL_S)


def run_command(command: Sequence[str], *, done: Sequence[int] = (EXIT_COMPLETE,)) -> str:
    """Runs a short command and returns its standard output.

    Raises DrillError with its last lines unless its exit code is one of `done`.
    """
    process = subprocess.run(
        list(command),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if process.returncode not in done:
        words = " ".join(command[2:6])
        log = process.stderr.strip()[-2000:]
        raise DrillError(f"{words}: exit {process.returncode}\n{log}")
    return process.stdout
