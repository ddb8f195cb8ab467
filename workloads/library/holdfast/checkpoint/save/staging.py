"""The staging memory: one buffer of the state's size, shared with the uploader, touched before it
is needed.

A memfd: it has no name that a killed job could leave behind, is not bound by the 64 MiB of a
container's /dev/shm, and counts against the pod's memory like any other. A save copies the state
there and goes on.

Decision: infra/decisions/0020.
"""

import mmap
import os
import sys
import tempfile
import threading
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from holdfast.checkpoint.failpoints import failpoint
from holdfast.checkpoint.format import Manifest
from holdfast.checkpoint.save.uploader import Job
from holdfast.checkpoint.save.uploader_process import upload
from holdfast.checkpoint.settings import Tuning
from holdfast.checkpoint.state import Captured, targets
from holdfast.checkpoint.state.tensors import Piece, memory_at, memory_of, saved_dtype, stream_bytes
from holdfast.checkpoint.stores.storage import Storage

SPARE_BYTES = 64 << 10
"""For what a program adds after its start, such as the random stream of a library that it imports
late. A memory that has to grow is mapped again and touched again, and the save waits for that
longer than for its copy.
"""


class Staging:
    def __init__(self, descriptor: int = -1) -> None:
        """`descriptor`: of a memory that outlives this process, and may hold what a restore needs."""
        self.descriptor = _anonymous_file() if descriptor < 0 else descriptor
        self.bytes = os.fstat(self.descriptor).st_size
        self._buffer = torch.empty(0, dtype=torch.uint8)
        if self.bytes:
            self._buffer = torch.frombuffer(
                mmap.mmap(self.descriptor, self.bytes), dtype=torch.uint8
            )
        self._toucher: threading.Thread | None = None
        self._pinned: bool | None = None
        """None: not tried yet."""
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._copied: list[Any] = []
        """Events of the GPUs."""

    def prepare(self, pieces: list[Piece]) -> None:
        """Make room for `pieces`, touch every page and pin it where a GPU will copy, in the
        background.
        """
        fresh = stream_bytes(pieces) > self.bytes
        if fresh:
            self._grow(stream_bytes(pieces) + SPARE_BYTES)
        device = next((piece.local.device for piece in pieces if piece.local.is_cuda), None)
        # What outlived the process that touched it is no longer pinned.
        if fresh or (device and self._pinned is None and self._toucher is None):
            self._toucher = threading.Thread(
                target=self._touch,
                args=(device,),
                name="stage-touch",
                daemon=True,
            )
            self._toucher.start()

    def stage(self, pieces: list[Piece], *, steady: Collection[str] = ()) -> int:
        """Copy; the bytes are there when `wait` returns. The uploader must not be reading.

        `steady`: keys of tensors that do not change until then: a GPU copies them while it goes on
        computing.
        """
        failpoint("stage.begin")
        self.prepare(pieces)
        devices = {piece.local.device for piece in pieces if piece.local.is_cuda}
        if devices:  # no memory is pinned while it is copied to
            self._join()
        copy_into(self._buffer, [piece for piece in pieces if piece.part.key not in steady])
        with ExitStack() as streams:
            for device in devices if steady else ():
                streams.enter_context(torch.cuda.stream(self._stream_of(device)))
            copy_into(self._buffer, [piece for piece in pieces if piece.part.key in steady])
            # Each GPU has streams of its own: the current one's say nothing of the others.
            self._copied = [torch.cuda.current_stream(device).record_event() for device in devices]
        failpoint("stage.end")
        return stream_bytes(pieces)

    def _stream_of(self, device: torch.device) -> torch.cuda.Stream:
        """One for copies, which begin when the GPU has done its present work."""
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        self._streams[device].wait_stream(torch.cuda.current_stream(device))
        return self._streams[device]

    @property
    def touching(self) -> bool:
        return self._toucher is not None and self._toucher.is_alive()

    @property
    def copying(self) -> bool:
        """Whether a GPU is still copying for the last `stage`."""
        return not all(copied.query() for copied in self._copied)

    def wait(self) -> None:
        """Until the last `stage` is complete: at once for CPU tensors."""
        for copied in self._copied:
            copied.synchronize()

    def close(self) -> None:
        self._join()
        if self._pinned:
            _cudart().cudaHostUnregister(self._buffer.data_ptr())
        self._buffer = torch.empty(0, dtype=torch.uint8)
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def _grow(self, length: int) -> None:
        self._join()
        if self._pinned:
            _cudart().cudaHostUnregister(self._buffer.data_ptr())
        self._pinned = None
        length = -(-length // mmap.PAGESIZE) * mmap.PAGESIZE
        # Grown in place and never replaced: the uploader holds this very descriptor.
        os.ftruncate(self.descriptor, length)
        self._buffer = torch.frombuffer(mmap.mmap(self.descriptor, length), dtype=torch.uint8)
        self.bytes = length

    def _touch(self, device: torch.device | None) -> None:
        # Page faults cost more than the copy: taken here, during the first steps, and not in the
        # first save. By reading, since a memory that outlives its process may hold the only copy of
        # this rank's last state.
        self._buffer[:: mmap.PAGESIZE].sum()
        if device is not None:
            # a thread begins on GPU 0, whose memory a context would take
            with torch.cuda.device(device):
                code = _cudart().cudaHostRegister(self._buffer.data_ptr(), self.bytes, 0)
            self._pinned = int(code) == 0  # not pinned is slower, not wrong

    def _join(self) -> None:
        if self._toucher is not None:
            self._toucher.join()
            self._toucher = None


def upload_now(
    storage: Storage,
    pieces: list[Piece],
    manifest: Manifest,
    tuning: Tuning,
) -> Manifest:
    """One rank's part, uploaded before this returns; `manifest` lacks its shards. Raises
    StorageError.
    """
    # A second copy of this rank's part in host memory, for as long as the upload lasts.
    stream = torch.zeros(stream_bytes(pieces), dtype=torch.uint8)
    copy_into(stream, pieces)
    job = Job(
        save=1,
        length=len(stream),
        shard_bytes=tuning.shard_size(len(stream)),
        manifest=manifest,
    )
    return upload(storage, memory_of(stream), job, parallel=tuning.parallel)


def steady_keys(state: Mapping[str, Any], captured: Captured) -> frozenset[str]:
    """Of the tensors that only an optimizer's step changes: trained parameters, and its own."""
    modules = [value for _, value in targets(state) if isinstance(value, torch.nn.Module)]
    trained = set()
    for module in modules:
        for each in module.parameters():
            if each.requires_grad:
                trained.add(memory_at(each))
    own = tuple(
        f"{name}/" for name, value in targets(state) if isinstance(value, torch.optim.Optimizer)
    )
    return frozenset(
        key
        for key, tensor in captured.tensors.items()
        if key.startswith(own) or memory_at(tensor) in trained
    )


def copy_into(stream: torch.Tensor, pieces: list[Piece]) -> None:
    """Each piece to its place; from a GPU to pinned memory this only starts the copies."""
    for piece in pieces:
        part = piece.part
        if part.bytes:
            room = stream[part.at : part.at + part.bytes]
            room.view(saved_dtype(part)).view(part.extent).copy_(piece.local, non_blocking=True)
            # what is freed meanwhile must not be given to others before it is copied
            if piece.local.is_cuda:
                piece.local.record_stream(torch.cuda.current_stream(piece.local.device))


def _cudart() -> Any:
    return torch.cuda.cudart()


def _anonymous_file() -> int:
    if sys.platform == "linux":
        return os.memfd_create("holdfast-staging", os.MFD_CLOEXEC)
    descriptor, path = tempfile.mkstemp(prefix="holdfast-staging-")
    Path(path).unlink()
    return descriptor
