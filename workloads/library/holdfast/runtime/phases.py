"""Where the time of a start goes: named laps from the birth of the process to its first useful
step.

They become the `startup` event. Survives a fork, so the laps
of the agent and of the rank that it forked make one story.
"""

import contextlib
import gc
import os
import time
from collections.abc import Generator
from pathlib import Path


class Phases:
    def __init__(self, began: float) -> None:
        self._last = began
        self.seconds: dict[str, float] = {}

    @classmethod
    def of_process(cls) -> "Phases":
        """Laps since the kernel made this process; where that is not known, since now."""
        return cls(time.monotonic() - _age_s())

    def lap(self, name: str) -> None:
        """What ran since the last lap was `name`."""
        now = time.monotonic()
        self.seconds[name] = round(self.seconds.get(name, 0.0) + now - self._last, 3)
        self._last = now


@contextlib.contextmanager
def uncollected() -> Generator[None]:
    """Around large imports: they leave no garbage, and looking for it is a sixth of their time, a
    third of FSDP's. What exists after them stays shared with processes that are forked.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _age_s() -> float:
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        born = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # starttime, the 22nd field, after boot
        # Not CLOCK_MONOTONIC: the kernel counts a start from boot, suspended time included.
        return time.clock_gettime(time.CLOCK_BOOTTIME) - born
    except (OSError, AttributeError, ValueError):
        return 0.0
