"""One rank of `make bench-gpu`, and the ways of saving that only a GPU has. Settings and figures as
in rank.
"""

import importlib.util
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from workloads.library.tests.bench.checkpoints.methods import (
    METHODS,
    DcpShared,
    Holdfast,
    Method,
    Tensors,
)
from workloads.library.tests.bench.checkpoints.rank import (
    COPY,
    Figures,
    Given,
    make_state,
    run,
    settle,
    slowed,
)


class HoldfastLock(Holdfast):
    """With `lock()` around the optimizer's step: the GPU copies while it computes the gradients of
    the next one.
    """

    name = "holdfast lock()"

    def __init__(self, folder: Path, tensors: Tensors) -> None:
        self.open(
            folder, {"model": torch.nn.ParameterList(map(torch.nn.Parameter, tensors.values()))}
        )
        self.staged()

    def staged(self) -> None:
        with self._ckpt.lock():
            pass


class DcpOverlap(DcpShared):
    """As torchtitan's async_with_pinned_mem: staged by a thread, which is awaited before the
    optimizer's step.
    """

    name = "dcp.async PROCESS shm, overlapped"
    overlaps = True

    def staged(self) -> None:
        assert self._stager is not None
        self._stager.synchronize_staging()


class Nvrx(Method):
    """Local checkpointing of nvidia-resiliency-ext, without replication. It does not sync the file
    to the disk.
    """

    name = "nvrx local"

    def __init__(self, folder: Path, tensors: Tensors) -> None:
        from nvidia_resiliency_ext.checkpointing.async_ckpt.core import AsyncCallsQueue
        from nvidia_resiliency_ext.checkpointing.local.basic_state_dict import (
            BasicTensorAwareStateDict,
        )
        from nvidia_resiliency_ext.checkpointing.local.ckpt_managers.local_manager import (
            LocalCheckpointManager,
        )

        super().__init__(folder, tensors)
        self._state: Any = BasicTensorAwareStateDict
        self._manager: Any = LocalCheckpointManager(self._folder)
        self._queue: Any = AsyncCallsQueue()

    def begin(self, number: int) -> None:
        request = self._manager.save(self._state(dict(self._tensors)), number, is_async=True)
        self._queue.schedule_async_request(request)

    def busy(self) -> bool:
        self._queue.maybe_finalize_async_calls()
        return self._queue.get_num_unfinalized_calls() > 0

    def finish(self) -> None:
        self._queue.maybe_finalize_async_calls(blocking=True)

    def close(self) -> None:
        self._queue.close()


ON_GPU: dict[str, type[Any]] = {each.name: each for each in (HoldfastLock, DcpOverlap, Nvrx)}


def caught_up() -> None:
    """Until the GPU has done what it was asked for: what it copies there is time that it does not
    compute.
    """
    torch.cuda.current_stream().synchronize()


class Step:
    """33 TFLOP, and one all-reduce."""

    def __init__(self) -> None:
        self._a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
        self._one = torch.ones(1)

    def run(self, before_update: Callable[[], None] = lambda: None) -> float:
        began = time.perf_counter()
        for _ in range(30):
            self._a @ self._a
        before_update()
        caught_up()
        dist.all_reduce(self._one)
        return time.perf_counter() - began


def one_save(method: Method, number: int, step: Step) -> dict[str, float]:
    settle()
    normal = median(step.run() for _ in range(8))
    began = time.perf_counter()
    method.begin(number)
    caught_up()
    blocking = time.perf_counter() - began
    beside: list[float] = []
    while method.busy():
        beside.append(step.run(method.staged))
    method.finish()
    return {"blocking": blocking, "total": time.perf_counter() - began} | slowed(beside, normal)


def copy_seconds(tensors: Tensors, pinned: list[torch.Tensor]) -> float:
    settle()
    began = time.perf_counter()
    for source, target in zip(tensors.values(), pinned, strict=True):
        target.copy_(source, non_blocking=True)
    caught_up()
    return time.perf_counter() - began


def saves(
    folder: Path,
    tensors: Tensors,
    names: list[str],
    rounds: int,
) -> Figures:
    figures: Figures = defaultdict(lambda: defaultdict(list))
    step = Step()
    pinned = [torch.ones_like(tensor, device="cpu").pin_memory() for tensor in tensors.values()]
    methods: list[Any] = [(METHODS | ON_GPU)[name](folder, tensors) for name in names]
    for method in methods:  # its own start would slow the others
        one_save(method, 1, step)
    for number in range(2, 2 + rounds):
        for method in methods:
            figures[COPY]["blocking"].append(copy_seconds(tensors, pinned))
            for kind, value in one_save(method, number, step).items():
                figures[method.name][kind].append(value)
    for method in methods:
        method.close()
    return figures


def absent() -> dict[str, str]:
    """What does not run here, and why."""
    found = importlib.util.find_spec("nvidia_resiliency_ext")
    reason = "nvidia-resiliency-ext is not installed: it needs Python 3.12, glibc 2.39 and a GPU"
    return {} if found else {Nvrx.name: reason}


def measured(folder: Path, given: Given) -> dict[str, Figures]:
    tensors = {name: tensor.cuda() for name, tensor in make_state(given["mib"]).items()}
    return {"saves": saves(folder, tensors, given["methods"], given["rounds"])}


if __name__ == "__main__":
    run(measured, "cpu:gloo,cuda:nccl")
