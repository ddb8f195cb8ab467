"""The examples are run as their docstrings show, and as their job files start them."""

import re
import signal
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from ruamel.yaml import YAML

from holdfast.checkpoint import load_tensors
from holdfast.jobs.file import file_text
from holdfast.jobs.file.job_file import JobSpec
from holdfast.jobs.render.pod_parts import RANKS
from holdfast.training import examples
from holdfast.vocabulary.environment import (
    ENV_CHECKPOINTS,
    ENV_COMPLETION_INDEX,
    ENV_GANG_NODES,
    ENV_GANG_PORT,
    ENV_KILL_AT,
    ENV_OUTPUT,
    ENV_RUN,
)
from holdfast.vocabulary.job_identity import run_name
from workloads.library.tests.fork_server import ForkServer
from workloads.library.tests.processes import kill_family
from workloads.library.tests.training.elastic.gangs import LOOPBACK, Launched, free_run, ranks

EXAMPLES = Path(examples.__path__[0])
NOT_JOBS = ("__init__", "read_holdfast")
KILLED = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem not in NOT_JOBS)
CHECKPOINTS = f"$({ENV_CHECKPOINTS})"
SHORTER = dict.fromkeys(("nanogpt", "hugging_face_trainer", "lightning_trainer"), ("20",))
SHORTER |= {
    "fsdp2": ("--steps", "6", "--every", "2"),
    "elastic_hsdp": ("12",),  # saved at 10 and at the end
    "elastic_loop": ("40",),
    "curve_loop": ("40",),
    "plain_loop": ("40",),
    "hyperparameter_search": ("--steps", "120"),
    "accelerate_loop": ("1",),
    "sharded_fsdp2": ("24", "4"),  # steps, and those between saves
}
FROM_ZERO = re.compile(r"beginning at step 0|^step 1 ", re.MULTILINE)
pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]  # several starts of torch in each


def read_job(file: Path) -> JobSpec:
    return file_text.parse(YAML(typ="safe").load(file.read_text()), str(file))


def name_run(job: JobSpec) -> str:
    """Return the run of a job, or of the first point of its sweep."""
    return run_name(job.name, 0 if job.sweep else None)


def run_job(
    server: ForkServer,
    folder: Path,
    job: JobSpec,
    *,
    code: int = 0,
    kill_at: str = "",
    loses: int | None = None,
) -> str:
    """Runs the job's processes to their end, and returns what they printed.

    `code` is the exit code of all, or of at least one if it is killed. `loses` is a node that is
    killed at the first commit; the others go on without it.
    """
    started = Launched(folder, server, {})
    started.remove_logs()
    url = str(started.checkpoints)
    values = {
        CHECKPOINTS: url,
        f"$({ENV_OUTPUT})": str(folder / "output"),
    }
    point = job.points[0] if job.sweep else {}
    for name, value in point.items():
        values[f"$({name})"] = value
    words = [values.get(word, word) for word in job.command]
    program, _, module, *options = words
    command = [
        sys.executable,
        "-m",
        module,
        *options,
        *SHORTER.get(module.rpartition(".")[2], ()),
    ]
    # One process stands for the eight of a machine.
    processes = job.processes or (1 if job.sharded else job.gpu_count)
    common = {
        ENV_RUN: name_run(job),
        ENV_CHECKPOINTS: url,
        ENV_KILL_AT: kill_at,
        "OMP_NUM_THREADS": "1",
    }
    common |= point
    common |= LOOPBACK | {ENV_GANG_PORT: str(free_run(2 * max(processes, job.pods)))}
    environments: list[dict[str, str]] = [{}]
    if job.sharded:
        command = [
            sys.executable,
            *RANKS[1:],
            "1",
            "--sharded",
            "--wait",
            "150",
            *(["--min-nodes", str(job.min_nodes)] if job.elastic else []),
            "--",
            *command,
        ]
        environments = []
        for n in range(job.pods):
            environments.append(
                {
                    ENV_GANG_NODES: str(job.pods),
                    ENV_COMPLETION_INDEX: str(n),
                }
            )
    elif program == "torchrun" or (job.elastic and processes > 1):
        environments = ranks(processes)
    for place, variables in enumerate(environments):
        started.launch(place, command, **(common | variables))
    if loses is not None:
        started.until(started.committed)
        kill_family(started.processes[loses].pid)
        started.processes.pop(loses).wait()
    codes = {*started.all_ended()}
    # A rank may find its peer killed before it is killed itself.
    is_expected = code in codes and 0 not in codes if code else codes == {0}
    assert is_expected, (codes, started.logs())
    return "".join(started.read_log(place) for place in range(len(environments)))


@pytest.mark.parametrize("example", KILLED)
def test_killed_example_keeps_its_bits(
    framework_server: ForkServer, tmp_path: Path, example: str
) -> None:
    job = read_job(EXAMPLES / f"{example}.yaml")
    play = partial(run_job, framework_server)
    assert FROM_ZERO.search(play(tmp_path / "whole", job))
    if job.sharded:
        log = play(tmp_path / "killed", job, loses=1).partition(
            "this node keeps its memory and goes on with those that remain"
        )[2]
    else:
        # Every process at its second save; what it trained since the first is lost.
        play(
            tmp_path / "killed",
            job,
            code=-signal.SIGKILL,
            kill_at="stage.begin:2",
        )
        log = play(tmp_path / "killed", job)
    assert log
    assert not FROM_ZERO.search(log)
    step, whole = load_tensors(tmp_path / "whole" / "checkpoints", name_run(job))
    end, tensors = load_tensors(tmp_path / "killed" / "checkpoints", name_run(job))
    assert end == step
    assert sorted(tensors) == sorted(whole)
    # Python's and NumPy's streams begin again with each start, and no example draws from them.
    ignored = ("__rng__/python/", "__rng__/numpy/")
    for key, tensor in whole.items():
        assert key.startswith(ignored) or torch.equal(tensor, tensors[key]), key


# Each imports torch before it reads its arguments.
PROGRAMS = [*(f"{examples.__name__}.{example}" for example in KILLED), "holdfast.drill.naive"]


@pytest.mark.parametrize("module", PROGRAMS)
def test_help_is_shown_and_nothing_is_done(
    framework_server: ForkServer, tmp_path: Path, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    started = Launched(tmp_path / "gang", framework_server, {})
    started.launch(0, [sys.executable, "-m", module, "--help"])
    assert started.all_ended() == [0], started.logs()
    assert started.read_log(0).strip().lower().startswith("usage:"), started.logs()
    assert list(folder.iterdir()) == []


def test_plain_loop_survives_torchruns_sigterm(tmp_path: Path) -> None:
    agent = Launched(tmp_path, None, {})
    words = ["torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
    words += ["-m", "holdfast.training.examples.plain_loop", str(agent.checkpoints)]
    agent.launch(0, [sys.executable, "-m", *words], PYTHONUNBUFFERED="1", **{ENV_RUN: "plain-loop"})
    agent.until(lambda: "full save" in agent.read_log(0))  # logged after the first steps
    agent.processes[0].send_signal(signal.SIGTERM)
    assert agent.ended(0) in (0, 1), "torchrun's code for SIGTERM, or the run was over"
    assert load_tensors(agent.checkpoints, "plain-loop")[0] > 0
