"""A campaign: every border gets its own hostile inputs in turn until the time is over.

A border may accept or refuse an input. Any other exception, more CPU time or memory than its bound,
and an endless wait are findings. A finding does not end the campaign, which lists each place once.
"""

import random
import re
import signal
import time
import traceback
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CPU_S = 10.0
WALL_S = 300.0
GROWTH_BYTES = 256 << 20
GROWTH_PER_BYTE = 200
SLICE_S = 0.5


@dataclass(frozen=True, kw_only=True)
class Border:
    """A place where the product reads input of others."""

    make: Callable[[random.Random], bytes]
    enter: Callable[[bytes], object]
    refusals: tuple[type[BaseException], ...] = ()
    """Exceptions that this border documents for input that it rejects."""
    cpu_s: float = CPU_S
    wall_s: float = WALL_S
    """Wall-clock bound, long enough that a busy machine causes no finding."""


@dataclass(kw_only=True)
class Result:
    """The inputs and findings of one border."""

    cases: int = 0
    refused: int = 0
    findings: dict[str, str] = field(default_factory=dict)
    """The failure and its case, by the place of the failure."""


class OverTime(BaseException):
    """A bound was exceeded. It is no Exception, so that no handler of the product catches it."""


def campaign(
    borders: Mapping[str, Border],
    *,
    cpu_s: float,
    seed: int,
) -> dict[str, Result]:
    """Try inputs for `cpu_s` seconds, and return the results by border.

    Borders take turns by CPU time, so that a busy machine tries as many inputs.
    """
    results = {name: Result() for name in borders}
    until = time.process_time() + cpu_s
    while time.process_time() < until:
        for name, border in borders.items():
            result = results[name]
            slice_end = min(until, time.process_time() + SLICE_S)
            while time.process_time() < slice_end or not result.cases:
                data = make_input(
                    border,
                    seed,
                    name,
                    result.cases,
                )
                outcome = run_case(border, data)
                if isinstance(outcome, tuple):
                    failure, place = outcome
                    result.findings.setdefault(place, f"case {result.cases}: {failure}")
                result.refused += outcome is True
                result.cases += 1
    return results


def make_input(
    border: Border,
    seed: int,
    name: str,
    case: int,
) -> bytes:
    return border.make(random.Random(f"{seed} {name} {case}"))


def run_case(border: Border, data: bytes) -> bool | tuple[str, str]:
    """Return whether the border refused the input; or the failure and its place."""
    peak_before = _peak_bytes(reset=True)
    refused = False
    try:
        with _limit_time(border.cpu_s, border.wall_s):
            border.enter(data)
    except border.refusals:
        refused = True
    # Everything is caught: this program reports any failure.
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return f"{type(error).__name__}: {str(error)[:200]!r}", _find_place(error)
    growth = _peak_bytes() - peak_before
    if growth > GROWTH_BYTES + GROWTH_PER_BYTE * len(data):
        return f"{growth >> 20} MiB for {len(data)} bytes", "memory"
    return refused


def _peak_bytes(*, reset: bool = False) -> int:
    """Return the peak memory of this process; 0 if the kernel is not Linux.

    `reset` starts a new peak, because one large input would hide the growth of all later ones.
    """
    with suppress(OSError):
        if reset:
            Path("/proc/self/clear_refs").write_text("5")
        peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
        if peak:
            return 1024 * int(peak[1])
    return 0


@contextmanager
def _limit_time(cpu_s: float, wall_s: float) -> Generator[None]:
    def stop(signum: int, frame: Any) -> None:
        if signum == signal.SIGPROF:
            raise OverTime(f"more than {cpu_s:g} s of CPU time")
        raise OverTime(f"waited for {wall_s:g} s")

    handlers = {}
    for number in (signal.SIGPROF, signal.SIGALRM):
        handlers[number] = signal.signal(number, stop)
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    signal.setitimer(signal.ITIMER_REAL, wall_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _find_place(error: BaseException) -> str:
    """Return the innermost line of the product, which tells more than a line of a library."""
    frames = traceback.extract_tb(error.__traceback__)
    innermost = frames[-1]
    for frame in frames:
        if "site-packages" not in frame.filename and "/tests/" not in frame.filename:
            innermost = frame
    return f"{innermost.filename}:{innermost.lineno}"
