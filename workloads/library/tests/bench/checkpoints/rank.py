"""One rank of the checkpoint benchmark: every method in turn, round after round, so that noise hits
all alike.

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
from workloads.library.tests.bench.checkpoints.rivals import RIVALS
from workloads.library.tests.processes import MIB

TENSOR_MIB = 16
WARM_UP_S = 10.0

COPY = "plain copy"
FRESH_COPY = "plain copy to fresh memory"

Figures = dict[str, dict[str, list[float]]]
Given = dict[str, Any]
"""Settings of the bench."""


def make_state(mib: int) -> Tensors:
    generator = torch.Generator().manual_seed(dist.get_rank())
    size = TENSOR_MIB * MIB // 4
    return {
        f"rank{dist.get_rank()}.{i}": torch.empty(size).uniform_(generator=generator)
        for i in range(mib // TENSOR_MIB)
    }


class Step:
    """A stand-in for training: some tens of milliseconds on one core, and one all-reduce."""

    def __init__(self) -> None:
        self._a = torch.randn(700, 700)
        self._one = torch.ones(1)

    def run(self) -> float:
        began = time.perf_counter()
        for _ in range(2):
            self._a @ self._a
        dist.all_reduce(self._one)
        return time.perf_counter() - began


def warm_up(step: Step) -> None:
    """A job's first save comes after its first interval, which is never below seconds."""
    until = time.perf_counter() + WARM_UP_S
    while not everyone_done(time.perf_counter() > until):
        step.run()


def everyone_done(done: bool) -> bool:
    flag = torch.tensor([int(done)])
    dist.all_reduce(flag, dist.ReduceOp.MIN)
    return bool(flag.item())


def slowest(seconds: float) -> float:
    value = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(value, dist.ReduceOp.MAX)
    return float(value.item())


def one_save(method: Method, number: int) -> dict[str, float]:
    settle()
    began = time.perf_counter()
    method.begin(number)
    blocking = time.perf_counter() - began
    method.finish()
    total = time.perf_counter() - began
    return {
        "blocking": slowest(blocking),
        "total": slowest(total),
    }


def steps_beside_one(method: Method, number: int, step: Step) -> dict[str, float]:
    settle()
    normal = median(step.run() for _ in range(20))
    dist.barrier()
    method.begin(number)
    beside: list[float] = []
    while not everyone_done(not method.busy()):
        beside.append(step.run())
    method.finish()
    return slowed(beside, normal)


def slowed(beside: list[float], normal: float) -> dict[str, float]:
    """What a save costs the steps beside it; nothing where it was through before the first."""
    extra = sum(beside) - normal * len(beside)
    if beside:
        return {"factor": sum(beside) / len(beside) / normal, "extra": extra}
    return {}


def settle() -> None:
    """What the method before left to the kernel to write would be paid by the next one."""
    if dist.get_rank() == 0:
        os.sync()
    dist.barrier()


def copy_seconds(tensors: Tensors, to: torch.Tensor) -> float:
    settle()
    began = time.perf_counter()
    copy_all(tensors.values(), to)
    return slowest(time.perf_counter() - began)


def saves(
    folder: Path,
    tensors: Tensors,
    names: list[str],
    rounds: int,
    *,
    controls: bool,
) -> Figures:
    """`controls`: before each of our saves a plain copy to memory that was touched before, and one
    to memory that was not.
    """
    figures: Figures = defaultdict(lambda: defaultdict(list))
    step = Step()
    touched = fresh(tensors.values()).fill_(1) if controls else None
    methods: list[Any] = [(METHODS | RIVALS)[name](folder, tensors) for name in names]
    for method in methods:
        # their own start slows whoever saves beside them; ours is measured from its first
        if method.name in RIVALS:
            one_save(method, 1)
    warm_up(step)
    for number in range(2, 2 + 2 * rounds):
        for method in methods:
            if number % 2:
                # dcp.save holds training until it is durable: there are no steps beside it.
                if method.name == DcpSave.name:
                    found = {}
                else:
                    found = steps_beside_one(method, number, step)
            else:
                if touched is not None and method.name == Holdfast.name:
                    figures[COPY]["blocking"].append(copy_seconds(tensors, touched))
                    figures[FRESH_COPY]["blocking"].append(
                        copy_seconds(tensors, fresh(tensors.values()))
                    )
                found = one_save(method, number)
            for kind, value in found.items():
                figures[method.name][kind].append(value)
    for method in methods:
        method.close()
    return figures


def restores(folder: Path, tensors: Tensors, rounds: int) -> dict[str, list[float]]:
    """Both read what the last save left from the disk, as on a new node, into tensors that exist."""
    figures: dict[str, list[float]] = {Holdfast.name: [], "dcp.load": []}
    ranks = Ranks.of_job(timeout_s=600)
    newest = max((folder / DcpSave.name).iterdir(), key=lambda p: int(p.name))
    expected = {key: tensor.clone() for key, tensor in tensors.items()}
    for _ in range(rounds):
        for name in figures:
            for tensor in tensors.values():
                tensor.zero_()
            forget(folder / Holdfast.name if name == Holdfast.name else newest)
            dist.barrier()
            began = time.perf_counter()
            if name == Holdfast.name:
                storage = open_storage(str(folder / Holdfast.name))
                found = restore(storage, "bench", {"t": PerRank(tensors)}, ranks, Tuning())
                assert found.step and not found.skipped, found
            else:
                dcp.load(tensors, checkpoint_id=newest)
            figures[name].append(slowest(time.perf_counter() - began))
            assert all(torch.equal(tensors[key], expected[key]) for key in tensors), name
    return figures


def forget(folder: Path) -> None:
    """Drop the files below from the page cache; they are durable."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def measured(folder: Path, given: Given) -> dict[str, Any]:
    tensors = make_state(given["mib"])
    if given.get("announce"):
        for _ in range(5):  # what training itself allocates is none of the checkpoint's
            Step().run()
        dist.barrier()
        (folder / "state-is-there").touch()
        time.sleep(1)
    controls = not given.get("announce")  # whoever measures memory counts no copies of ours
    found: dict[str, Any] = {
        "saves": saves(folder, tensors, given["methods"], given["rounds"], controls=controls)
    }
    if given.get("restore"):
        found["restores"] = restores(folder, tensors, given["rounds"])
    return found


def run(measured: Callable[[Path, Given], object], backend: str = "gloo") -> None:
    """A rank from its settings to its end; rank 0 writes what was measured."""
    given: Given = json.loads(sys.argv[1])
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(backend)
    found = measured(Path(given["folder"]), given)
    if dist.get_rank() == 0:
        Path(given["out"]).write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    run(measured)
