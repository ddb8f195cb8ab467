"""Goodput under an eviction every minute: the trainer, the naive twin, and torchrun with dcp.async_save.

Called by tests.bench.training. Every variant gets the same notices at the same moments and is started again at once,
as if nobody had to wait for a machine. What counts is what the last eviction left in the storage.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.workloads.library.training.runs import NAIVE, Run

WINDOW_S = 15.0
EVICT_EVERY_S = 60.0
UNDISTURBED_S = 30.0
ENDLESS = 10_000_000
EVERY = 50
TORCHRUN = "torchrun + dcp.async_save"


class DcpRun(Run):
    def command(self) -> list[str]:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        script = ["-m", "tests.bench.dcp_twin", str(self.folder / "checkpoints"), str(self.events_path)]
        return [*torchrun, *script, str(self.steps), str(self.every)]


@dataclass(kw_only=True)
class Variant:
    name: str
    run: Run
    stored: Callable[[Run], int]
    """The step that one more start would go on from."""
    exits: list[int] = field(default_factory=list)


def goodput(folder: Path, evictions: int) -> dict[str, Any]:
    """Share of the time that went into steps which still counted at its end, each at the undisturbed pace."""
    options: dict[str, Any] = {"steps": ENDLESS, "every": EVERY}
    variants = [
        Variant(name="holdfast", run=Run(folder=folder / "holdfast", **options), stored=_committed),
        Variant(name="naive", run=Run(folder=folder / "naive", module=NAIVE, **options), stored=_in_file),
        Variant(name=TORCHRUN, run=DcpRun(folder=folder / "dcp", **options), stored=_in_dcp),
    ]
    pace = _steps_per_s(Run(folder=folder / "undisturbed", **options))
    for variant in variants:
        _play(variant, evictions)
    wall_s = evictions * EVICT_EVERY_S
    kept = {variant.name: variant.stored(variant.run) for variant in variants}
    return {
        "evictions": evictions,
        "wall_s": wall_s,
        "undisturbed_steps_per_s": round(pace, 1),
        "steps_kept": kept,
        "share": {name: round(steps / pace / wall_s, 3) for name, steps in kept.items()},
        "exits": {variant.name: variant.exits for variant in variants},
    }


def _steps_per_s(run: Run) -> float:
    """Of a run under way, its saves included and its start left out."""
    with run.started() as process, contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(UNDISTURBED_S)
    windows = run.of("window")
    first, last = windows[len(windows) // 10], windows[-1]
    return (last["last_step"] - first["last_step"]) / (last["t"] - first["t"])


def _play(variant: Variant, evictions: int) -> None:
    began = time.monotonic()
    for end in (began + n * EVICT_EVERY_S for n in range(1, evictions + 1)):
        with variant.run.started() as process:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end - time.monotonic()))
            _preempt(process)
            variant.exits.append(process.returncode)


def _preempt(process: subprocess.Popen[str]) -> None:
    """The kubelet's way: SIGTERM to the first process, the window, SIGKILL to all."""
    process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(WINDOW_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _committed(run: Run) -> int:
    return max((event["step"] for event in run.of("commit")), default=0)


def _in_file(run: Run) -> int:
    """What the naive twin's own resume would find; a torn file is worth nothing."""
    import torch

    with contextlib.suppress(Exception):
        return int(torch.load(run.folder / "checkpoints/job/checkpoint.pt", weights_only=True)["step"])
    return 0


def _in_dcp(run: Run) -> int:
    from tests.bench.dcp_twin import newest

    return newest(run.folder / "checkpoints")
