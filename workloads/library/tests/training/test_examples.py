"""The examples are run as their docstrings show, and as their job files start them."""

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from ruamel.yaml import YAML

from holdfast.checkpoint import load_tensors
from holdfast.contract.environment import (
    ENV_CHECKPOINTS,
    ENV_COMPLETION_INDEX,
    ENV_GANG_NODES,
    ENV_GANG_PORT,
    ENV_KILL_AT,
    ENV_RUN,
)
from holdfast.jobs import file_text
from holdfast.jobs.job_file import OwnJob
from holdfast.jobs.pod_parts import RANKS
from holdfast.training import examples
from tests.cluster.sim.waiting import until
from tests.support import commits
from workloads.library.tests.fork_server import ForkServer, Started
from workloads.library.tests.processes import kill_family
from workloads.library.tests.training.elastic.gangs import LOOPBACK, free_run, ranks

EXAMPLES = Path(examples.__path__[0])
KILLED = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem != "__init__")
CHECKPOINTS = f"$({ENV_CHECKPOINTS})"
SHORTER = dict.fromkeys(("nanogpt", "hugging_face_trainer", "lightning_trainer"), ("20",))
SHORTER |= {
    "fsdp2": ("--steps", "6", "--every", "2"),
    "elastic_hsdp": ("12",),  # saved at 10 and at the end
    "elastic_loop": ("40",),
    "plain_loop": ("40",),
    "accelerate_loop": ("1",),
    "sharded_fsdp2": ("60",),
}
BEGAN_ANEW = re.compile(r"beginning at step 0|^step 1 ", re.MULTILINE)
pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]  # several starts of torch in each


def job_of(file: Path) -> OwnJob:
    return file_text.parse(YAML(typ="safe").load(file.read_text()), str(file))


@dataclass(kw_only=True)
class Forked:
    """Processes of an example, each with its output in a file."""

    server: ForkServer
    folder: Path

    def start(self, command: list[str], variables: dict[str, str]) -> tuple[Started, Path]:
        log = self.folder / f"log-{len(list(self.folder.glob('log-*')))}"
        with log.open("w") as out:
            started = self.server.start(command, env=os.environ | variables, out=out, err=out, session=True)
        return started, log

    def job(self, job: OwnJob, url: Path, *, code: int = 0, kill_at: str = "", loses: int = -1) -> str:
        """Its pods' processes to their end, which is `code`; what they printed. `loses`: a node that is killed at the first
        commit, and started again."""
        program, _, module, *options = (str(url) if each == CHECKPOINTS else each for each in job.command)
        command = [sys.executable, "-m", module, *options, *SHORTER.get(module.rpartition(".")[2], ())]
        processes = job.processes or job.gpu_count
        common = {ENV_RUN: job.name, ENV_CHECKPOINTS: str(url), ENV_KILL_AT: kill_at, "OMP_NUM_THREADS": "1"}
        common |= LOOPBACK | {ENV_GANG_PORT: str(free_run(2 * max(processes, job.pods)))}
        own: list[dict[str, str]] = [{}]
        if job.sharded:
            command = [sys.executable, *RANKS[1:], "1", "--sharded", "--wait", "150", "--", *command]
            own = [{ENV_GANG_NODES: str(job.pods), ENV_COMPLETION_INDEX: str(n)} for n in range(job.pods)]
        elif program == "torchrun" or (job.elastic and processes > 1):
            own = ranks(processes)
        places = [self.start(command, common | variables) for variables in own]
        if loses >= 0:
            until("a step is committed", lambda: commits(url), 200)
            kill_family(places[loses][0].pid)
            places[loses] = self.start(command, common | own[loses])
        codes = [place.wait(200) for place, _ in places]
        printed = "".join(log.read_text() for _, log in places)
        assert codes == [code] * len(places), printed[-3000:]
        return printed


@pytest.fixture
def forked(framework_server: ForkServer, tmp_path: Path) -> Forked:
    return Forked(server=framework_server, folder=tmp_path)


@pytest.mark.parametrize("example", KILLED)
def test_an_example_is_killed_as_its_job_file_starts_it_and_ends_with_the_bits_of_one_run(
    forked: Forked, tmp_path: Path, example: str
) -> None:
    job = job_of(EXAMPLES / f"{example}.yaml")
    assert BEGAN_ANEW.search(forked.job(job, tmp_path / "whole"))
    if job.sharded:
        again = forked.job(job, tmp_path / "killed", loses=1).partition("this one keeps its memory and waits")[2]
    else:
        # Every process at its second save; what it trained since the first is lost.
        forked.job(job, tmp_path / "killed", code=-signal.SIGKILL, kill_at="stage.begin:2")
        again = forked.job(job, tmp_path / "killed")
    assert again and not BEGAN_ANEW.search(again)
    (step, whole), (end, found) = (load_tensors(tmp_path / name, job.name) for name in ("whole", "killed"))
    assert (end, sorted(found)) == (step, sorted(whole))
    differing = [key for key, tensor in whole.items() if not torch.equal(tensor, found[key])]
    # Python's and NumPy's streams are begun anew by each start, and drawn from by none of them.
    assert not [key for key in differing if not key.startswith(("__rng__/python/", "__rng__/numpy/"))]


def test_a_loop_of_ones_own_survives_torchruns_sigterm(tmp_path: Path) -> None:
    agent = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
    env = os.environ | {"PYTHONUNBUFFERED": "1", ENV_RUN: "plain-loop"}
    first = subprocess.Popen(
        [*agent, "-m", "holdfast.training.examples.plain_loop", str(tmp_path)],
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert first.stdout is not None
    for line in first.stdout:
        if "full save" in line:  # logged after the first steps
            break
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=200)
    assert first.returncode in (0, 1), "torchrun's code for SIGTERM, or the run was over"
    assert load_tensors(tmp_path, "plain-loop")[0] > 0
