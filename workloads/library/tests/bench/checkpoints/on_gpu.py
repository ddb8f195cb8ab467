"""One rank of `make bench-gpu`, and the ways of saving that need a GPU.

Settings and figures have the form that `rank` uses.
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
    slowdown,
)


class HoldfastLock(Holdfast):
    """Our save with `lock()` around the optimizer's step.

    The GPU copies while it computes the gradients of the next step.
    """

    name = "holdfast lock()"

    def __init__(self, folder: Path, tensors: Tensors) -> None:
        parameters = map(torch.nn.Parameter, tensors.values())
        self.open(folder, {"model": torch.nn.ParameterList(parameters)})
        self.finish_staging()

    def finish_staging(self) -> None:
        with self._ckpt.lock():
            pass


class DcpOverlap(DcpShared):
    """torchtitan's async_with_pinned_mem: a thread stages the state during the next step.

    The thread is awaited before the optimizer's step.
    """

    name = "dcp.async PROCESS shm, overlapped"
    overlaps = True

    def finish_staging(self) -> None:
        assert self._stager is not None
        self._stager.synchronize_staging()


class Nvrx(Method):
    """Local checkpointing of nvidia-resiliency-ext, without replication.

    It does not sync the file to the disk.
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


ON_GPU: dict[str, type[Any]] = {
    HoldfastLock.name: HoldfastLock,
    DcpOverlap.name: DcpOverlap,
    Nvrx.name: Nvrx,
}


def wait_for_gpu() -> None:
    """Waits for all work on the GPU, copies included: while it copies it does not compute."""
    torch.cuda.current_stream().synchronize()


class Step:
    """A stand-in for training: 33 TFLOP, and one all-reduce."""

    def __init__(self) -> None:
        self._a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
        self._one = torch.ones(1)

    def run(self, before_update: Callable[[], None] = lambda: None) -> float:
        start = time.perf_counter()
        for _ in range(30):
            self._a @ self._a
        before_update()
        wait_for_gpu()
        dist.all_reduce(self._one)
        return time.perf_counter() - start


def time_save(method: Method, number: int, step: Step) -> dict[str, float]:
    settle()
    normal = median(step.run() for _ in range(8))
    start = time.perf_counter()
    method.begin(number)
    wait_for_gpu()
    blocking = time.perf_counter() - start
    steps_s: list[float] = []
    while method.busy():
        steps_s.append(step.run(method.finish_staging))
    method.finish()
    total = time.perf_counter() - start
    return {"blocking": blocking, "total": total} | slowdown(steps_s, normal)


def copy_seconds(tensors: Tensors, pinned: list[torch.Tensor]) -> float:
    settle()
    start = time.perf_counter()
    for source, target in zip(tensors.values(), pinned, strict=True):
        target.copy_(source, non_blocking=True)
    wait_for_gpu()
    return time.perf_counter() - start


def saves(
    folder: Path,
    tensors: Tensors,
    names: list[str],
    rounds: int,
) -> Figures:
    figures: Figures = defaultdict(lambda: defaultdict(list))
    step = Step()
    pinned = []
    for tensor in tensors.values():
        pinned.append(torch.ones_like(tensor, device="cpu").pin_memory())
    methods: list[Any] = []
    for name in names:
        methods.append((METHODS | ON_GPU)[name](folder, tensors))
    for method in methods:  # the start of one would slow the others
        time_save(method, 1, step)
    for number in range(2, 2 + rounds):
        for method in methods:
            figures[COPY]["blocking"].append(copy_seconds(tensors, pinned))
            for kind, value in time_save(method, number, step).items():
                figures[method.name][kind].append(value)
    for method in methods:
        method.close()
    return figures


def find_absent() -> dict[str, str]:
    """Returns the methods that cannot run here, with the reason."""
    if importlib.util.find_spec("nvidia_resiliency_ext"):
        return {}
    reason = "nvidia-resiliency-ext is not installed: it needs Python 3.12, glibc 2.39 and a GPU"
    return {Nvrx.name: reason}


def measure(folder: Path, settings: Given) -> dict[str, Figures]:
    tensors = {}
    for name, tensor in make_state(settings["mib"]).items():
        tensors[name] = tensor.cuda()
    return {"saves": saves(folder, tensors, settings["methods"], settings["rounds"])}


if __name__ == "__main__":
    run(measure, "cpu:gloo,cuda:nccl")
