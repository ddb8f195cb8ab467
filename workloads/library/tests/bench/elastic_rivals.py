"""Three members of which one is killed, under torchft: seconds until the others step again.

The lighthouse that they meet at is a process of its own, as an operator would keep it, so that no loss takes it along. A step is one all-reduce of one number, so its length is what the rival adds to every step.
"""

import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from holdfast.drill.serving.fleet import free_port
from workloads.library.tests.bench.rival_home import CannotRun, home
from workloads.library.tests.processes import kill_family, until

MEMBERS = 3
LIMIT_S = 180.0
TORCHFT = "torchft"
FT_MEMBER = Path(__file__).with_name("elastic_torchft_member.py")
TUNED = ("--heartbeat_timeout_ms", "1000", "--join_timeout_ms", "1000")
"""Of its lighthouse; stock is 5 s and 60 s."""
COLLECTIVE_S = "15"
"""What ours has here."""


def one_killed(folder: Path, options: Sequence[str] = ()) -> dict[str, float]:
    folder.mkdir(parents=True)
    steps, binaries = folder / "steps", home(TORCHFT) / "bin"
    address = f"127.0.0.1:{free_port()}"
    lighthouse = [str(binaries / "torchft_lighthouse"), "--bind", address, "--min_replicas", "1", *options]
    member = [str(binaries / "python"), str(FT_MEMBER), f"http://{address}", str(steps), COLLECTIVE_S]
    server = _started(lighthouse, folder)
    members = [_started(member, folder) for _ in range(MEMBERS)]
    try:
        _met(steps, members, folder)
        _end(members[1])
        began = time.monotonic()

        def after() -> list[float]:
            return [t for t, size, _ in _lines(steps) if size == MEMBERS - 1 and t > began]

        try:
            (first, *_) = until(after, within_s=LIMIT_S, pause_s=0.05)
        except TimeoutError:
            raise CannotRun(f"the others did not step again within {LIMIT_S:g} s") from None
        together = [seconds for _, size, seconds in _lines(steps) if size == MEMBERS]
        return {
            "death_s": round(first - began, 2),
            "all_reduce_ms": round(1000 * statistics.median(together), 2),
        }
    finally:
        for process in (*members, server):
            _end(process)


def _started(command: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "log").open("a") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def _met(steps: Path, members: Sequence[subprocess.Popen[bytes]], folder: Path) -> None:
    """Until all have stepped together for a while; what a member that cannot says is the reason."""

    def together() -> bool:
        if gone := [each.returncode for each in members if each.poll() is not None]:
            raise CannotRun(f"a member ended with {gone[0]}: {_last_line(folder)}")
        return sum(size == MEMBERS for _, size, _ in _lines(steps)) > 20 * MEMBERS

    try:
        until(together, within_s=LIMIT_S, pause_s=0.05)
    except TimeoutError:
        raise CannotRun(f"{MEMBERS} members did not meet in {LIMIT_S:g} s: {_last_line(folder)}") from None


def _last_line(folder: Path) -> str:
    lines = [line for line in (folder / "log").read_text().splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it said nothing"


def _lines(path: Path) -> list[tuple[float, int, float]]:
    found = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [(float(line[0]), int(line[1]), float(line[2])) for line in found if len(line) == 3]


def _end(process: subprocess.Popen[bytes]) -> None:
    kill_family(process.pid)
    process.wait()
