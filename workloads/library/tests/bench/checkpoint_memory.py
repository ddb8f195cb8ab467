"""What a process and its children hold, from /proc."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

SHARED = ("/memfd:", "/dev/shm/", "/dev/zero", "/SYSV")


def family(pid: int) -> list[int]:
    found = [pid]
    for parent in found:
        with suppress(OSError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
    return found


def held(pids: list[int]) -> int:
    """Memory that no file backs. Shared memory counts once: processes are read one after the other, so that
    shares of pages that are just being mapped would not add up."""
    private, shared = 0, dict[str, int]()
    for pid in pids:
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            private += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss_Anon:"))
            for inode, resident in shared_mappings(pid):
                shared[inode] = max(shared.get(inode, 0), resident)
    return private + sum(shared.values())


def shared_mappings(pid: int) -> Iterator[tuple[str, int]]:
    inode = ""
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if not fields[0].endswith(":"):
            inode = fields[4] if len(fields) > 5 and fields[5].startswith(SHARED) else ""
        elif inode and fields[0] == "Rss:":
            yield inode, int(fields[1]) * 1024
