"""Exit of a rank that loses its peer: an expected loss, not a bug."""

import os
import subprocess
import sys

import pytest

from holdfast.vocabulary.environment import ENV_JOB, ENV_TRACEBACK
from holdfast.vocabulary.exit_codes import EXIT_BUG, EXIT_RETRY
from workloads.library.tests.training.elastic.gangs import ranks

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

RANK = """
import os
import torch, torch.distributed as dist
from holdfast.support.errors import run_cli
def main():
    dist.init_process_group("gloo")
    dist.barrier()
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 1:
        store.wait(["passed"])  # gloo may fail the barrier of a peer that has not left it yet
        os._exit(9)
    store.set("passed", "1")
    {body}
run_cli(main)
"""
SUM = "dist.all_reduce(torch.ones(1))"


def run_pair(body: str, *, also: str = "") -> subprocess.CompletedProcess[str]:
    """Runs two ranks, of which rank 1 ends; returns how rank 0 ended."""
    usual = {}
    for name, value in os.environ.items():
        if name not in (ENV_JOB, ENV_TRACEBACK):
            usual[name] = value
    command = [sys.executable, "-c", RANK.format(body=body)]
    first, other = (usual | variables | ({also: "1"} if also else {}) for variables in ranks(2))
    with subprocess.Popen(command, env=other) as peer:
        done = subprocess.run(
            command,
            env=first,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert peer.wait() == 9
    return done


@pytest.mark.parametrize("also", ["", ENV_JOB])
def test_rank_that_loses_its_peer_says_so_and_can_be_started_again(also: str) -> None:
    done = run_pair(SUM, also=also)
    assert "lost:    another process of this job has ended" in done.stderr
    assert "bug" not in done.stderr, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == EXIT_RETRY, done.stderr


def test_bug_beside_a_lost_peer_is_a_bug() -> None:
    done = run_pair("torch.ones(2, 3) @ torch.ones(2, 3)")
    assert "a bug in holdfast" in done.stderr
    assert done.returncode == EXIT_BUG
