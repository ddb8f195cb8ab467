"""Waits for what a run under test writes; nobody waits for a time."""

import subprocess
import time
from collections.abc import Callable, Sequence

from holdfast.contract.errors import HoldfastError
from holdfast.contract.exit_codes import EXIT_COMPLETE
from holdfast.drill.events import Follower

SILENCE_S = 180.0  # no event for this long: the run hangs
POLL_S = 0.02


class DrillError(HoldfastError, RuntimeError):
    """The run under test did something that no eviction explains."""


def until(done: Callable[[], bool], *, events: Follower, watch: Callable[[], None], tail: Callable[[], str]) -> None:
    """Read events until `done`. `watch` runs each round and raises where waiting is in vain; `tail` gives the
    last lines of a run that fell silent."""
    heard = time.monotonic()
    while True:
        heard = time.monotonic() if events.read() else heard
        if done():
            return
        watch()
        if time.monotonic() - heard > SILENCE_S:
            raise DrillError(f"no event for {SILENCE_S:.0f} s:\n{tail()}")
        time.sleep(POLL_S)


def completed(command: Sequence[str], *, done: Sequence[int] = (EXIT_COMPLETE,), timeout_s: float = 300) -> str:
    """Standard output of a short command; DrillError with its last lines unless its exit is one of `done`."""
    ended = subprocess.run(list(command), capture_output=True, text=True, timeout=timeout_s, check=False)
    if ended.returncode not in done:
        raise DrillError(f"{' '.join(command[2:6])}: exit {ended.returncode}\n{ended.stderr.strip()[-2000:]}")
    return ended.stdout
