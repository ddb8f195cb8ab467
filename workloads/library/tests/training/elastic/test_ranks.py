"""`holdfast train ranks`: the processes of a node start, stop and fail together."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.vocabulary.exit_codes import EXIT_KILLED, EXIT_PREEMPTED
from tests.cluster.sim.waiting import until

pytestmark = pytest.mark.process
PATIENCE_S = 180.0


@pytest.mark.parametrize(
    ("struck", "code"), [("a rank", EXIT_KILLED), ("the node", EXIT_PREEMPTED)]
)
def test_failed_rank_stops_its_node_and_a_notice_reaches_every_rank(
    tmp_path: Path, struck: str, code: int
) -> None:
    """The other ranks leave as preempted, which alone would be free of charge, for ever."""
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
    they would import. To import the client takes longer than to restore from a neighbour's memory.
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
        assert client == "True", "no rank waits for garbage"
        assert int(woken) <= 3, "what forks reports that the rank runs, and sleeps until one ends"
