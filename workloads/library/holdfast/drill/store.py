"""Every run of every drill in a folder of its own: `<out>/<drill>/<when>/journal.json` and what
belongs to it.
"""

import datetime
import fcntl
import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast.support.errors import InputError

JOURNAL = "journal.json"


@contextmanager
def alone(folder: Path, who: str) -> Generator[None]:
    """One `who` per folder; the lock goes with the process, however it ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            got = str(folder)
            allowed = f"one {who} per folder"
            raise InputError(
                f"another {who} writes to this folder",
                got=got,
                allowed=allowed,
                fix="wait, or pass --out",
            ) from None
        yield


def fresh(out: Path, drill: str) -> Path:
    """A new folder for a run that begins now; names sort by time."""
    folder = out / drill / datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    folder.mkdir(parents=True)
    return folder


def write(folder: Path, journal: dict[str, Any]) -> Path:
    path = folder / JOURNAL
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(journal, indent=1, default=str) + "\n")
    draft.replace(path)
    return path
