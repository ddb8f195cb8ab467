"""The ways of saving that the checkpoint benchmark compares, behind one interface."""

import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, AsyncSaveResponse

from holdfast.checkpoint import Checkpointer, PerRank

Tensors = dict[str, torch.Tensor]


class Method:
    """One way of saving; by default a synchronous save into a fresh folder.

    The folder of the save before is removed, so that disks do not fill.
    """

    name = ""

    def __init__(self, folder: Path, tensors: Tensors) -> None:
        self._folder = folder / self.name
        self._tensors = tensors
        self._last: Path | None = None

    def target(self, number: int) -> Path:
        target = self._folder / str(number)
        if dist.get_rank() == 0 and self._last is not None:
            shutil.rmtree(self._last, ignore_errors=True)
        self._last = target
        return target

    def begin(self, number: int) -> None:
        """Starts a save; returns when training may continue."""
        raise NotImplementedError

    def busy(self) -> bool:
        return False

    def finish(self) -> None:
        """Waits until the save is durable."""

    def finish_staging(self) -> None:
        """Waits until the state may change, if `begin` returns earlier than that."""

    def close(self) -> None: ...


class Holdfast(Method):
    name = "holdfast"

    def __init__(self, folder: Path, tensors: Tensors) -> None:
        self.open(folder, {"t": PerRank(tensors)})

    def open(self, folder: Path, state: dict[str, Any]) -> None:
        self._ckpt = Checkpointer(
            str(folder / self.name),
            state,
            run="bench",
            every=10**9,
            keep=1,
        )
        self._ckpt.__enter__()
        self._ckpt.tick(1)

    def begin(self, number: int) -> None:
        self._ckpt.save(number)

    def busy(self) -> bool:
        self._ckpt.poll()
        return self._ckpt.busy

    def finish(self) -> None:
        assert self._ckpt.wait()

    def close(self) -> None:
        self._ckpt.close()


class DcpSave(Method):
    name = "dcp.save"

    def begin(self, number: int) -> None:
        dcp.save(self._tensors, checkpoint_id=self.target(number))


class _DcpAsync(Method):
    kind = AsyncCheckpointerType.THREAD
    shared = False
    overlaps = False

    def __init__(self, folder: Path, tensors: Tensors) -> None:
        super().__init__(folder, tensors)
        options = StagingOptions(
            use_pinned_memory=torch.cuda.is_available(),  # pages cannot be pinned without a GPU
            use_shared_memory=self.shared,
            use_async_staging=self.overlaps,
            use_non_blocking_copy=self.overlaps,
        )
        self._stager = DefaultStager(options) if self.shared else None
        # Without this it would give its memory back after the first save.
        if self._stager is not None and torch.__version__ < "2.15":
            self._stager._state_dict_stager.close = lambda: None
        self._future: Any = None
        # Collectives of a save in the background must not meet those of the training loop.
        self._group = dist.new_group(backend="gloo")

    def begin(self, number: int) -> None:
        answer = dcp.async_save(
            self._tensors,
            checkpoint_id=self.target(number),
            process_group=self._group,
            async_checkpointer_type=self.kind,
            async_stager=self._stager,
        )
        self._future = answer.upload_completion if isinstance(answer, AsyncSaveResponse) else answer

    def busy(self) -> bool:
        return self._future is not None and not self._future.done()

    def finish(self) -> None:
        self._future.result()

    def close(self) -> None:
        if self._stager is not None:
            self._stager.close()


class DcpThread(_DcpAsync):
    name = "dcp.async THREAD"


class DcpProcess(_DcpAsync):
    name = "dcp.async PROCESS"
    kind = AsyncCheckpointerType.PROCESS


class DcpShared(_DcpAsync):
    """DCP's own advice for GPUs: staging in shared memory, which is pinned with a GPU."""

    name = "dcp.async PROCESS shm"
    kind = AsyncCheckpointerType.PROCESS
    shared = True


METHODS: dict[str, type[Any]] = {
    Holdfast.name: Holdfast,
    DcpSave.name: DcpSave,
    DcpThread.name: DcpThread,
    DcpProcess.name: DcpProcess,
    DcpShared.name: DcpShared,
}
ASYNC = [DcpThread.name, DcpProcess.name, DcpShared.name]
DCP = [DcpSave.name, *ASYNC]
