"""Goodput under evictions: the trainer, the naive twin, and torchrun with dcp.async_save, in
alternating slices.

Every slice is one start, some time of training and one eviction, at the same moment for every
variant; the variants take turns in an order that changes with the seed, so that a busy stretch of
the machine meets all of them. They train the same model on the same batches, so a step is worth the
same for each: its median over the slices that belong together. Productive is what the slice added
to what a restart finds in the storage; the rest is named by its cause.

In `longest` a step also waits, as one on a GPU would, and needs little CPU. So the variants run in
parallel, with their evictions a third of a slice apart. `restarts` has the same variants, in turns,
without an eviction.
"""

import contextlib
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.training.trainer.config import TrainConfig
from workloads.library.tests.training.hooks import before_import
from workloads.library.tests.training.runs import NAIVE, Run, notice

WINDOW_S = 15.0
SLICE_S = 105.0
LONGEST_EVICTIONS = 12
LONGEST_SLICE_S = 300.0
WAIT_S = 0.5
"""Of each step of `longest`."""
WAITING = f"""
import time
import holdfast.training.trainer.model as model

forward = model.ByteGPT.forward

def waiting(self, inputs):
    time.sleep({WAIT_S})
    return forward(self, inputs)

model.ByteGPT.forward = waiting
"""
T_975 = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201)
"""Of Student's t, by degrees of freedom from 1."""
JITTER_S = 10.0
ENDLESS = 10_000_000
EVERY = 50
RESTARTS = 5
OURS = "holdfast"
THEIRS = "naive"
TORCHRUN = "torchrun + dcp.async_save"


class Variant(Run):
    """Ours."""

    def stored(self) -> int:
        """The step that one more start would go on from."""
        return max((event["step"] for event in self.of("commit")), default=0)


class NaiveRun(Variant):
    def stored(self) -> int:
        """A torn file is worth nothing."""
        import torch

        with contextlib.suppress(Exception):
            return int(
                torch.load(self.folder / "checkpoints/job/checkpoint.pt", weights_only=True)["step"]
            )
        return 0


class DcpRun(Variant):
    def command(self) -> list[str]:
        torchrun = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            "2",
        ]
        script = [
            "-m",
            "workloads.library.tests.bench.checkpoints.dcp_twin",
            str(self.folder / "checkpoints"),
        ]
        numbers = [str(self.steps), str(self.every), str(self.report_every)]
        return [
            *torchrun,
            *script,
            str(self.events_path),
            *numbers,
        ]

    def stored(self) -> int:
        from workloads.library.tests.bench.checkpoints.dcp_twin import newest

        return newest(self.folder / "checkpoints")


@dataclass(frozen=True, kw_only=True)
class Slice:
    """One start until its eviction is over, in seconds where nothing else is said."""

    wall: float
    start: float
    """From the birth of the first process to the first step."""
    leaving: float
    """From the notice until the last process is gone."""
    steps_done: int
    steps_kept: int
    step_seconds: tuple[float, ...]
    """The mean of each window."""


def restarts(folder: Path) -> dict[str, Any]:
    """From the birth of a pod's first process to its first step after a restore; ours also in the
    parts that its `startup` event names.
    """
    variants = _variants(folder, steps=10, every=5, report_every=1)
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(RESTARTS):
        for name, run in variants.items():
            run.steps = 12 + 2 * number
            begun = len(run.events())
            launched = time.time()
            _complete(run)
            first = next(event for event in run.events()[begun:] if event["event"] == "window")
            seconds[name].append(first["t"] - launched)
    startups = [event["phases"] for event in variants[OURS].of("startup")[1:]]
    return {
        "first_step_s": {
            name: round(statistics.median(found), 2) for name, found in seconds.items()
        },
        "parts": {
            name: round(statistics.median(phases[name] for phases in startups), 2)
            for name in startups[0]
        },
    }


def goodput(
    folder: Path,
    evictions: int,
    *,
    seeds: int = 3,
    slice_s: float = SLICE_S,
) -> dict[str, Any]:
    """Share of the time that went into steps that were kept, by variant and as differences within
    each turn.
    """
    turns: list[dict[str, Slice]] = []
    for seed in range(seeds):
        rng = random.Random(seed)
        variants = [*_variants(folder / str(seed)).items()]
        for _ in range(evictions):
            rng.shuffle(variants)
            length_s = slice_s + rng.uniform(-0.5, 0.5) * min(JITTER_S, slice_s / 2)
            turns.append({name: _played(variant, length_s) for name, variant in variants})
    return summary(turns)


def longest(
    folder: Path, *, evictions: int = LONGEST_EVICTIONS, slice_s: float = LONGEST_SLICE_S
) -> dict[str, Any]:
    """As `goodput`, of one run per variant, in parallel."""
    rng = random.Random(0)
    lengths_s = []
    for _ in range(evictions):
        lengths_s.append(slice_s + rng.uniform(-0.5, 0.5) * min(JITTER_S, slice_s / 2))
    variants = _variants(
        folder, env=before_import(folder / "hook", "holdfast.training.trainer.metrics", WAITING)
    )

    def lane(place: int, variant: Variant) -> list[Slice]:
        time.sleep(place * slice_s / len(variants))
        return [_played(variant, length_s) for length_s in lengths_s]

    with ThreadPoolExecutor(len(variants)) as pool:
        lanes = [*pool.map(lane, range(len(variants)), variants.values())]
    return summary(
        [dict(zip(variants, slices, strict=True)) for slices in zip(*lanes, strict=True)]
    )


def _variants(folder: Path, **more: Any) -> dict[str, Variant]:
    """Each has left a checkpoint, so that every further start begins with a restore."""
    options: dict[str, Any] = {
        "steps": EVERY,
        "every": EVERY,
        "report_every": TrainConfig.report_every,
        **more,
    }
    found = {
        OURS: Variant(folder=folder / "holdfast", **options),
        THEIRS: NaiveRun(folder=folder / "naive", module=NAIVE, **options),
        TORCHRUN: DcpRun(folder=folder / "dcp", **options),
    }
    for run in found.values():
        _complete(run)
        run.steps = ENDLESS
    return found


def _complete(run: Run) -> None:
    if run.complete() != 0:
        raise RuntimeError(f"a start failed:\n{run.log()}")


def _played(run: Variant, length_s: float) -> Slice:
    before = run.stored()
    begun = len(run.events())
    launched = time.time()
    with run.started() as process:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(length_s)
        noticed = time.time()
        notice(process)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(WINDOW_S)
    ended = time.time()  # what the window has left is killed
    windows = [event for event in run.events()[begun:] if event["event"] == "window"]
    counts = [steps_in(event) for event in windows]
    step_seconds = tuple(
        event["seconds"] / count for event, count in zip(windows, counts, strict=True)
    )
    return Slice(
        wall=ended - launched,
        start=(first_step_t(windows[0]) if windows else ended) - launched,
        leaving=ended - noticed,
        steps_done=sum(counts),
        steps_kept=max(0, run.stored() - before),
        step_seconds=step_seconds,
    )


def steps_in(window: Mapping[str, Any]) -> int:
    return window["last_step"] - window["first_step"] + 1


def first_step_t(window: Mapping[str, Any]) -> float:
    """When the first step of a window was done."""
    steps = steps_in(window)
    return window["t"] - window["seconds"] * (steps - 1) / steps


def summary(turns: list[dict[str, Slice]]) -> dict[str, Any]:
    """`turns`: slices that belong together, by variant."""
    names = list(turns[0])
    shares = {name: [_shares(turn)[name] for turn in turns] for name in names}
    pairs = {
        name: [a - b for a, b in zip(shares[OURS], shares[name], strict=True)]
        for name in names
        if name != OURS
    }
    return {
        "turns": len(turns),
        "minutes": {name: round(sum(turn[name].wall for turn in turns) / 60, 1) for name in names},
        "share": {name: round(statistics.mean(found), 3) for name, found in shares.items()},
        "interval": {name: _interval(found) for name, found in shares.items()},
        "above": {name: round(statistics.mean(found), 3) for name, found in pairs.items()},
        "where the time went": {name: _where(name, turns) for name in names},
    }


def _interval(values: Sequence[float]) -> list[float]:
    """In which the mean lies with 95 %, by Student's t; all that is possible for a single value."""
    if len(values) < 2:
        return [0.0, 1.0]
    mean = statistics.mean(values)
    freedom = len(values) - 1
    half = T_975[min(freedom, len(T_975)) - 1] * statistics.stdev(values) / len(values) ** 0.5
    return [round(mean - half, 3), round(mean + half, 3)]


def _shares(turn: Mapping[str, Slice]) -> dict[str, float]:
    step_s = _step_s(turn)
    return {name: one.steps_kept * step_s / one.wall for name, one in turn.items()}


def _step_s(turn: Mapping[str, Slice]) -> float:
    """What a step is worth: the median leaves the saves out, which stand in few of the steps."""
    return statistics.median(seconds for one in turn.values() for seconds in one.step_seconds)


def _where(name: str, turns: list[dict[str, Slice]]) -> dict[str, float]:
    """Seconds of a slice, by cause. `slower`: steps beyond their worth, and waiting for saves."""

    def causes(turn: dict[str, Slice]) -> dict[str, float]:
        one = turn[name]
        step_s = _step_s(turn)
        kept = one.steps_kept * step_s
        lost = max(0, one.steps_done - one.steps_kept) * step_s
        rest = one.wall - one.start - one.leaving - kept - lost
        times = {
            "start": one.start,
            "kept": kept,
            "lost": lost,
            "leaving": one.leaving,
        }
        return {
            "wall": one.wall,
            **times,
            "slower": rest,
        }

    found = [causes(turn) for turn in turns]
    return {cause: round(statistics.mean(each[cause] for each in found), 2) for cause in found[0]}
