"""A pidfile for each process that handles notices, so that a preStop hook finds them.

A file names a process by pid and start time, so that a reused pid is never signaled. A container
without a writable folder has no pidfiles, and only the drain is missing there.
"""

import contextlib
import os
import tempfile
from pathlib import Path

from holdfast.vocabulary.environment import ENV_RUN_DIR

# The position of starttime in the fields of /proc/PID/stat that follow the process name.
_START_TIME = 19


def folder() -> Path:
    path = os.environ.get(ENV_RUN_DIR)
    if path:
        return Path(path)
    return Path(tempfile.gettempdir()) / f"holdfast-{os.getuid()}"


def register() -> None:
    pid = os.getpid()
    with contextlib.suppress(OSError):
        directory = folder()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _is_ours(directory):
            (directory / f"{pid}.pid").write_text(find_start_time(pid))


def unregister() -> None:
    with contextlib.suppress(OSError):
        (folder() / f"{os.getpid()}.pid").unlink(missing_ok=True)


def list_processes() -> list[int]:
    """Lists the running processes that have a pidfile; removes the files of dead ones."""
    directory = folder()
    # Another user's files could name any of our processes, and the drain would stop it.
    if not directory.is_dir() or not _is_ours(directory):
        return []
    pids: list[int] = []
    for file in sorted(directory.glob("*.pid")):
        pid = int(file.stem)
        if is_running(pid) and _read_start_time(file) == find_start_time(pid):
            pids.append(pid)
        else:
            file.unlink(missing_ok=True)
    return pids


def _read_start_time(file: Path) -> str | None:
    """Returns the content of a pidfile; None if its process has just removed it."""
    try:
        return file.read_text()
    except FileNotFoundError:
        return None


def _is_ours(directory: Path) -> bool:
    """Returns False for a folder that another user made, in a shared /tmp."""
    return directory.stat().st_uid == os.getuid()


def is_running(pid: int) -> bool:
    """Returns True for a process that is alive, and not a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return _load_stat(pid)[:1] != ["Z"]


def find_start_time(pid: int) -> str:
    """Returns the start time as the kernel writes it; empty without /proc."""
    fields = _load_stat(pid)
    if len(fields) <= _START_TIME:
        return ""
    return fields[_START_TIME]


def _load_stat(pid: int) -> list[str]:
    """Reads the fields of /proc/PID/stat that follow the name, which may hold any character."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    _, _, fields = line.rpartition(")")
    return fields.split()
