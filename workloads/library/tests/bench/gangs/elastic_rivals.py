"""Seconds to the next step after the death of one of three members, under the rivals.

The rivals are torchft and a rigid gang of this project. Torchft's lighthouse is a separate process,
as an operator would keep it, so that it survives every loss. A step is one all-reduce of one
number.

The rigid gang starts again whole from the last save. This module acts as the JobSet: the first pod
that fails ends the other pods, and all are created again. On a cluster a JobSet takes some 2 s for
that, and here no time.
"""

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from subprocess import Popen

from holdfast.drill.serving.fleet import free_port
from workloads.library.tests.bench.rival_home import CannotRun, home
from workloads.library.tests.processes import kill_family, until
from workloads.library.tests.training.nodes import Nodes
from workloads.library.tests.training.runs import PATIENCE_S, Event, notice, power_loss

MEMBERS = 3
LIMIT_S = 180.0
TORCHFT = "torchft"
FT_MEMBER = Path(__file__).with_name("elastic_torchft_member.py")
TUNED = ("--heartbeat_timeout_ms", "1000", "--join_timeout_ms", "1000")
"""Options of torchft's lighthouse; its defaults are 5 s and 60 s."""
COLLECTIVE_S = "15"
"""The time limit of a collective, equal to that of our gang in this bench."""
RIGID = "holdfast rigid"
EVERY = 50
LOST_AT = 2 * EVERY + EVERY // 2
"""The step of the loss, in the middle between two saves, where the mean loss of work is."""
ENDLESS = 10_000_000


def time_torchft_death(folder: Path, options: Sequence[str] = ()) -> float:
    """Kills a member of a torchft gang; returns seconds until a step of the remaining ones.

    Raises CannotRun if the gang does not step here.
    """
    folder.mkdir(parents=True)
    steps = folder / "steps"
    binaries = home(TORCHFT) / "bin"
    address = f"127.0.0.1:{free_port()}"
    lighthouse = [
        str(binaries / "torchft_lighthouse"),
        "--bind",
        address,
        "--min_replicas",
        "1",
        *options,
    ]
    member = [
        str(binaries / "python"),
        str(FT_MEMBER),
        f"http://{address}",
        str(steps),
        COLLECTIVE_S,
    ]
    server = _start(lighthouse, folder)
    members = [_start(member, folder) for _ in range(MEMBERS)]

    def step_times(size: int, since: float = 0.0) -> list[float]:
        """Returns the times of steps with this number of members."""
        times: list[float] = []
        for t, count in _parse_steps(steps):
            if count == size and t > since:
                times.append(t)
        return times

    def all_alive() -> bool:
        return all(member.poll() is None for member in members)

    try:
        until(
            lambda: len(step_times(MEMBERS)) > 20 * MEMBERS,
            "steps of all",
            alive=all_alive,
            within_s=LIMIT_S,
            pause_s=0.05,
        )
        _end(members[1])
        death = time.monotonic()
        later_steps = until(
            lambda: step_times(MEMBERS - 1, death),
            "a step of the others",
            within_s=LIMIT_S,
            pause_s=0.05,
        )
        return later_steps[0] - death
    # The last line of the log is the reason why a member cannot run.
    except (TimeoutError, ChildProcessError) as error:
        lines = []
        for line in (folder / "log").read_text().splitlines():
            if line.strip():
                lines.append(line)
        reason = lines[-1][:200] if lines else "the log is empty"
        raise CannotRun(f"{error}; {reason}") from None
    finally:
        for process in (*members, server):
            _end(process)


def _start(command: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "log").open("a") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def _parse_steps(path: Path) -> list[tuple[float, int]]:
    """Reads the time and the number of members of each step; skips a line that is not whole."""
    if not path.exists():
        return []
    lines = [line.split() for line in path.read_text().splitlines()]
    parsed_steps: list[tuple[float, int]] = []
    for words in lines:
        if len(words) == 2:
            parsed_steps.append((float(words[0]), int(words[1])))
    return parsed_steps


def _end(process: subprocess.Popen[bytes]) -> None:
    kill_family(process.pid)
    process.wait()


def time_rigid_death(folder: Path) -> float:
    """Kills a member of a rigid gang; returns seconds until the restarted gang is at its step."""
    nodes = Nodes(folder, "--set", f"batch={6 * MEMBERS}", count=MEMBERS)
    for run in nodes.runs:
        run.steps = ENDLESS
        run.every = EVERY
    with nodes.started() as pods:
        nodes.wait_for_step(pods, LOST_AT)
        death = time.time()
        power_loss(pods[1])
        _end_pods(pods)
        furthest = nodes.furthest
        steps_before = len(_steps(nodes))
    with nodes.started() as pods:
        nodes.wait_for_step(pods, furthest + 1)
    return _steps(nodes)[steps_before]["t"] - death


def _end_pods(pods: list[Popen[str]]) -> None:
    for pod in pods:
        if pod.poll() is None:
            notice(pod)
    for pod in pods:
        pod.wait(PATIENCE_S)


def _steps(nodes: Nodes) -> list[Event]:
    """Returns the windows of all runs in the order of their ends; only a leading rank reports."""
    windows = list[Event]()
    for run in nodes.runs:
        windows += run.of("window")
    return sorted(windows, key=lambda event: event["t"])
