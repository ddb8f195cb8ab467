"""The examples are run as their docstrings show."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.contract.environment import ENV_COMPLETION_INDEX, ENV_GANG_NODES, ENV_GANG_PORT, ENV_KILL_AT
from tests.workloads.library.checkpoint.test_kill import children
from tests.workloads.library.training.elastic.gangs import free_ports

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


def losses(printed: str) -> dict[str, str]:
    """By step."""
    return {step: loss for _, step, _, loss in map(str.split, re.findall(r"^step \d+ loss .*$", printed, re.MULTILINE))}


def test_fsdp2_over_tensor_parallelism_is_killed_and_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    def command(folder: str) -> list[str]:
        return torchrun(4, "fsdp2", str(tmp_path / folder), "--tensor", "2", "--steps", "8", "--every", "2")

    whole = losses(output(command("whole")))
    environment = os.environ | {"PYTHONUNBUFFERED": "1", "GLOO_SOCKET_IFNAME": "lo"}
    killed = subprocess.Popen(
        command("killed"), env=environment, text=True, stdout=subprocess.PIPE, start_new_session=True
    )
    assert killed.stdout is not None
    for line in killed.stdout:
        if line.startswith("step 6 "):
            break
    # The agent's ranks are in sessions of their own, and end with its socket.
    for child in children(killed.pid):
        os.kill(child, signal.SIGKILL)
    killed.kill()
    killed.communicate(timeout=200)
    resumed = output(command("killed"))
    assert re.search(r"restored step [246] ", resumed)
    found = losses(resumed)
    assert found and found == {step: whole[step] for step in found}


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


def test_an_elastic_loop_of_ones_own_goes_on_without_its_first_node_and_later_from_its_checkpoint(
    tmp_path: Path,
) -> None:
    def place(index: int, folder: str, steps: int, **variables: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "holdfast.training.examples.elastic_loop", str(tmp_path / folder), str(steps)]
        environment = os.environ | {ENV_COMPLETION_INDEX: str(index)} | variables
        return subprocess.Popen(
            command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )  # fmt: skip

    (port,) = free_ports(1)
    gang = {ENV_GANG_NODES: "2", ENV_GANG_PORT: str(port)}
    first, second = place(0, "gang", 60, **gang, **{ENV_KILL_AT: "gang.reduce:20"}), place(1, "gang", 60, **gang)
    printed, _ = second.communicate(timeout=200)
    first.communicate(timeout=200)
    assert (first.returncode, second.returncode) == (-signal.SIGKILL, 0), printed[-3000:]
    assert "step 19 of 2 nodes" in printed and "step 20 of 1 nodes" in printed and "step 60 of 1 nodes" in printed
    # Alone from the beginning: the last shard's loss is that of whoever has the last shard.
    whole, _ = place(0, "alone", 60).communicate(timeout=200)
    assert _losses(whole) == _losses(printed) and len(_losses(whole)) == 60
    resumed, _ = place(0, "gang", 61).communicate(timeout=200)
    assert list(_losses(resumed)) == ["61"], resumed[-3000:]


def _losses(printed: str) -> dict[str, str]:
    return dict(re.findall(r"^step (\d+) of \d nodes, loss (\S+)$", printed, re.MULTILINE))
