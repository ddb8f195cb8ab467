"""A campaign: each border in turn gets inputs of its own until the time is over.

A border may accept or refuse; any other exception, more CPU time or more memory than its bound, and
a wait that does not end are findings. The first of a border and place ends nothing: the campaign
goes on, and lists each place once.
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
    make: Callable[[random.Random], bytes]
    enter: Callable[[bytes], object]
    refusals: tuple[type[BaseException], ...] = ()
    """What this border documents for input that it does not take."""
    cpu_s: float = CPU_S
    wall_s: float = WALL_S
    """Long, so that a busy machine makes no finding."""


@dataclass(kw_only=True)
class Result:
    """Of one border."""

    cases: int = 0
    refused: int = 0
    findings: dict[str, str] = field(default_factory=dict[str, str])
    """By place: what went wrong, and with which case."""


class OverTime(BaseException):
    """No Exception, so that no handler of the product takes it for one of its own."""


def campaign(borders: Mapping[str, Border], *, cpu_s: float, seed: int) -> dict[str, Result]:
    """Borders take turns by CPU time, so that a busy machine tries no fewer inputs."""
    results = {name: Result() for name in borders}
    until = time.process_time() + cpu_s
    while time.process_time() < until:
        for name, border in borders.items():
            result = results[name]
            slice_end = min(until, time.process_time() + SLICE_S)
            while time.process_time() < slice_end or not result.cases:
                outcome = trial(border, made(border, seed, name, result.cases))
                if isinstance(outcome, tuple):
                    result.findings.setdefault(outcome[1], f"case {result.cases}: {outcome[0]}")
                result.refused += outcome is True
                result.cases += 1
    return results


def made(border: Border, seed: int, name: str, case: int) -> bytes:
    return border.make(random.Random(f"{seed} {name} {case}"))


def trial(border: Border, data: bytes) -> bool | tuple[str, str]:
    """Whether the border refused it; or what went wrong and where."""
    before = _peak_bytes(fresh=True)
    refused = False
    try:
        with _bounded(border.cpu_s, border.wall_s):
            border.enter(data)
    except border.refusals:
        refused = True
    except BaseException as error:  # the verdict on anything is what this program is for
        if isinstance(error, KeyboardInterrupt):
            raise
        return f"{type(error).__name__}: {str(error)[:200]!r}", _place(error)
    grown = _peak_bytes() - before
    if grown > GROWTH_BYTES + GROWTH_PER_BYTE * len(data):
        return f"{grown >> 20} MiB for {len(data)} bytes", "memory"
    return refused


def _peak_bytes(*, fresh: bool = False) -> int:
    """`fresh`: begun again, or one large input would hide the growth of all after it. 0 where the
    kernel is not Linux.
    """
    with suppress(OSError):
        if fresh:
            Path("/proc/self/clear_refs").write_text("5")
        peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
        if peak:
            return 1024 * int(peak[1])
    return 0


@contextmanager
def _bounded(cpu_s: float, wall_s: float) -> Generator[None]:
    def over(signum: int, frame: Any) -> None:
        raise OverTime(
            f"more than {cpu_s:g} s of CPU time"
            if signum == signal.SIGPROF
            else f"waited for {wall_s:g} s"
        )

    before = {number: signal.signal(number, over) for number in (signal.SIGPROF, signal.SIGALRM)}
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    signal.setitimer(signal.ITIMER_REAL, wall_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def _place(error: BaseException) -> str:
    """The innermost line of the product, which names the fault better than a library's."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = []
    for frame in frames:
        if "site-packages" not in frame.filename and "/tests/" not in frame.filename:
            ours.append(frame)
    last = (ours or frames)[-1]
    return f"{last.filename}:{last.lineno}"
