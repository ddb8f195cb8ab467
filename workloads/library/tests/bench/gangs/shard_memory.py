"""Measures where the shards of a sharded gang's node are, in memory and on its disk.

    python -m workloads.library.tests.bench.gangs.shard_memory

Two nodes of one rank each copy often and upload now and then. For each kind of place the largest
value of all samples is printed, in shards of a rank: the places do not peak at the same time, so
the sum is an upper bound, and the peak of the sum is printed next to it.
"""

import ctypes
import json
import mmap
import os
import tempfile
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from workloads.library.tests.bench.result import options
from workloads.library.tests.processes import MIB, until
from workloads.library.tests.training.elastic.sharded_gangs import ShardedGang, staging_memories

RANK = "workloads.library.tests.bench.gangs.rank"
STAGED = "staging memories"
COPIES = "copies in memory"
CACHE = "page cache of the folder"
DISK = "on the disk"
MEMORY = "memory, all places at one time"
SAMPLES = 150
PAUSE_S = 0.1


def measure_shards(folder: Path, mib: int, *, on_disk: bool) -> dict[str, float]:
    """Returns the largest value of each place, in shards."""
    disk = folder / "disk"
    disk.mkdir(parents=True)
    names = ("log", "marks", "turn_log")
    settings: dict[str, Any] = {}
    for name in names:
        settings[name] = str(folder / f"{name}.jsonl")
    settings |= {
        "mib": mib,
        "pace_s": 0.2,
        "products": 1,
        "steps": 1_000_000,
        "turns": 0,
        "dcp": False,
        "every": 12,
        "peer_steps": 2,
    }
    gang = ShardedGang(
        folder,
        None,
        nodes=2,
        child=RANK,
        copies_folder=str(disk) if on_disk else "",
        **settings,
    )
    largest: dict[str, float] = {}
    with closing(gang):
        gang.start(0, 1)
        until(lambda: len(gang.of("commit")) >= 2, gang.logs, within_s=240)
        for _ in range(SAMPLES):
            for process in gang.processes.values():
                sample = look(process.pid, disk)
                sample[MEMORY] = sample[STAGED] + sample[COPIES]
                for name, count in sample.items():
                    shards = count / (mib * MIB)
                    largest[name] = max(largest.get(name, 0.0), shards)
            time.sleep(PAUSE_S)
    return {name: round(count, 2) for name, count in largest.items()}


def look(launcher: int, disk: Path) -> dict[str, float]:
    """Returns the bytes of a node in each place."""
    staged = sum(link.stat().st_blocks * 512 for link in staging_memories(launcher))
    files = dict[int, Path]()
    for link in Path(f"/proc/{launcher}/fd").iterdir():
        with suppress(FileNotFoundError):
            target = str(link.readlink())
            if target.startswith(str(disk)):
                inode = link.stat().st_ino
                files[inode] = link
    cache = 0
    stored = 0
    for link in files.values():
        cache += count_resident(link)
        stored += link.stat().st_blocks * 512
    return {
        STAGED: staged,
        COPIES: sum_anonymous(launcher),
        CACHE: cache,
        DISK: stored,
    }


def sum_anonymous(pid: int) -> int:
    """Returns the bytes of a process's large private mappings without a file."""
    total = 0
    is_copy = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0]:
            start, end = words[0].split("-")
            length = int(end, 16) - int(start, 16)
            is_anonymous = len(words) < 6 or words[5] == "/dev/zero"
            is_copy = is_anonymous and length > 16 * MIB
        elif is_copy and words[0] == "Private_Dirty:":
            total += int(words[1]) << 10
    return total


def count_resident(link: Path) -> int:
    """Returns the bytes of a file that are in the page cache."""
    descriptor = os.open(link, os.O_RDONLY)
    try:
        length = os.fstat(descriptor).st_size
        if not length:
            return 0
        view = mmap.mmap(descriptor, length, flags=mmap.MAP_PRIVATE)
        page_count = -(-length // mmap.PAGESIZE)
        pages = (ctypes.c_ubyte * page_count)()
        start = ctypes.addressof(ctypes.c_ubyte.from_buffer(view))
        libc = ctypes.CDLL(None)
        libc.mincore(ctypes.c_void_p(start), ctypes.c_size_t(length), pages)
        resident_count = sum(page & 1 for page in pages)
        return resident_count * mmap.PAGESIZE
    finally:
        os.close(descriptor)


def main() -> None:
    arguments = options(__doc__, mib=128, folder="")
    parent = arguments.folder or None
    with tempfile.TemporaryDirectory(prefix="holdfast-shards-", dir=parent) as out:
        for on_disk in (False, True):
            name = "disk" if on_disk else "memory"
            result = measure_shards(Path(out) / name, arguments.mib, on_disk=on_disk)
            print(json.dumps({"copies in": name, **result}))


if __name__ == "__main__":
    main()
