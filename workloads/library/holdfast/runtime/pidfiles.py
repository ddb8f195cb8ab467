"""One file for each process that takes notices, so that a preStop hook finds them.

A file names a process by pid and start time, so that a reused pid is never signalled. A container
without a writable folder has no pidfiles, and loses the drain only.
"""

import contextlib
import os
import tempfile
from pathlib import Path

from holdfast.vocabulary.environment import ENV_RUN_DIR


def folder() -> Path:
    return Path(
        os.environ.get(ENV_RUN_DIR) or Path(tempfile.gettempdir()) / f"holdfast-{os.getuid()}"
    )


def register() -> None:
    with contextlib.suppress(OSError):
        place = folder()
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        if place.stat().st_uid == os.getuid():  # in a shared /tmp another user may have made it
            (place / f"{os.getpid()}.pid").write_text(started_at(os.getpid()))


def unregister() -> None:
    with contextlib.suppress(OSError):
        (folder() / f"{os.getpid()}.pid").unlink(missing_ok=True)


def registered() -> list[int]:
    """Processes that are alive and wrote a pidfile; entries of dead ones are dropped."""
    place = folder()
    alive = list[int]()
    # Another user's files could name any of our processes, and the drain would stop it.
    if not place.is_dir() or place.stat().st_uid != os.getuid():
        return []
    for entry in sorted(place.glob("*.pid")):
        pid = int(entry.stem)
        if running(pid) and entry.read_text() == started_at(pid):
            alive.append(pid)
        else:
            entry.unlink(missing_ok=True)
    return alive


def running(pid: int) -> bool:
    """Alive and not merely waiting to be reaped."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return _stat(pid)[:1] != ["Z"]


def started_at(pid: int) -> str:
    """Kernel's start time of the process; empty where there is no /proc."""
    return (_stat(pid) + [""] * 20)[19]


def _stat(pid: int) -> list[str]:
    """Fields of /proc/<pid>/stat from the state on; the name before it may hold anything."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
