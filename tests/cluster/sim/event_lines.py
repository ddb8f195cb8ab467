"""Event lines that real pods write into a folder of this host."""

import json
from pathlib import Path

from holdfast.clients.api import Object


def events(path: Path, event_type: str) -> list[Object]:
    """Returns the lines that are complete, in the order in which they were written."""
    if not path.exists():
        return []
    lines = (
        json.loads(line)
        for line in path.read_text().splitlines(keepends=True)
        if line.endswith("\n")
    )
    return [line for line in lines if line["event"] == event_type]


def find_step_before(path: Path, moment: float) -> int:
    """Returns the newest step that was committed before `moment`, or 0."""
    commits = events(path, "commit")
    return max((line["step"] for line in commits if line["t"] < moment), default=0)
