"""Goodput under evictions of the trainer, the naive twin, and torchrun with dcp.async_save.

Every slice is one start, some time of training and one eviction, at the same moment for every
variant. The variants take turns in an order that changes with the seed, so that a busy moment of
the machine meets all of them. They train the same model on the same batches, so a step has the same
value for each: its median over the slices of a turn. Productive are the steps that the slice added
to the storage, where a restart finds them; the other time is named by its cause.

In `longest` a step also waits, as one on a GPU would, and needs little CPU. So the variants run in
parallel, with their evictions a third of a slice apart. `restarts` has the same variants, in turns,
without an eviction.
"""

import contextlib
import operator
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.training.trainer.config import TrainConfig
from workloads.library.tests.bench.result import collect_columns
from workloads.library.tests.training.hooks import before_import
from workloads.library.tests.training.runs import NAIVE, Run, notice

Figures = dict[str, Any]
WINDOW_S = 15.0
SLICE_S = 105.0
LONGEST_EVICTIONS = 12
LONGEST_SLICE_S = 300.0
WAIT_S = 0.5
"""Seconds that each step of `longest` waits."""
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
"""The 97.5 % quantiles of Student's t, by degrees of freedom from 1."""
JITTER_S = 10.0
ENDLESS = 10_000_000
EVERY = 50
RESTARTS = 5
OURS = "holdfast"
THEIRS = "naive"
TORCHRUN = "torchrun + dcp.async_save"


class Variant(Run):
    """The trainer of this library."""

    def newest_step(self) -> int:
        """Returns the step from which another start would continue."""
        return max((event["step"] for event in self.of("commit")), default=0)


class NaiveRun(Variant):
    def newest_step(self) -> int:
        """Returns the step of the file, or 0 if it is torn."""
        import torch

        file = self.folder / "checkpoints/job/checkpoint.pt"
        with contextlib.suppress(Exception):
            return int(torch.load(file, weights_only=True)["step"])
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

    def newest_step(self) -> int:
        from workloads.library.tests.bench.checkpoints.dcp_twin import newest

        return newest(self.folder / "checkpoints")


@dataclass(frozen=True, kw_only=True)
class Slice:
    """One start until its eviction is over, in seconds unless a name says otherwise."""

    wall: float
    start: float
    """Time between the start of the first process and the first step."""
    leaving: float
    """Time between the notice and the end of the last process."""
    steps_done: int
    steps_kept: int
    step_seconds: tuple[float, ...]
    """The mean of each window."""


def restarts(folder: Path) -> dict[str, Any]:
    """Times restarts: from the start of a pod's first process to its first step after a restore.

    Ours are also split into the parts that its `startup` event names.
    """
    variants = _variants(folder, steps=10, every=5, report_every=1)
    seconds: dict[str, list[float]] = {}
    for name in variants:
        seconds[name] = []
    for number in range(RESTARTS):
        for name, run in variants.items():
            run.steps = 12 + 2 * number
            windows_before = len(run.of("window"))
            launch = time.time()
            _complete(run)
            first = run.of("window")[windows_before]
            seconds[name].append(first["t"] - launch)
    startups = []
    for event in variants[OURS].of("startup")[1:]:
        startups.append(event["phases"])
    return describe_restarts(seconds, startups)


def describe_restarts(
    first_step_s: Mapping[str, Sequence[float]], startups: Sequence[Mapping[str, float]]
) -> Figures:
    """Returns the median seconds to the first step by variant, and of each part of our start."""
    return {
        "first_step_s": _find_medians(first_step_s),
        "parts": _find_medians(collect_columns(startups)),
    }


def _find_medians(samples: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {name: round(statistics.median(values), 2) for name, values in samples.items()}


def goodput(
    folder: Path,
    evictions: int,
    *,
    seeds: int = 3,
    slice_s: float = SLICE_S,
) -> Figures:
    """Measures the share of time spent on steps that were kept, by variant.

    Differences to ours are taken within each turn.
    """
    turns: list[dict[str, Slice]] = []
    for seed in range(seeds):
        rng = random.Random(seed)
        variants = [*_variants(folder / str(seed)).items()]
        for _ in range(evictions):
            rng.shuffle(variants)
            length_s = _draw_length(rng, slice_s)
            turns.append({name: _run_slice(variant, length_s) for name, variant in variants})
    return summarize(turns)


def _draw_length(rng: random.Random, slice_s: float) -> float:
    return slice_s + rng.uniform(-0.5, 0.5) * min(JITTER_S, slice_s / 2)


def longest(
    folder: Path, *, evictions: int = LONGEST_EVICTIONS, slice_s: float = LONGEST_SLICE_S
) -> Figures:
    """Measures the same as `goodput` on one run per variant, in parallel."""
    rng = random.Random(0)
    lengths_s = [_draw_length(rng, slice_s) for _ in range(evictions)]
    hook = before_import(folder / "hook", "holdfast.training.trainer.metrics", WAITING)
    variants = _variants(folder, env=hook)

    def run_lane(place: int, variant: Variant) -> list[Slice]:
        time.sleep(place * slice_s / len(variants))
        return [_run_slice(variant, length_s) for length_s in lengths_s]

    with ThreadPoolExecutor(len(variants)) as pool:
        lanes = [*pool.map(run_lane, range(len(variants)), variants.values())]
    turns = list[dict[str, Slice]]()
    for slices in zip(*lanes, strict=True):
        turns.append(dict(zip(variants, slices, strict=True)))
    return summarize(turns)


def _variants(folder: Path, **settings: Any) -> dict[str, Variant]:
    """Runs each variant to its first checkpoint, so that every later start has one to restore."""
    options: dict[str, Any] = {
        "steps": EVERY,
        "every": EVERY,
        "report_every": TrainConfig.report_every,
        **settings,
    }
    variants = {
        OURS: Variant(folder=folder / "holdfast", **options),
        THEIRS: NaiveRun(folder=folder / "naive", module=NAIVE, **options),
        TORCHRUN: DcpRun(folder=folder / "dcp", **options),
    }
    for run in variants.values():
        _complete(run)
        run.steps = ENDLESS
    return variants


def _complete(run: Run) -> None:
    if run.complete() != 0:
        raise RuntimeError(f"a start failed:\n{run.log()}")


def _run_slice(run: Variant, length_s: float) -> Slice:
    stored_before = run.newest_step()
    windows_before = len(run.of("window"))
    launch = time.time()
    with run.started() as process:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(length_s)
        notice_t = time.time()
        notice(process)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(WINDOW_S)
    end = time.time()  # processes that outlast the window are killed
    windows = run.of("window")[windows_before:]
    first_step = first_step_t(windows[0]) if windows else end
    steps_done = 0
    step_seconds = []
    for window in windows:
        steps_done += steps_in(window)
        step_seconds.append(window["seconds"] / steps_in(window))
    return Slice(
        wall=end - launch,
        start=first_step - launch,
        leaving=end - notice_t,
        steps_done=steps_done,
        steps_kept=max(0, run.newest_step() - stored_before),
        step_seconds=tuple(step_seconds),
    )


def steps_in(window: Mapping[str, Any]) -> int:
    return window["last_step"] - window["first_step"] + 1


def first_step_t(window: Mapping[str, Any]) -> float:
    """Returns the time at which the first step of a window ended."""
    steps = steps_in(window)
    return window["t"] - window["seconds"] * (steps - 1) / steps


def summarize(turns: list[dict[str, Slice]]) -> Figures:
    """Computes the figures of all turns; a turn maps each variant to its slice."""
    our_shares = _productive_shares(turns, OURS)
    figures: Figures = {
        "turns": len(turns),
        "minutes": {},
        "share": {},
        "interval": {},
        "above": {},
        "where the time went": {},
    }
    for name in turns[0]:
        shares = _productive_shares(turns, name)
        wall_s = sum(turn[name].wall for turn in turns)
        figures["minutes"][name] = round(wall_s / 60, 1)
        figures["share"][name] = round(statistics.mean(shares), 3)
        figures["interval"][name] = _interval(shares)
        if name != OURS:
            mean_difference = statistics.mean(map(operator.sub, our_shares, shares))
            figures["above"][name] = round(mean_difference, 3)
        figures["where the time went"][name] = _split_time(name, turns)
    return figures


def _interval(values: Sequence[float]) -> list[float]:
    """Returns the 95 % interval of the mean by Student's t, and [0, 1] for a single value."""
    if len(values) < 2:
        return [0.0, 1.0]
    mean = statistics.mean(values)
    freedom = len(values) - 1
    quantile = T_975[min(freedom, len(T_975)) - 1]
    half = quantile * statistics.stdev(values) / len(values) ** 0.5
    return [round(mean - half, 3), round(mean + half, 3)]


def _productive_shares(turns: Iterable[Mapping[str, Slice]], name: str) -> list[float]:
    """Returns, for each slice of a variant, the share of its time that its kept steps are worth."""
    shares: list[float] = []
    for turn in turns:
        shares.append(turn[name].steps_kept * _step_value_s(turn) / turn[name].wall)
    return shares


def _step_value_s(turn: Mapping[str, Slice]) -> float:
    """Returns the median time of a step, which leaves out saves: few steps contain one."""
    step_seconds = list[float]()
    for part in turn.values():
        step_seconds += part.step_seconds
    return statistics.median(step_seconds)


def _split_time(name: str, turns: list[dict[str, Slice]]) -> dict[str, float]:
    """Returns the mean seconds of a variant's slices, by cause."""
    splits = []
    for turn in turns:
        splits.append(_split_slice(turn[name], _step_value_s(turn)))
    means = {}
    for cause, seconds in collect_columns(splits).items():
        means[cause] = round(statistics.mean(seconds), 2)
    return means


def _split_slice(part: Slice, step_s: float) -> dict[str, float]:
    """Splits a slice by cause; `slower` are seconds beyond a step's value, and waits for saves."""
    kept_s = part.steps_kept * step_s
    lost_s = max(0, part.steps_done - part.steps_kept) * step_s
    return {
        "wall": part.wall,
        "start": part.start,
        "kept": kept_s,
        "lost": lost_s,
        "leaving": part.leaving,
        "slower": part.wall - part.start - part.leaving - kept_s - lost_s,
    }
