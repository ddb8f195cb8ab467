"""Restarts: from the birth of a pod's first process to its first step after a restore.

Ours in the parts that its `startup` event names; the naive twin's and torchrun's as
one sum. The variants take turns, so that a busy moment of the machine meets all of them.
"""

import statistics
import time
from pathlib import Path
from typing import Any

from workloads.library.tests.bench.training_goodput import TORCHRUN, DcpRun
from workloads.library.tests.training.runs import NAIVE, Run

ROUNDS = 5
FIRST = 10  # steps of the start that writes what the others restore


def restarts(folder: Path) -> dict[str, Any]:
    ours = Run(folder=folder / "holdfast", steps=FIRST, every=5)
    variants = {
        "holdfast": ours,
        "naive": Run(folder=folder / "naive", module=NAIVE, steps=FIRST, every=5),
        TORCHRUN: DcpRun(folder=folder / "dcp", steps=FIRST, every=5),
    }
    for run in variants.values():
        _first_step_s(run)
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(ROUNDS):
        for name, run in variants.items():
            run.steps += 2
            seconds[name].append(_first_step_s(run))
    startups = [event["phases"] for event in ours.of("startup")[1:]]
    return {
        "first_step_s": {name: round(statistics.median(found), 2) for name, found in seconds.items()},
        "parts": {name: round(statistics.median(phases[name] for phases in startups), 2) for name in startups[0]},
    }


def _first_step_s(run: Run) -> float:
    begun, launched = len(run.events()), time.time()
    if run.complete() != 0:
        raise RuntimeError(f"a start failed:\n{run.log()}")
    return next(event["t"] for event in run.events()[begun:] if event["event"] == "window") - launched
