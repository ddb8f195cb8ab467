"""A loop of somebody else's that only holds a Checkpointer: its own lines give its receipt useful
time and lost steps.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.cost.receipt import receipt
from holdfast.ledger.events import read_folder
from holdfast.ledger.job_ledger import job_ledgers
from holdfast.ledger.job_summary import read_job_summaries
from holdfast.runtime.events import EventLog
from holdfast.vocabulary.environment import ENV_EVENTS, ENV_JOB
from holdfast.vocabulary.exit_codes import EXIT_COMPLETE, EXIT_PREEMPTED
from holdfast.vocabulary.telemetry import KIND_TRAINING
from tests.cluster.sim.waiting import until
from workloads.library.tests.fork_server import ForkServer, Started

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]
JOB = "theirs-0123abcd"
STEPS = 400
SAVED = 100
LOOP = """\
import sys, time, torch
from holdfast.checkpoint import Checkpointer, reports
reports.WINDOW_S = 0.1
weights = torch.zeros(8)
with Checkpointer(sys.argv[1], {"weights": weights}, run="theirs", every=100) as checkpointer:
    for step in range(checkpointer.step, int(sys.argv[2])):
        weights += 1
        time.sleep(float(sys.argv[4]))
        while step == int(sys.argv[3]):
            checkpointer.poll()
            time.sleep(0.005)
        checkpointer.tick(step + 1)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    server = ForkServer(["torch", "holdfast.checkpoint"])
    yield server
    server.close()


def start_loop(
    server: ForkServer,
    folder: Path,
    env: dict[str, str],
    stuck_at: int = STEPS,
    step_s: float = 0.005,
) -> Started:
    """Starts the loop, whose output goes to `out` in the folder."""
    (folder / "loop.py").write_text(LOOP)
    words = [
        sys.executable,
        str(folder / "loop.py"),
        f"file://{folder}/store",
        str(STEPS),
        str(stuck_at),
        str(step_s),
    ]
    inherited = {}
    for key, value in os.environ.items():
        if key not in (ENV_JOB, ENV_EVENTS):
            inherited[key] = value
    with (folder / "out").open("a") as out:
        return server.start(
            words,
            env=inherited | env,
            out=out,
            err=out,
            session=True,
        )


def list_events(log: Path, event: str) -> list[dict[str, float]]:
    # What follows the last newline is a line that is being written.
    texts = log.read_text().split("\n")[:-1] if log.exists() else []
    lines: list[dict[str, float]] = []
    for text in texts:
        line = json.loads(text)
        if line["event"] == event:
            lines.append(line)
    return lines


def note_eviction(log: Path) -> None:
    """Writes an eviction as the node watcher does."""
    with EventLog.open(log.with_name("watcher.jsonl"), job=JOB, kind=KIND_TRAINING) as watcher:
        watcher.emit("evict", signal="SIGTERM", target="theirs-0")


def newest_step(log: Path) -> float:
    return max((window["last_step"] for window in list_events(log, "window")), default=0)


def test_receipt_has_useful_time_and_lost_steps_from_a_plain_loop(
    server: ForkServer, tmp_path: Path
) -> None:
    log = tmp_path / "events" / "pod.jsonl"
    env = {
        ENV_JOB: JOB,
        ENV_EVENTS: str(log),
    }
    first = start_loop(server, tmp_path, env, stuck_at=SAVED + 50)
    until("it is past a save", lambda: newest_step(log) > SAVED and list_events(log, "commit"), 240)
    first.kill()
    first.wait(60)
    note_eviction(log)
    killed_s = time.time()
    # It works for so long that the signal reaches it on a busy machine too.
    second = start_loop(server, tmp_path, env, step_s=0.1)
    until("it works again", lambda: list_events(log, "window")[-1]["t"] > killed_s, 240)
    second.send_signal(signal.SIGTERM)
    assert second.wait(240) == EXIT_PREEMPTED
    note_eviction(log)
    assert start_loop(server, tmp_path, env).wait(240) == EXIT_COMPLETE
    preempted, complete = list_events(log, "exit")
    assert preempted["code"] == EXIT_PREEMPTED
    assert complete["code"] == EXIT_COMPLETE
    (summary,) = read_job_summaries(log.parent).values()
    done = 0
    for window in list_events(log, "window"):
        done += window["last_step"] - window["first_step"] + 1
    first_restore, second_restore, *_ = list_events(log, "restore")
    assert first_restore["step"] == 0
    assert second_restore["step"] == SAVED
    assert summary.job == JOB
    assert summary.step == STEPS
    assert summary.lost == done - STEPS > 0, (
        "each step is in a window, those that the kill lost in two"
    )
    assert summary.orderly_exits == 1
    assert len(summary.recoveries) == 2
    assert 0.05 < (summary.useful_ratio or 0) < 1
    job_receipt = receipt(job_ledgers(read_folder(log.parent).events), 1.0, 3.0)
    assert job_receipt.evictions == 2
    assert job_receipt.useful_hours > 0
    assert job_receipt.largest_loss_s > 0


def test_elsewhere_a_loop_writes_nothing_but_its_own(server: ForkServer, tmp_path: Path) -> None:
    assert start_loop(server, tmp_path, {}).wait(240) == EXIT_COMPLETE
    assert '"event"' not in (tmp_path / "out").read_text()
