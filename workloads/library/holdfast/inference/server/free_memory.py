"""The memory of this container: whether there is room for a second copy of the model."""

from contextlib import suppress
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")
_SPARE = 1.2


def has_room_for_copy(pid: int) -> bool:
    """Returns whether another process may take as much memory as this one, and a fifth more.

    A container that exceeds its limit is killed as a whole, and its server with it.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    needed = _SPARE * _find_kib(status, "VmRSS") * 1024
    return needed <= _count_free_bytes()


def _count_free_bytes() -> int:
    counts: list[int] = []
    with suppress(OSError):
        counts.append(_find_kib(_MEMINFO.read_text(), "MemAvailable") * 1024)
    with suppress(OSError, ValueError):  # no limit: "max"
        limit = int((_CGROUP / "memory.max").read_text())
        used = int((_CGROUP / "memory.current").read_text())
        # The kernel drops cached files before it kills a process.
        cached = _find_number((_CGROUP / "memory.stat").read_text(), "inactive_file ")
        counts.append(limit - used + cached)
    return min(counts, default=0)


def _find_kib(text: str, name: str) -> int:
    return _find_number(text, f"{name}:")


def _find_number(text: str, prefix: str) -> int:
    for line in text.splitlines():
        if line.startswith(prefix):
            return int(line.removeprefix(prefix).split()[0])
    return 0
