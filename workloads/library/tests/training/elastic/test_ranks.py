"""`holdfast train ranks`: the processes of a node start, stop and fail together."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.support.errors import InputError
from holdfast.training.gang import forked_ranks
from holdfast.training.gang.fixed_group import read_group, read_processes
from holdfast.vocabulary.environment import ENV_GPUS
from holdfast.vocabulary.exit_codes import EXIT_KILLED, EXIT_PREEMPTED, EXIT_RETRY
from tests.cluster.sim.waiting import until
from workloads.library.tests.processes import kill_family
from workloads.library.tests.training.elastic.gangs import LOOPBACK, free_run

pytestmark = pytest.mark.process
PATIENCE_S = 180.0
GROUP_PATIENCE_S = 270.0


@pytest.mark.parametrize(
    ("struck", "code"), [("a rank", EXIT_KILLED), ("the node", EXIT_PREEMPTED)]
)
def test_failed_rank_stops_its_node_and_a_notice_reaches_every_rank(
    tmp_path: Path, struck: str, code: int
) -> None:
    """The other ranks exit as preempted; with that code alone the node would never be charged."""
    program = (
        "import os, pathlib, sys\nfrom holdfast.runtime.shutdown import of_process\nshutdown ="
        f" of_process()\n(pathlib.Path({str(tmp_path)!r}) /"
        " str(os.getpid())).touch()\nshutdown.wait()\nsys.exit(143)\n"
    )
    command = [
        "-m",
        "holdfast",
        "train",
        "ranks",
        "--processes",
        "2",
        "--",
        sys.executable,
        "-c",
        program,
    ]
    node = subprocess.Popen([sys.executable, *command])
    until("both ranks have taken their signals", lambda: len([*tmp_path.iterdir()]) == 2)
    if struck == "a rank":
        os.kill(int(next(tmp_path.iterdir()).name), signal.SIGKILL)
    else:
        node.terminate()
    assert node.wait(PATIENCE_S) == code


SUM = """
import os, sys
import torch
from torch import distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank()])
dist.all_reduce(total)
line = f"{dist.get_rank()} {dist.get_world_size()} {os.environ['LOCAL_RANK']} {total.item()}"
# In one piece: the ranks of a node share a pipe, and an unbuffered print writes word by word.
os.write(1, f"{line}\\n".encode())
dist.destroy_process_group()
"""


def test_two_nodes_form_one_group_from_torchrun_variables() -> None:
    command = [sys.executable, "-m", "holdfast", "train", "ranks", "--torchrun", "--"]
    group = {
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "2",
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": str(free_run(1)),
        **LOOPBACK,
    }
    nodes: list[subprocess.Popen[str]] = []
    lines: list[str] = []
    # Shorter than the test's own limit, which would end the test before the rest is killed.
    deadline = time.monotonic() + GROUP_PATIENCE_S
    try:
        for node in range(2):
            variables = os.environ | group | {"PET_NODE_RANK": str(node)}
            nodes.append(
                subprocess.Popen(
                    [*command, sys.executable, "-c", SUM],
                    env=variables,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
        for process in nodes:
            output, _ = process.communicate(timeout=max(0.0, deadline - time.monotonic()))
            assert process.returncode == 0
            lines += output.splitlines()
    finally:
        # Where one node failed, the other waits for it.
        running = [process for process in nodes if process.poll() is None]
        kill_family(*(process.pid for process in running))
        for process in running:
            process.wait()
    assert sorted(lines) == ["0 4 0 6", "1 4 1 6", "2 4 0 6", "3 4 1 6"]


def test_sharded_program_reads_where_its_checkpoints_are(tmp_path: Path) -> None:
    program = "import os; print(os.environ['HOLDFAST_CHECKPOINTS'], os.environ['HOLDFAST_RUN'])"
    url = str(tmp_path / "checkpoints")
    command = ["-m", "holdfast", "train", "ranks", "--sharded", "--processes", "1"]
    command += ["--checkpoints", url, "--run", "mine", "--", sys.executable, "-c", program]
    result = subprocess.run(
        [sys.executable, *command],
        env=os.environ | LOOPBACK,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert result.stdout.splitlines()[-1:] == [f"{url} mine"], result.stderr


NODE = {
    "PET_NNODES": "2",
    "PET_NODE_RANK": "1",
    "PET_NPROC_PER_NODE": "4",
    "PET_MASTER_ADDR": "head",
    "PET_MASTER_PORT": "29500",
}


def test_fixed_group_is_read_with_and_without_the_prefix() -> None:
    group = read_group(NODE)
    assert group == read_group({name.removeprefix("PET_"): value for name, value in NODE.items()})
    assert group.variables(3, 4) == {
        "RANK": "7",
        "WORLD_SIZE": "8",
        "GROUP_RANK": "1",
        "MASTER_ADDR": "head",
        "MASTER_PORT": "29500",
    }


def test_processes_are_a_number_or_one_for_each_gpu() -> None:
    assert read_processes(NODE) == 4
    automatic = NODE | {"PET_NPROC_PER_NODE": "auto"}
    assert read_processes(automatic | {ENV_GPUS: "8"}) == 8
    with pytest.raises(InputError, match="promised no GPU"):
        read_processes(automatic)
    with pytest.raises(InputError) as missing:
        read_processes({})
    assert "--processes 4" in missing.value.fix


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"PET_NNODES": "2:4"}, "NNODES is no number"),
        ({"PET_MASTER_ADDR": ""}, "MASTER_ADDR is not set"),
        ({"PET_NODE_RANK": "2"}, "NODE_RANK"),
        ({"PET_NNODES": "0"}, "NNODES"),
        ({"PET_MASTER_PORT": "99999"}, "MASTER_PORT"),
    ],
)
def test_group_that_cannot_be_is_rejected(variables: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_group(NODE | variables)


TWICE = """
import gc, sys
from queue import SimpleQueue
from holdfast.checkpoint.stores import client_of
from holdfast.training.gang.forked_ranks import ForkedRanks
before = sum(each["collections"] for each in gc.get_stats())
command = [sys.executable, sys.argv[1]]
ranks = ForkedRanks(command, [], client=client_of("gs://bucket/runs"))
ended = SimpleQueue()
for start in ("first", "second"):
    ranks.start([{"RANK": "0", "START": start, "COLLECTIONS": str(before)}], ended)
    assert ended.get() == 1
"""
SHARDED_STEP = """
import gc, os, pathlib, re, sys, time
collections = sum(each["collections"] for each in gc.get_stats()) - int(os.environ["COLLECTIONS"])
status = pathlib.Path(f"/proc/{os.getppid()}/status")
woken = lambda: int(re.search(r"\\nvoluntary_ctxt_switches:\\s+(\\d+)", status.read_text())[1])
before = woken()
time.sleep(0.5)
print(os.environ["START"], collections, "google.cloud.storage" in sys.modules, woken() - before)
import torch
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("replica", "shard"))
model = fully_shard(torch.nn.Linear(4, 4), mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters())
model(torch.ones(1, 4)).sum().backward()
optimizer.step()
compilers = ("torch._dynamo.", "torch._inductor")
print(*sorted(name for name in sys.modules if name.startswith(compilers)))
dist.destroy_process_group()
sys.exit(1)
"""


FINALIZERS = """
import sys, weakref
from queue import SimpleQueue
from holdfast.training.gang.forked_ranks import ForkedRanks
weakref.finalize(sys, print, "the launcher's is released")
ranks = ForkedRanks([sys.executable, sys.argv[1]])
ended = SimpleQueue()
ranks.start([{"RANK": "0"}], ended)
assert ended.get() == 0
print("the rank has ended")
"""


@pytest.mark.parametrize(
    ("message", "code", "has_traceback"),
    [
        ("Connection closed by peer", EXIT_RETRY, False),
        ("Timed out waiting 1800000ms for recv operation", EXIT_RETRY, True),
        ("CUDA error: out of memory", 1, True),
    ],
)
def test_script_that_lost_a_peer_does_not_look_like_the_cause(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    message: str,
    code: int,
    *,
    has_traceback: bool,
) -> None:
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", [*sys.path])
    program = tmp_path / "train.py"
    program.write_text(f"raise RuntimeError({message!r})\n")
    assert forked_ranks._run_python([str(program)]) == code  # pyright: ignore[reportPrivateUsage]
    stderr = capsys.readouterr().err
    assert message in stderr
    assert ("Traceback" in stderr) == has_traceback


def test_forked_rank_runs_its_own_finalizers_only(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        'import sys, weakref\nweakref.finalize(sys, print, "the rank\'s is released")\n'
    )
    command = [
        sys.executable,
        "-c",
        FINALIZERS,
        str(program),
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert result.stdout.splitlines() == [
        "the rank's is released",
        "the rank has ended",
        "the launcher's is released",
    ]


def test_forked_rank_preloads_its_client_and_the_compiler_after_a_failure(tmp_path: Path) -> None:
    """All nodes wait for the first start of a replacement's ranks: the compiler is half of what
    they would import. Importing the client takes longer than restoring from a neighbor's memory.
    """
    program = tmp_path / "train.py"
    program.write_text(SHARDED_STEP)
    command = [
        sys.executable,
        "-c",
        TWICE,
        str(program),
    ]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    first, without, second, compiler = done.stdout.splitlines()
    assert without == "torch._dynamo.config", done.stderr
    assert "torch._dynamo.eval_frame" in compiler.split()
    for _, collections, client, woken in (first.split(), second.split()):
        assert int(collections) < 10, "no rank waits for garbage"
        assert client == "True", "no rank imports the client after its start"
        assert int(woken) <= 3, "the parent reports that the rank runs, and sleeps until one ends"
