"""What a start imports before its first step: each module there is a moment that every eviction costs again."""

import json
from pathlib import Path

import pytest

from workloads.library.tests.fork_server import ForkServer
from workloads.library.tests.training.hooks import before_import
from workloads.library.tests.training.runs import Run

NOT_NEEDED = ("torch._dynamo.", "torch._inductor", "torch.distributed.tensor", "torch.distributed.fsdp", "sympy")
RECORD = """
import json, pathlib, sys
import holdfast.training.meter as meter
step = meter.Meter.step
def recorded(self, done, loss):
    step(self, done, loss)
    pathlib.Path({path!r}).write_text(json.dumps(sorted(sys.modules)))
meter.Meter.step = recorded
"""


@pytest.mark.process
@pytest.mark.timeout(300)
def test_nothing_of_the_compiler_is_imported_before_a_step_is_done(tmp_path: Path, server: ForkServer) -> None:
    found = tmp_path / "modules"
    env = before_import(tmp_path / "site", "holdfast.training.trainer", RECORD.format(path=str(found)))
    run = Run(folder=tmp_path / "run", steps=2, every=1, ranks=1, server=server)
    assert run.complete() == 0, run.log()
    run.steps, run.server, run.env = 4, None, env  # a start from nothing, that restores
    assert run.complete() == 0, run.log()
    assert run.of("restore")[-1]["step"] == 2
    modules = json.loads(found.read_text())
    assert "torch.optim.adamw" in modules
    assert [name for name in modules if name.startswith(NOT_NEEDED)] == []
    startup = run.of("startup")[-1]["phases"]
    assert {"torch import", "restore", "first step"} <= startup.keys()
    assert "compiler import" not in startup
