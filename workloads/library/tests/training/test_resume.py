"""The promise: whatever takes a run down, the next start continues it to the same last bit."""

import json
import os
import signal
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from holdfast.runtime.deadline import DEFAULT_LEAD_S
from holdfast.vocabulary.environment import ENV_DEADLINE
from workloads.library.tests.fork_server import ForkServer
from workloads.library.tests.processes import children
from workloads.library.tests.training.hooks import before_import, replace_function
from workloads.library.tests.training.runs import COMMAND, STEPS, Run, notice, power_loss

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]  # several starts of torch in each
LOSS = "holdfast.training.trainer.model:next_byte_loss"


def again_and_again(process: subprocess.Popen[str]) -> None:
    """Sends SIGTERM until the process ends: a preStop hook, then the kubelet.

    A second SIGTERM costs no last save.
    """
    while process.poll() is None:
        notice(process)
        time.sleep(0.05)


def test_notices_and_power_losses_change_nothing(
    tmp_path: Path, reference_run: Run, server: ForkServer
) -> None:
    # On a busy machine the last save of seven megabytes may take more than fifteen seconds.
    run = Run(
        server=server,
        folder=tmp_path,
        options=("--window", "90"),
    )
    run.hold_before(STEPS - 2)
    assert run.interrupt(12, again_and_again) == 143
    (stop,) = run.of("stop")
    assert stop["step"] >= 12, "all ranks stop at one step, which is saved"
    assert run.of("exit")[-1]["step"] == run.of("commit")[-1]["step"] == stop["step"], run.log()
    assert run.interrupt(16, power_loss) == 137

    def kill_a_rank(process: subprocess.Popen[str]) -> None:
        os.kill(children(process.pid)[-1], signal.SIGKILL)
        run.release()

    begun = len(run.events())
    is_due = lambda: run.has_done(27, begun) and run.has_committed(20)  # noqa: E731
    assert run.stop_when(is_due, kill_a_rank) == 137
    run.module = COMMAND
    run.server = None  # the last process is started from nothing
    assert run.complete() == 0, run.log()
    assert run.digest == reference_run.digest
    assert run.losses() == reference_run.losses()
    restored = [e["step"] for e in run.of("restore")]
    assert len(restored) == 4
    assert restored[:2] == [0, stop["step"]]
    assert restored[2] >= 10, "at most one interval is lost"
    assert restored[3] >= 20, "at most one interval is lost"
    run.server = server
    assert run.complete() == 0, "a finished run stays finished"
    assert run.of("restore")[-1]["step"] == run.steps
    assert run.digest == reference_run.digest


def test_four_ranks_sum_their_gradients_in_one_order_after_a_restart_too(
    tmp_path: Path, server: ForkServer
) -> None:
    """The sum of two is the same in any order, that of more is not."""
    whole, run = (
        Run(
            server=server,
            folder=tmp_path / name,
            ranks=4,
            steps=20,
            every=5,
        )
        for name in ("whole", "cut")
    )
    assert whole.complete() == 0, whole.log()
    run.hold_before(18)
    assert run.interrupt(12, power_loss) == 137
    run.release()
    assert run.complete() == 0, run.log()
    assert run.losses() == whole.losses()
    assert run.digest == whole.digest


def test_another_world_size_continues_with_the_same_samples_and_says_so(
    tmp_path: Path, server: ForkServer
) -> None:
    run = Run(server=server, folder=tmp_path, steps=20)
    run.hold_before(18)
    is_due = lambda: run.has_done(12) and run.has_committed(10)  # noqa: E731
    assert run.stop_when(is_due, power_loss) == 137
    run.release()
    run.ranks = 1
    assert run.complete() == 0, run.log()
    assert run.of("restore")[-1]["step"] == 10
    assert "resumed on 1 ranks from 2" in run.log()
    run.options = ("--set", "seed=7")
    assert run.complete() == 2, "a changed seed is bad input and not retried"
    assert "written with another value of seed" in run.log()


def test_run_stops_before_a_planned_end(tmp_path: Path, server: ForkServer) -> None:
    soon = datetime.fromtimestamp(time.time() + DEFAULT_LEAD_S + 1, tz=UTC).isoformat()
    run = Run(
        server=server,
        folder=tmp_path,
        steps=100_000,
        env={ENV_DEADLINE: soon},
    )
    assert run.complete() == 143, run.log()
    # The rank whose clock is first tells the other, whose reason then names that rank.
    assert run.of("stop")[0]["reason"].startswith("planned end of the node")


def test_a_first_compile_that_does_not_end_is_left_inside_the_window(
    tmp_path: Path, server: ForkServer
) -> None:
    never = "import time\nchanged = lambda *_: (print('compiling', flush=True), time.sleep(600))"
    module = replace_function(tmp_path / "run.py", LOSS, never)
    run = Run(
        server=server,
        folder=tmp_path,
        module=module,
        options=("--window", "6"),
    )
    noticed = list[float]()

    def notify_one_rank(process: subprocess.Popen[str]) -> None:
        noticed.append(time.monotonic())
        os.kill(children(process.pid)[-1], signal.SIGTERM)

    assert run.stop_when(lambda: run.log().count("compiling") >= run.ranks, notify_one_rank) == 143
    assert time.monotonic() - noticed[0] < 6


def test_a_bug_in_one_rank_is_told_apart_from_an_eviction(
    tmp_path: Path, server: ForkServer
) -> None:
    broken = (
        "lambda *a: good(*a) * (1 / (calls.append(1) or len(calls) != 5 or os.environ['RANK'] !="
        " '1'))"
    )
    module = replace_function(tmp_path / "run.py", LOSS, f"calls = []\nchanged = {broken}")
    run = Run(
        server=server,
        folder=tmp_path,
        module=module,
        steps=10,
    )
    assert run.complete() == 70
    assert "ZeroDivisionError" in run.log()
    assert run.of("exit")[-1]["code"] == 70


# Modules that a start must not import before its first step: each would cost time again at every
# eviction.

NOT_NEEDED = (
    "torch._dynamo.",
    "torch._inductor",
    "torch.distributed.tensor",
    "torch.distributed.fsdp",
    "sympy",
)
RECORD = """
import json, pathlib, sys
import holdfast.training.trainer.metrics as meter
step = meter.Meter.step
def recorded(self, done, loss):
    step(self, done, loss)
    pathlib.Path({path!r}).write_text(json.dumps(sorted(sys.modules)))
meter.Meter.step = recorded
"""


def test_compiler_is_not_imported_before_a_step_is_done(tmp_path: Path, server: ForkServer) -> None:
    modules = tmp_path / "modules"
    env = before_import(
        tmp_path / "site", "holdfast.training.trainer.loop", RECORD.format(path=str(modules))
    )
    run = Run(
        folder=tmp_path / "run",
        steps=2,
        every=1,
        ranks=1,
        server=server,
    )
    assert run.complete() == 0, run.log()
    run.steps = 4  # a start from nothing, that restores
    run.server = None
    run.env = env
    assert run.complete() == 0, run.log()
    assert run.of("restore")[-1]["step"] == 2
    modules = json.loads(modules.read_text())
    assert "torch.optim.adamw" in modules
    assert [name for name in modules if name.startswith(NOT_NEEDED)] == []
    startup = run.of("startup")[-1]["phases"]
    assert {"torch import", "restore", "first step"} <= startup.keys()
    assert "compiler import" not in startup
