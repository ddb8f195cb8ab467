"""Three members of which one is killed, under torchft and as a rigid gang of this project: seconds
to the next step.

Torchft's lighthouse is a process of its own, as an operator would keep it, so that no loss takes it
along. A step is one all-reduce of one number.

The rigid gang starts again whole from the last save. What a JobSet does is done here: the first pod
that failed ends the others, and all are made anew. On a cluster a JobSet takes some 2 s for that,
and here nothing.
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
"""Of its lighthouse; stock is 5 s and 60 s."""
COLLECTIVE_S = "15"
"""What ours has here."""
RIGID = "holdfast rigid"
EVERY = 50
LOST_AT = 2 * EVERY + EVERY // 2
"""In the middle between two saves, where the mean loss of work is."""
ENDLESS = 10_000_000


def torchft_killed(folder: Path, options: Sequence[str] = ()) -> float:
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
    server = _started(lighthouse, folder)
    members = [_started(member, folder) for _ in range(MEMBERS)]

    def stepped(size: int, since: float = 0.0) -> list[float]:
        """When, with so many members."""
        return [t for t, count in _lines(steps) if count == size and t > since]

    def all_there() -> bool:
        return all(each.poll() is None for each in members)

    try:
        until(
            lambda: len(stepped(MEMBERS)) > 20 * MEMBERS,
            "steps of all",
            alive=all_there,
            within_s=LIMIT_S,
            pause_s=0.05,
        )
        _end(members[1])
        began = time.monotonic()
        return (
            until(
                lambda: stepped(MEMBERS - 1, began),
                "a step of the others",
                within_s=LIMIT_S,
                pause_s=0.05,
            )[0]
            - began
        )
    # what a member that cannot says is the reason
    except (TimeoutError, ChildProcessError) as error:
        said = [line for line in (folder / "log").read_text().splitlines() if line.strip()]
        raise CannotRun(f"{error}; {said[-1][:200] if said else 'nothing was said'}") from None
    finally:
        for process in (*members, server):
            _end(process)


def _started(command: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "log").open("a") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def _lines(path: Path) -> list[tuple[float, int]]:
    found = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [(float(line[0]), int(line[1])) for line in found if len(line) == 2]


def _end(process: subprocess.Popen[bytes]) -> None:
    kill_family(process.pid)
    process.wait()


def rigid_killed(folder: Path) -> float:
    nodes = Nodes(folder, "--set", f"batch={6 * MEMBERS}", count=MEMBERS)
    for run in nodes.runs:
        run.steps = ENDLESS
        run.every = EVERY
    with nodes.started() as pods:
        nodes.wait_for_step(pods, LOST_AT)
        began = time.time()
        power_loss(pods[1])
        _end_pods(pods)
        reached = nodes.furthest
        before = len(_steps(nodes))
    with nodes.started() as pods:
        nodes.wait_for_step(pods, reached + 1)
    return _steps(nodes)[before]["t"] - began


def _end_pods(pods: list[Popen[str]]) -> None:
    for pod in pods:
        if pod.poll() is None:
            notice(pod)
    for pod in pods:
        pod.wait(PATIENCE_S)


def _steps(nodes: Nodes) -> list[Event]:
    """In the order of the steps' ends; one rank leads and reports."""
    return sorted(
        (event for run in nodes.runs for event in run.of("window")), key=lambda event: event["t"]
    )
