"""Processes of tests and benches: what they and their children hold, their end, and what is awaited
of them.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import TypeVar

import psutil

SHARED = ("/memfd:", "/dev/shm/", "/dev/zero", "/SYSV")
MIB = 1 << 20
T = TypeVar("T")


def family(pid: int) -> list[psutil.Process]:
    """Returns the process and all its descendants; nothing once it is gone."""
    with suppress(psutil.NoSuchProcess):
        return [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    return []


def rss_mib(pid: int, *, with_children: bool = False) -> float:
    """Returns the resident memory in MiB; 0 for a process that is gone."""
    total = 0
    for process in family(pid) if with_children else family(pid)[:1]:
        with suppress(psutil.NoSuchProcess):
            total += process.memory_info().rss
    return total / MIB


def kill_family(*pids: int | None) -> None:
    """Kills processes and all below them at one moment, like machines that lose power.

    All are stopped first: a busy machine may let seconds pass between two signals, and one would
    act on the death of another.
    """
    processes: list[psutil.Process] = []
    for pid in pids:
        processes += family(pid or 0)
    each(processes, psutil.Process.suspend)
    for pid in pids:
        processes += family(pid or 0)  # those that were forked meanwhile
    each(processes, psutil.Process.kill)


def alive(process: psutil.Process) -> bool:
    """Returns whether the process runs; one that has ended but is not reaped yet does not."""
    with suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def each(processes: Iterable[psutil.Process], order: Callable[[psutil.Process], None]) -> None:
    """Applies the order to the processes that are still there."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            order(process)


def children(pid: int) -> list[int]:
    """Returns the children's ids in order; none for a process that is gone."""
    # Not by `ps`, which small images lack: a test would then find no child at all, or kill none.
    with suppress(psutil.NoSuchProcess):
        return sorted(child.pid for child in psutil.Process(pid).children())
    return []


def until(
    condition: Callable[[], T],
    what: str | Callable[[], str] = "the condition",
    *,
    alive: Callable[[], bool] = lambda: True,
    within_s: float = 120.0,
    pause_s: float = 0.01,
) -> T:
    """Waits for the first true answer of `condition`, and returns it.

    `what` is for the error, such as a log; `alive` says whether the answer can still come. Raises
    TimeoutError, and ChildProcessError once it can no longer come.
    """
    ends = time.monotonic() + within_s
    while not (outcome := condition()):
        if not alive() or time.monotonic() > ends:
            if alive():
                kind, reason = (TimeoutError, f"not within {within_s:g} s")
            else:
                kind, reason = (ChildProcessError, "it ended")
            raise kind(f"{reason}: {what if isinstance(what, str) else what()}")
        time.sleep(pause_s)
    return outcome


@contextmanager
def sampled(look: Callable[[], T], every_s: float) -> Generator[list[T]]:
    """Collects what `look` finds at intervals, in a thread, until the end of the block."""
    samples = list[T]()
    is_over = Event()

    def watch() -> None:
        while not is_over.wait(every_s):
            samples.append(look())

    thread = Thread(target=watch)
    thread.start()
    try:
        yield samples
    finally:
        is_over.set()
        thread.join()


def held(pids: list[int]) -> int:
    """Returns the memory that no file backs, in bytes.

    Shared memory counts once: processes are read one after the other, so proportional shares of
    pages that are just being mapped would not add up.
    """
    private = 0
    shared = dict[str, int]()
    for pid in pids:
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            for line in lines:
                if line.startswith("Pss_Anon:"):
                    private += int(line.split()[1]) * 1024
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


@contextmanager
def spinning(count: int = 1) -> Generator[None]:
    """Runs processes that compute without a pause and touch no memory."""
    program = "print(flush=True)\nwhile True: pass"
    with ExitStack() as stack:
        for _ in range(count):
            command = [sys.executable, "-c", program]
            process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
            stack.callback(process.kill)
            assert process.stdout is not None
            process.stdout.readline()
        yield
