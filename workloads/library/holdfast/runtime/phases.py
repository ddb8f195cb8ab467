"""The phases of a start, timed from the birth of the process to its first useful step.

They become the `startup` event. They survive a fork, so those of the agent and of the rank that it
forks form one sequence.
"""

import contextlib
import gc
import os
import time
from collections.abc import Generator
from pathlib import Path


class Phases:
    def __init__(self, start: float) -> None:
        self._last = start
        self.seconds: dict[str, float] = {}

    @classmethod
    def of_process(cls) -> "Phases":
        """Starts with the birth of this process, or now if the kernel does not tell."""
        return cls(time.monotonic() - _age_s())

    def lap(self, name: str) -> None:
        """Adds the time since the last lap to phase `name`."""
        now = time.monotonic()
        total_s = self.seconds.get(name, 0.0) + now - self._last
        self.seconds[name] = round(total_s, 3)
        self._last = now


@contextlib.contextmanager
def pause_gc() -> Generator[None]:
    """Pauses the garbage collector during large imports, which leave no garbage.

    Collecting is a sixth of their time, a third with FSDP. Objects that exist afterwards stay
    shared with forked processes.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _age_s() -> float:
    try:
        line = Path("/proc/self/stat").read_text()
        # The name before the bracket may hold spaces.
        _, _, after_name = line.rpartition(")")
        fields = after_name.split()
        # Field 22, starttime, counts from boot.
        born_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        # Not CLOCK_MONOTONIC: the kernel counts a start from boot, suspended time included.
        return time.clock_gettime(time.CLOCK_BOOTTIME) - born_s
    except (OSError, AttributeError, ValueError):
        return 0.0
