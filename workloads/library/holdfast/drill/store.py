"""Folders of drill runs: each run writes `<out>/<drill>/<time>/journal.json` and its own files."""

import datetime
import fcntl
import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast.support.errors import InputError

JOURNAL = "journal.json"
_LOCK = ".lock"


@contextmanager
def lock_folder(folder: Path, program: str) -> Generator[None]:
    """Lets one `program` write to the folder, and notes its name there; the lock ends with the
    process.

    Raises InputError if another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"another {program} writes to this folder",
                got=str(folder),
                allowed=f"one {program} per folder",
                fix="wait, or pass --out",
            ) from None
        handle.truncate(0)
        handle.write(program)
        handle.flush()
        yield


def read_program(folder: Path) -> str | None:
    """Returns the program that wrote to the folder last; None if there was none.

    The name is empty if an earlier version of the library wrote there.
    """
    try:
        return (folder / _LOCK).read_text(errors="replace")
    except OSError:
        return None


def create_run_folder(out: Path, drill: str) -> Path:
    """Creates the folder of a run that begins now; names sort by time."""
    now = datetime.datetime.now(datetime.UTC)
    folder = out / drill / now.strftime("%Y%m%dT%H%M%S.%fZ")
    folder.mkdir(parents=True)
    return folder


def write_journal(folder: Path, journal: dict[str, Any]) -> Path:
    path = folder / JOURNAL
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(journal, indent=1, default=str) + "\n")
    draft.replace(path)
    return path
