"""Notices at awkward moments: before there is anything to stop, in a restore, and in the very last
save.
"""

import os
import signal
import subprocess
import sys
import time
from ipaddress import ip_address
from pathlib import Path

import psutil
import pytest

from holdfast.support.object_names import parse_step
from holdfast.vocabulary.environment import ENV_RUN_DIR
from tests.support import commits
from workloads.library.tests.fork_server import ForkServer
from workloads.library.tests.processes import children
from workloads.library.tests.training.hooks import before_import, holding, replace_function
from workloads.library.tests.training.runs import COMMAND, STEPS, Run, notice, power_loss

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]  # several starts of torch in each

NOTICED = "notices.of_process().requested"


def test_a_notice_before_torch_is_imported_is_heard_and_leaves_at_once(tmp_path: Path) -> None:
    # By default the first process of a container does not get the signal at all: dying of it would
    # be a failure.
    stuck = before_import(
        tmp_path / "site", "torch", "print('importing', flush=True)\nimport time\ntime.sleep(600)"
    )
    run = Run(folder=tmp_path, env=stuck)
    assert run.stop_when(lambda: "importing" in run.log(), notice) == 143


def test_a_notice_while_the_first_node_is_awaited_leaves_at_once(
    tmp_path: Path, server: ForkServer
) -> None:
    run = Run(
        server=server,
        folder=tmp_path,
        options=("--nodes", "2", "--rendezvous", "[100::1]:29500"),
    )
    assert run.stop_when(lambda: "waiting for the first node" in run.log(), notice) == 143


def test_notices_in_a_restore_and_in_the_last_save_cost_no_bit(
    tmp_path: Path, reference_run: Run, server: ForkServer
) -> None:
    hooked = {ENV_RUN_DIR: str(tmp_path / "roll")}
    run = Run(
        server=server,
        folder=tmp_path / "run",
        every=100,
        env=hooked,
    )
    go = tmp_path / "go"

    def prestop(_: subprocess.Popen[str]) -> None:
        subprocess.run(
            [sys.executable, "-m", "holdfast.runtime.drain"], env=os.environ | hooked, check=True
        )

    def list_reached(point: str) -> list[int]:
        process_ids: list[int] = []
        for path in tmp_path.glob(f"{point}-*"):
            process_ids.append(int(path.name.rpartition("-")[2]))
        return process_ids

    run.hold_before(STEPS - 2)
    assert run.interrupt(5, prestop) == 143
    run.release()
    assert run.of("stop")[0]["step"] >= 5
    failpoint = "holdfast.checkpoint.failpoints:failpoint"
    run.module = replace_function(
        tmp_path / "run.py", failpoint, holding("restore.chosen", tmp_path, NOTICED)
    )
    begun = len(run.events())
    assert run.stop_when(lambda: len(list_reached("restore.chosen")) == 2, notice) == 143
    assert not [
        event for event in run.events()[begun:] if event["event"] in ("restore", "window")
    ], "no step is done"

    # An uploader is a process of its own, so a change to the forked trainer does not reach it.
    hold = holding("upload.begin", tmp_path, f"Path({str(go)!r}).exists()")
    points = "import holdfast.checkpoint.failpoints as points"
    holds = f"{points}\ngood = points.failpoint\n{hold}points.failpoint = changed\n"
    run.env = before_import(tmp_path / "site", "holdfast.checkpoint.save.uploader_process", holds)
    run.module = COMMAND
    run.options = ("--window", "5")
    noticed: list[float] = []

    def never_goes_on(process: subprocess.Popen[str]) -> None:
        notice(process)
        noticed.append(time.monotonic())

    assert run.stop_when(lambda: len(list_reached("upload.begin")) == 2, never_goes_on) == 143
    assert time.monotonic() - noticed[0] < 5
    for uploader in list_reached("upload.begin"):
        os.kill(uploader, signal.SIGKILL)
    assert run.of("commit")[-1]["step"] < run.steps, "no half save is a commit"

    def goes_on(process: subprocess.Popen[str]) -> None:
        notice(process)
        go.touch()

    run.options = ()
    assert run.stop_when(lambda: len(list_reached("upload.begin")) == 4, goes_on) == 0, run.log()
    assert run.of("commit")[-1]["step"] == run.steps
    assert run.digest == reference_run.digest


def test_a_run_on_one_node_listens_to_this_machine_only(tmp_path: Path, server: ForkServer) -> None:
    run = Run(server=server, folder=tmp_path, steps=10_000)
    matches = list[str]()

    def look(process: subprocess.Popen[str]) -> None:
        for pid in (process.pid, *children(process.pid)):
            for c in psutil.Process(pid).net_connections():
                if c.status == psutil.CONN_LISTEN:
                    matches.append(c.laddr.ip)
        power_loss(process)

    run.interrupt(2, look)
    assert matches
    for address in matches:
        assert ip_address(address).is_loopback


# The rank is gone before the stop is agreed: the others hold the whole state, and their last step
# is kept.
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_killed_while_all_stop_costs_no_step(
    tmp_path: Path,
    reference_run: Run,
    server: ForkServer,
    rank: int,
) -> None:
    run = Run(server=server, folder=tmp_path, every=1000)
    run.hold_before(STEPS - 2)
    noticed: list[float] = []

    def take_down(process: subprocess.Popen[str]) -> None:
        # The agent learns of both at once: on a killed rank alone, it would end the run.
        process.send_signal(signal.SIGSTOP)
        os.kill(children(process.pid)[rank], signal.SIGKILL)
        process.send_signal(signal.SIGTERM)
        noticed.append(time.monotonic())
        process.send_signal(signal.SIGCONT)

    assert run.interrupt(7, take_down) == 143, run.log()
    assert time.monotonic() - noticed[0] < 60
    done = max(event["last_step"] for event in run.of("window"))
    (commit,) = commits(run.folder / "checkpoints")
    step = parse_step(commit.parent.name)
    assert step in (done, done + 1), run.log()
    assert "alone: another rank was lost" in run.log()
    run.release()
    assert run.complete() == 0, run.log()
    assert run.of("restore")[-1]["step"] == step
    assert run.digest == reference_run.digest
