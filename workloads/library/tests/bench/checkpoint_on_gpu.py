"""Ways of saving that only a GPU has, for `make bench-gpu`."""

import importlib.util
from pathlib import Path
from typing import Any

import torch

from holdfast.checkpoint import Checkpointer
from workloads.library.tests.bench.checkpoint_methods import DcpShared, Holdfast, Plain, Tensors


class HoldfastLock(Holdfast):
    """With `lock()` around the optimizer's step: the GPU copies while it computes the gradients of the next one."""

    name = "holdfast lock()"

    def __init__(self, folder: Path, tensors: Tensors) -> None:
        model = torch.nn.ParameterList(torch.nn.Parameter(tensor) for tensor in tensors.values())
        self._ckpt = Checkpointer(str(folder / "lock"), {"model": model}, run="bench", every=10**9, keep=1)
        self._ckpt.__enter__()
        self._ckpt.tick(1)
        self.staged()

    def staged(self) -> None:
        with self._ckpt.lock():
            pass


class DcpOverlap(DcpShared):
    """As torchtitan's async_with_pinned_mem: staged by a thread, which is awaited before the optimizer's step."""

    name = "dcp.async PROCESS shm, overlapped"
    overlaps = True

    def staged(self) -> None:
        assert self._stager is not None
        self._stager.synchronize_staging()


class Nvrx(Plain):
    """Local checkpointing of nvidia-resiliency-ext, without replication. It does not sync the file to the disk."""

    name = "nvrx local"

    def __init__(self, folder: Path, tensors: Tensors) -> None:
        from nvidia_resiliency_ext.checkpointing.async_ckpt.core import (  # pyright: ignore[reportMissingImports]
            AsyncCallsQueue,
        )
        from nvidia_resiliency_ext.checkpointing.local.basic_state_dict import (  # pyright: ignore[reportMissingImports]
            BasicTensorAwareStateDict,
        )
        from nvidia_resiliency_ext.checkpointing.local.ckpt_managers.local_manager import (  # pyright: ignore[reportMissingImports]
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


def absent() -> dict[str, str]:
    """What does not run here, and why."""
    found = importlib.util.find_spec("nvidia_resiliency_ext")
    reason = "nvidia-resiliency-ext is not installed: it needs Python 3.12, glibc 2.39 and a GPU"
    return {} if found else {Nvrx.name: reason}
