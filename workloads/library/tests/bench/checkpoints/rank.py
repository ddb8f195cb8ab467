"""One rank of the checkpoint benchmark: every method once a round, so that noise hits all alike.

Started by workloads.library.tests.bench.checkpoint with RANK and the like set, and its settings as
JSON; writes its figures as JSON to `out`.
"""

import json
import os
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from holdfast.checkpoint.ranks import Ranks
from holdfast.checkpoint.restore import restore
from holdfast.checkpoint.settings import Tuning
from holdfast.checkpoint.state import PerRank
from holdfast.checkpoint.stores.factory import open_storage
from workloads.library.tests.bench.checkpoints.bare import copy_all, fresh
from workloads.library.tests.bench.checkpoints.methods import (
    METHODS,
    DcpSave,
    Holdfast,
    Method,
    Tensors,
)
from workloads.library.tests.bench.checkpoints.rivals import (
    ITEM,
    RIVALS,
    TorchCheckpointing,
    make_manager,
)
from workloads.library.tests.processes import MIB

TENSOR_MIB = 16
WARM_UP_S = 10.0

COPY = "plain copy"
FRESH_COPY = "plain copy to fresh memory"

Figures = dict[str, dict[str, list[float]]]
Given = dict[str, Any]
"""The settings that the bench passes to a rank."""


def make_state(mib: int) -> Tensors:
    rank = dist.get_rank()
    generator = torch.Generator().manual_seed(rank)
    size = TENSOR_MIB * MIB // 4
    tensors = {}
    for number in range(mib // TENSOR_MIB):
        tensors[f"rank{rank}.{number}"] = torch.empty(size).uniform_(generator=generator)
    return tensors


class Step:
    """A stand-in for training: some tens of milliseconds on one core, and one all-reduce."""

    def __init__(self) -> None:
        self._a = torch.randn(700, 700)
        self._one = torch.ones(1)

    def run(self) -> float:
        start = time.perf_counter()
        for _ in range(2):
            self._a @ self._a
        dist.all_reduce(self._one)
        return time.perf_counter() - start


def warm_up(step: Step) -> None:
    """Trains for a while: a job's first save comes after an interval of seconds at least."""
    end = time.perf_counter() + WARM_UP_S
    while not everyone_done(time.perf_counter() > end):
        step.run()


def everyone_done(done: bool) -> bool:
    flag = torch.tensor([int(done)])
    dist.all_reduce(flag, dist.ReduceOp.MIN)
    return bool(flag.item())


def slowest(seconds: float) -> float:
    value = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(value, dist.ReduceOp.MAX)
    return float(value.item())


def time_save(method: Method, number: int) -> dict[str, float]:
    settle()
    start = time.perf_counter()
    method.begin(number)
    blocking = time.perf_counter() - start
    method.finish()
    total = time.perf_counter() - start
    return {
        "blocking": slowest(blocking),
        "total": slowest(total),
    }


def time_steps_during_save(method: Method, number: int, step: Step) -> dict[str, float]:
    settle()
    normal = median(step.run() for _ in range(20))
    dist.barrier()
    method.begin(number)
    steps_s: list[float] = []
    while not everyone_done(not method.busy()):
        steps_s.append(step.run())
    method.finish()
    return slowdown(steps_s, normal)


def slowdown(steps_s: list[float], normal: float) -> dict[str, float]:
    """Returns the cost of a save for the steps during it; empty if it ended before a step."""
    if not steps_s:
        return {}
    extra = sum(steps_s) - normal * len(steps_s)
    return {"factor": sum(steps_s) / len(steps_s) / normal, "extra": extra}


def settle() -> None:
    """Syncs the disk, so that no method pays for dirty pages of the method before it."""
    if dist.get_rank() == 0:
        os.sync()
    dist.barrier()


def copy_seconds(tensors: Tensors, to: torch.Tensor) -> float:
    settle()
    start = time.perf_counter()
    copy_all(tensors.values(), to)
    return slowest(time.perf_counter() - start)


def saves(
    folder: Path,
    tensors: Tensors,
    names: list[str],
    rounds: int,
    *,
    controls: bool,
) -> Figures:
    """Saves with each method `rounds` times, and as often with training steps during the save.

    `controls` adds two plain copies before each of our saves: to memory that was touched before,
    and to memory that was not.
    """
    figures: Figures = defaultdict(lambda: defaultdict(list))
    step = Step()
    touched = fresh(tensors.values()).fill_(1) if controls else None
    methods: list[Any] = []
    for name in names:
        methods.append((METHODS | RIVALS)[name](folder, tensors))
    for method in methods:
        # The start of a rival slows other methods. Ours is measured from its first save.
        if method.name in RIVALS:
            time_save(method, 1)
    warm_up(step)
    for number in range(2, 2 + 2 * rounds):
        for method in methods:
            if number % 2:
                # dcp.save blocks training until it is durable, so no step runs during it.
                if method.name == DcpSave.name:
                    continue
                sample = time_steps_during_save(method, number, step)
            else:
                if touched is not None and method.name == Holdfast.name:
                    figures[COPY]["blocking"].append(copy_seconds(tensors, touched))
                    figures[FRESH_COPY]["blocking"].append(
                        copy_seconds(tensors, fresh(tensors.values()))
                    )
                sample = time_save(method, number)
            for kind, value in sample.items():
                figures[method.name][kind].append(value)
    for method in methods:
        method.close()
    return figures


def restores(
    folder: Path, tensors: Tensors, rounds: int, methods: list[str]
) -> dict[str, list[float]]:
    """Times our restore and those of others, from the disk as on a new node, into existing
    tensors.
    """
    ranks = Ranks.of_job(timeout_s=600)
    dcp_folder = find_newest(folder / DcpSave.name)

    def restore_ours() -> None:
        storage = open_storage(str(folder / Holdfast.name))
        restored = restore(
            storage,
            "bench",
            {"t": PerRank(tensors)},
            ranks,
            Tuning(),
        )
        assert restored.step, restored
        assert not restored.skipped, restored

    loads: dict[str, tuple[Path, Callable[[], object]]] = {
        Holdfast.name: (folder / Holdfast.name, restore_ours),
        "dcp.load": (dcp_folder, lambda: dcp.load(tensors, checkpoint_id=dcp_folder)),
    }
    if TorchCheckpointing.name in methods:
        rival_folder = find_newest(folder / TorchCheckpointing.name)
        manager = make_manager()
        loads[TorchCheckpointing.name] = (
            rival_folder,
            lambda: manager.load(rival_folder, into={ITEM: tensors}, strict=True),
        )
    figures: dict[str, list[float]] = {}
    for name in loads:
        figures[name] = []
    expected = {}
    for key, tensor in tensors.items():
        expected[key] = tensor.clone()
    for _ in range(rounds):
        for name, (source, load) in loads.items():
            for tensor in tensors.values():
                tensor.zero_()
            forget(source)
            dist.barrier()
            start = time.perf_counter()
            load()
            figures[name].append(slowest(time.perf_counter() - start))
            for key in tensors:
                assert torch.equal(tensors[key], expected[key]), name
    return figures


def find_newest(folder: Path) -> Path:
    return max(folder.iterdir(), key=lambda path: int(path.name))


def forget(folder: Path) -> None:
    """Drops the files below from the page cache; they are durable."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def measure(folder: Path, settings: Given) -> dict[str, Any]:
    tensors = make_state(settings["mib"])
    if settings.get("announce"):
        for _ in range(5):  # memory that training allocates is not the checkpoint's
            Step().run()
        dist.barrier()
        (folder / "state-is-there").touch()
        time.sleep(1)
    controls = not settings.get("announce")  # a measurement of memory must not count plain copies
    figures: dict[str, Any] = {
        "saves": saves(folder, tensors, settings["methods"], settings["rounds"], controls=controls)
    }
    if settings.get("restore"):
        figures["restores"] = restores(
            folder,
            tensors,
            settings["rounds"],
            settings["methods"],
        )
    return figures


def run(measure: Callable[[Path, Given], object], backend: str = "gloo") -> None:
    """Runs a rank with the settings of its command line; rank 0 writes the figures."""
    settings: Given = json.loads(sys.argv[1])
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(backend)
    figures = measure(Path(settings["folder"]), settings)
    if dist.get_rank() == 0:
        Path(settings["out"]).write_text(json.dumps(figures))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    run(measure)
