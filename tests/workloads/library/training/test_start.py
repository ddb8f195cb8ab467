"""What a start imports before its first step: each module there is a moment that every eviction costs again."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workloads.library.training.hooks import before_import
from tests.workloads.library.training.runs import Run

NOT_NEEDED = ("torch._dynamo.", "torch._inductor", "torch.distributed.tensor", "torch.distributed.fsdp", "sympy")
META_KERNELS = ("torch._decomp", "torch._refs")  # what torch._meta_registrations imports
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
def test_nothing_of_the_compiler_is_imported_before_a_step_is_done(tmp_path: Path) -> None:
    found = tmp_path / "modules"
    env = before_import(tmp_path / "site", "holdfast.training.trainer", RECORD.format(path=str(found)))
    for steps in (2, 4):  # a first start, and one that restores
        run = Run(folder=tmp_path / "run", steps=steps, every=1, ranks=1, env=env)
        assert run.complete() == 0, run.log()
    assert run.of("restore")[-1]["step"] == 2
    modules = json.loads(found.read_text())
    assert "torch.optim.adamw" in modules
    assert [name for name in modules if name.startswith((*NOT_NEEDED, *META_KERNELS))] == []
    startup = run.of("startup")[-1]["phases"]
    assert {"torch import", "restore", "first step"} <= startup.keys()
    assert "compiler import" not in startup


COMPILES = """
import sys
from holdfast.training.deferred_compiler import defer_compiler, defer_meta_kernels
defer_meta_kernels()
import torch
defer_compiler()
weight = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.AdamW([weight])
weight.sum().backward()
optimizer.step()
drawn = [torch.rand(2, generator=torch.Generator().manual_seed(3))]
assert "torch._refs" not in sys.modules, "an eager step needs none of it"
kernels = sys.modules["torch._meta_registrations"]
compiled = torch.compile(lambda x: torch.nn.functional.gelu(x).cumsum(0), backend="aot_eager")
assert torch.equal(compiled(torch.ones(3)), torch.nn.functional.gelu(torch.ones(3)).cumsum(0))
assert kernels.meta_mm and kernels is sys.modules["torch._meta_registrations"] is torch._meta_registrations
drawn += [torch.rand(2, generator=torch.Generator().manual_seed(3))]
assert torch.equal(*drawn)
assert torch.empty(2, 3, device="meta").cumsum(0).shape == (2, 3)
assert "torch._dynamo.convert_frame" in sys.modules
"""


@pytest.mark.process
def test_who_compiles_after_all_gets_the_compiler_and_the_shapes_of_operations() -> None:
    done = subprocess.run([sys.executable, "-c", COMPILES], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
