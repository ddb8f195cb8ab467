"""A campaign: each border in turn gets inputs of its own until the time is over.

A border may accept or refuse; any other exception, more CPU time or more memory than its bound is a finding. What
hangs without working is caught by the time that it waited: the clock on the wall less what it worked and less what
it stood in line for a core, so that a busy machine makes no finding. The first finding of a border and place ends
nothing: the campaign goes on, and lists each place once.
"""

import random
import re
import resource
import shlex
import signal
import time
import traceback
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CPU_S, WAITED_S = 10.0, 60.0
GROWTH_BYTES, GROWTH_PER_BYTE = 256 << 20, 200
SLICE_S = 0.5


@dataclass(frozen=True, kw_only=True)
class Border:
    make: Callable[[random.Random], bytes]
    enter: Callable[[bytes], object]
    refusals: tuple[type[BaseException], ...] = ()
    """What this border documents for input that it does not take."""
    cpu_s: float = CPU_S
    waited_s: float = WAITED_S


@dataclass(frozen=True, kw_only=True)
class Finding:
    border: str
    seed: int
    case: int
    what: str
    where: str
    input_at: Path

    def line(self) -> str:
        again = f"python -m workloads.library.tests.fuzz --seed {self.seed} --border {shlex.quote(self.border)} --case {self.case}"
        return f"{self.border}: {self.what} at {self.where}\n  input: {self.input_at}\n  again: {again}"


@dataclass(kw_only=True)
class Result:
    cases: dict[str, int] = field(default_factory=dict[str, int])
    refused: dict[str, int] = field(default_factory=dict[str, int])
    cpu_s: float = 0.0
    findings: list[Finding] = field(default_factory=list[Finding])

    def table(self) -> str:
        rows = [f"{name:<24}{count:>9}{self.refused[name]:>9}" for name, count in self.cases.items()]
        total = f"{sum(self.cases.values())} inputs in {self.cpu_s:.0f} s of CPU time, {len(self.findings)} findings"
        return "\n".join([f"{'border':<24}{'inputs':>9}{'refused':>9}", *rows, total])


class OverTime(BaseException):
    """No Exception, so that no handler of the product takes it for one of its own."""


def campaign(
    borders: Mapping[str, Border],
    *,
    seconds: float,
    seed: int,
    out: Path,
    clock: Callable[[], float] = time.monotonic,
) -> Result:
    """`seconds` on `clock`; borders take turns by CPU time, so that a waiting one takes nothing from the others."""
    result = Result(cases=dict.fromkeys(borders, 0), refused=dict.fromkeys(borders, 0))
    began, until = time.process_time(), clock() + seconds
    known: set[tuple[str, str]] = set()
    while clock() < until:
        for name, border in borders.items():
            slice_end = time.process_time() + SLICE_S
            while (time.process_time() < slice_end and clock() < until) or not result.cases[name]:
                case = result.cases[name]
                data = border.make(drawn(seed, name, case))
                result.cases[name] += 1
                trouble = trial(border, data)
                result.refused[name] += trouble == REFUSED
                if trouble and trouble != REFUSED and (name, trouble[1]) not in known:
                    known.add((name, trouble[1]))
                    result.findings.append(_kept(name, seed, case, trouble, data, out))
    result.cpu_s = time.process_time() - began
    return result


def drawn(seed: int, name: str, case: int) -> random.Random:
    return random.Random(f"{seed} {name} {case}")


REFUSED = ("refused", "")


def trial(border: Border, data: bytes) -> tuple[str, str] | None:
    """What went wrong and where; None where the border took it, REFUSED where it said no."""
    before = _fresh_peak_bytes()
    try:
        with _clocks(border.cpu_s, border.waited_s):
            border.enter(data)
    except border.refusals:
        outcome: tuple[str, str] | None = REFUSED
    except OverTime as error:
        outcome = (str(error), _place(error))
    except BaseException as error:  # the verdict on anything is what this program is for
        if isinstance(error, KeyboardInterrupt):
            raise
        outcome = (f"{type(error).__name__}: {str(error)[:200]!r}", _place(error))
    else:
        outcome = None
    grown = _peak_bytes() - before
    if grown > GROWTH_BYTES + GROWTH_PER_BYTE * len(data):
        return f"{grown >> 20} MiB for {len(data)} bytes", "memory"
    return outcome


def _fresh_peak_bytes() -> int:
    """Starts the peak again from what is in use now, or one large input would hide the growth of all after it."""
    with suppress(OSError):  # another kernel than Linux: the peak of the whole process has to do
        Path("/proc/self/clear_refs").write_text("5")
    return _peak_bytes()


def _peak_bytes() -> int:
    try:
        peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    except OSError:
        peak = None
    return 1024 * (int(peak[1]) if peak else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


@contextmanager
def _clocks(cpu_s: float, waited_s: float) -> Generator[None]:
    waited_before = _waited_s()

    def worked(signum: int, frame: Any) -> None:
        raise OverTime(f"more than {cpu_s:g} s of CPU time")

    def look(signum: int, frame: Any) -> None:
        if _waited_s() - waited_before > waited_s:
            raise OverTime(f"waited more than {waited_s:g} s")

    before = {
        number: signal.signal(number, over) for number, over in ((signal.SIGPROF, worked), (signal.SIGALRM, look))
    }
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    signal.setitimer(signal.ITIMER_REAL, waited_s, waited_s / 4)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def _waited_s() -> float:
    """On the clock on the wall, less this thread's time on a core and in line for one."""
    try:
        on_core_ns, in_line_ns, *_ = map(int, Path("/proc/thread-self/schedstat").read_text().split())
    except OSError:  # a kernel that does not count: what stood in line has waited too
        on_core_ns, in_line_ns = time.thread_time_ns(), 0
    return (time.monotonic_ns() - on_core_ns - in_line_ns) / 1e9


def _place(error: BaseException) -> str:
    """The innermost line of the product, which names the fault better than a library's."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "site-packages" not in frame.filename and "/tests/" not in frame.filename]
    last = (ours or frames)[-1]
    return f"{last.filename}:{last.lineno}"


def _kept(name: str, seed: int, case: int, trouble: tuple[str, str], data: bytes, out: Path) -> Finding:
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{name.replace(' ', '-')}-{case}.bin"
    path.write_bytes(data)
    return Finding(border=name, seed=seed, case=case, what=trouble[0], where=trouble[1], input_at=path)


def show_again(borders: Mapping[str, Border], seed: int, case: int) -> int:
    """With its traceback, if it still fails."""
    ((name, border),) = borders.items()
    data = border.make(drawn(seed, name, case))
    try:
        border.enter(data)
    except border.refusals as error:
        print(f"refused: {error}")
    return 0
