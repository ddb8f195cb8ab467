"""A rank that is gone before the stop is agreed: the others hold the whole state, and their last step is kept."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from holdfast.contract.object_names import parse_step
from tests.support import commits
from workloads.library.tests.processes import children
from workloads.library.tests.training.runs import Run

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_killed_while_all_stop_costs_no_step(tmp_path: Path, undisturbed: Run, rank: int) -> None:
    run = Run(folder=tmp_path, every=1000)

    def taken(process: subprocess.Popen[str]) -> None:
        os.kill(children(process.pid)[rank], signal.SIGKILL)
        process.send_signal(signal.SIGTERM)

    began = time.monotonic()
    assert run.interrupted(7, taken) == 143, run.log()
    assert time.monotonic() - began < 60
    done = max(event["last_step"] for event in run.of("window"))
    (found,) = commits(run.folder / "checkpoints")
    step = parse_step(found.parent.name)
    assert step in (done, done + 1), run.log()
    assert "alone: another rank is gone" in run.log()
    assert run.complete() == 0, run.log()
    assert run.of("restore")[-1]["step"] == step
    assert run.digest == undisturbed.digest
