"""The examples are run as their docstrings show."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]  # several starts of torch in each


def torchrun(ranks: int, example: str, *options: str) -> list[str]:
    agent = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return [*agent, "-m", f"holdfast.training.examples.{example}", *options]


def output(command: list[str]) -> str:
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else os.environ
    done = subprocess.run(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout


def test_sharded_training_goes_on_in_other_layouts(tmp_path: Path) -> None:
    assert "beginning at step 0" in output(torchrun(2, "fsdp2", str(tmp_path), "--steps", "12"))
    assert "restored step 12" in output(torchrun(1, "fsdp2", str(tmp_path), "--steps", "16"))
    hybrid = output(torchrun(2, "fsdp2", str(tmp_path), "--steps", "18", "--replicas", "2"))
    assert "restored step 16" in hybrid
    losses = [float(line.split()[-1]) for line in hybrid.splitlines() if line.startswith("step ")]
    assert len(losses) == 2 and all(loss < 4.5 for loss in losses), "5.5 would be a model that knows nothing"


def test_a_loop_of_ones_own_survives_torchruns_sigterm(tmp_path: Path) -> None:
    command = torchrun(2, "plain_loop", str(tmp_path))
    first = subprocess.Popen(
        command, env=os.environ | {"PYTHONUNBUFFERED": "1"}, text=True, stdout=subprocess.PIPE, start_new_session=True
    )
    assert first.stdout is not None
    for line in first.stdout:
        if "full save" in line:  # logged after the first steps
            break
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=200)
    assert first.returncode in (0, 1), "torchrun's code for SIGTERM, or the run was over"
    assert "restored step" in output(command)
