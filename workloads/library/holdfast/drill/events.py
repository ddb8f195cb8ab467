"""Follows the event file of a job while its processes write it."""

import json
from pathlib import Path
from typing import Any

from holdfast.ledger.events import parse
from holdfast.ledger.job_summary import JobSummary, job_summary

Event = dict[str, Any]


class Follower:
    """Reads whole lines that were added since the last call; a file that does not exist yet is empty."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.seen: list[Event] = []
        self._lines: list[bytes] = []

    def read(self) -> list[Event]:
        """The new events; all of them so far are in `seen`."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            chunk = file.read()
        whole = chunk[: chunk.rfind(b"\n") + 1]
        self._offset += len(whole)
        lines = whole.splitlines()
        self._lines += lines
        new = [event for line in lines if (event := _parse(line))]
        self.seen += new
        return new

    def summary(self) -> JobSummary | None:
        """What the ledger makes of the lines so far; None while there is none that it can use."""
        events = parse(self._lines).events
        return job_summary(events) if events else None

    def last(self, event_type: str, field: str) -> Any:
        """The field of the newest event of that word; None if there is none."""
        return next((e[field] for e in reversed(self.seen) if e["event"] == event_type and field in e), None)

    def of(self, event_type: str) -> list[Event]:
        return [event for event in self.seen if event["event"] == event_type]


def _parse(line: bytes) -> Event | None:
    """A process that was killed may leave half a line: that event is lost, the rest counts."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and "event" in event else None
