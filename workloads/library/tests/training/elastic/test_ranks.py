"""`holdfast train ranks`: the processes of a node start, stop and fail together."""

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.contract.exit_codes import EXIT_KILLED, EXIT_PREEMPTED
from tests.cluster.sim.waiting import until

pytestmark = pytest.mark.process


def test_a_rank_that_fails_takes_its_node_along_and_the_failure_is_counted() -> None:
    """The others leave in order: as preempted, which alone would be free of charge, for ever."""
    program = (
        "import os, signal, sys\nfrom holdfast.runtime.shutdown import of_process\n"
        "if os.environ['LOCAL_RANK'] == '1': os.kill(os.getpid(), signal.SIGKILL)\n"
        "of_process().wait()\nsys.exit(143)\n"
    )
    command = ["-m", "holdfast", "train", "ranks", "--processes", "2", "--", sys.executable, "-c", program]
    assert subprocess.run([sys.executable, *command], timeout=60).returncode == EXIT_KILLED


def test_a_notice_reaches_every_rank_and_none_is_counted(tmp_path: Path) -> None:
    program = (
        "import os, pathlib, sys\nfrom holdfast.runtime.shutdown import of_process\nshutdown = of_process()\n"
        f"(pathlib.Path({str(tmp_path)!r}) / os.environ['LOCAL_RANK']).touch()\nshutdown.wait()\nsys.exit(143)\n"
    )
    command = ["-m", "holdfast", "train", "ranks", "--processes", "2", "--", sys.executable, "-c", program]
    node = subprocess.Popen([sys.executable, *command])
    until("both ranks have taken their signals", lambda: len([*tmp_path.iterdir()]) == 2)
    node.terminate()
    assert node.wait(60) == EXIT_PREEMPTED


FORKED = """
import sys
from queue import SimpleQueue
from holdfast.checkpoint.stores import client_of
from holdfast.training.elastic.forked_ranks import ForkedRanks
ended = SimpleQueue()
ranks = ForkedRanks([sys.executable, sys.argv[1]], [], client=client_of(sys.argv[2]))
ranks.start([{"RANK": "0"}], ended)
sys.exit(ended.get())
"""


def test_a_forked_rank_begins_with_the_client_of_its_bucket_and_what_forked_it_sleeps(tmp_path: Path) -> None:
    """To import the client takes a rank longer than to restore from a neighbour's memory."""
    program = tmp_path / "train.py"
    program.write_text(
        "import os, pathlib, re, sys, time\n"
        "status = pathlib.Path(f'/proc/{os.getppid()}/status')\n"
        "woken = lambda: int(re.search(r'\\nvoluntary_ctxt_switches:\\s+(\\d+)', status.read_text())[1])\n"
        "before = woken()\ntime.sleep(0.5)\n"
        "sys.exit(100 * ('google.cloud.storage' in sys.modules) + min(99, woken() - before))\n"
    )
    command = [sys.executable, "-c", FORKED, str(program), "gs://bucket/runs"]
    imported, woken = divmod(subprocess.run(command, timeout=120).returncode, 100)
    assert (imported, woken <= 3) == (1, True), "it reports that the rank runs, and waits until one ends"


TWICE = """
import gc, sys
from queue import SimpleQueue
from holdfast.training.elastic.forked_ranks import ForkedRanks
before = sum(each["collections"] for each in gc.get_stats())
ranks, ended = ForkedRanks([sys.executable, sys.argv[1]], []), SimpleQueue()
for start in ("first", "second"):
    ranks.start([{"RANK": "0", "START": start, "COLLECTIONS": str(before)}], ended)
    assert ended.get() == 1
"""
SHARDED_STEP = """
import gc, os, sys
print(os.environ["START"], sum(each["collections"] for each in gc.get_stats()) - int(os.environ["COLLECTIONS"]))
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
print(*sorted(name for name in sys.modules if name.startswith(("torch._dynamo.", "torch._inductor"))))
dist.destroy_process_group()
sys.exit(1)
"""


def test_only_a_rank_that_starts_again_finds_a_compiler_and_none_waits_for_garbage(tmp_path: Path) -> None:
    """All nodes wait for the first start of a replacement's ranks: the compiler is half of what they would import."""
    program = tmp_path / "train.py"
    program.write_text(SHARDED_STEP)
    command = [sys.executable, "-c", TWICE, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    first, without, second, compiler = done.stdout.splitlines()
    assert without == "torch._dynamo.config", done.stderr
    assert "torch._dynamo.eval_frame" in compiler.split()
    assert [int(line.split()[1]) < 10 for line in (first, second)] == [True, True], (first, second)
