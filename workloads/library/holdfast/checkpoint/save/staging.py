"""The staging memory: one buffer of the state's size, shared with the uploader, touched before it is needed.

A memfd: it has no name that a killed job could leave behind, is not bound by the 64 MiB of a container's /dev/shm, and
counts against the pod's memory like any other. A save copies the state there and goes on.

Decision: infra/decisions/0020.
"""

import mmap
import os
import sys
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from holdfast.checkpoint.failpoints import failpoint
from holdfast.checkpoint.format import Manifest
from holdfast.checkpoint.save.orders import Job
from holdfast.checkpoint.save.uploader_process import upload
from holdfast.checkpoint.settings import Tuning
from holdfast.checkpoint.state.tensors import Piece, dtype_of, memory_of, stream_bytes
from holdfast.checkpoint.stores.storage import Storage

SPARE_BYTES = 64 << 10
"""For what a program adds after its start, such as the random stream of a library that it imports late. A memory that
has to grow is mapped again and touched again, and the save waits for that longer than for its copy."""


class Staging:
    def __init__(self, descriptor: int = -1) -> None:
        """`descriptor`: of a memory that outlives this process, and may hold what a restore needs."""
        self.descriptor = _anonymous_file() if descriptor < 0 else descriptor
        self.bytes = os.fstat(self.descriptor).st_size
        self._buffer = torch.empty(0, dtype=torch.uint8)
        if self.bytes:
            self._buffer = torch.frombuffer(mmap.mmap(self.descriptor, self.bytes), dtype=torch.uint8)
        self._toucher: threading.Thread | None = None
        self._pinned = False
        self._copied: torch.cuda.Event | None = None

    def prepare(self, pieces: list[Piece]) -> None:
        """Make room for `pieces` and touch every page, in the background."""
        if stream_bytes(pieces) > self.bytes:
            self._grow(stream_bytes(pieces) + SPARE_BYTES)
            device = next((piece.local.device for piece in pieces if piece.local.is_cuda), None)
            self._toucher = threading.Thread(target=self._touch, args=(device,), name="stage-touch", daemon=True)
            self._toucher.start()

    def stage(self, pieces: list[Piece]) -> int:
        """Copy; the bytes are there when `wait` returns. The uploader must not be reading."""
        failpoint("stage.begin")
        self.prepare(pieces)
        on_gpu = any(piece.local.is_cuda for piece in pieces)
        if on_gpu:  # no memory is pinned while it is copied to
            self._join()
        copy_into(self._buffer, pieces)
        if on_gpu:
            self._copied = torch.cuda.Event()
            self._copied.record()
        failpoint("stage.end")
        return stream_bytes(pieces)

    @property
    def touching(self) -> bool:
        return self._toucher is not None and self._toucher.is_alive()

    @property
    def copying(self) -> bool:
        """Whether a GPU is still copying what the last `stage` asked for."""
        return self._copied is not None and not self._copied.query()

    def wait(self) -> None:
        """Until the last `stage` is complete: at once for CPU tensors."""
        if self._copied is not None:
            self._copied.synchronize()

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
            self._pinned = False
        length = -(-length // mmap.PAGESIZE) * mmap.PAGESIZE
        # Grown in place and never replaced: the uploader holds this very descriptor.
        os.ftruncate(self.descriptor, length)
        self._buffer = torch.frombuffer(mmap.mmap(self.descriptor, length), dtype=torch.uint8)
        self.bytes = length

    def _touch(self, device: torch.device | None) -> None:
        # Page faults cost more than the copy: taken here, during the first steps, and not in the first save. By reading,
        # since a memory that outlives its process may hold the only copy of this rank's last state.
        self._buffer[:: mmap.PAGESIZE].sum()
        if device is not None:
            with torch.cuda.device(device):  # a thread begins on GPU 0, whose memory a context would take
                code = _cudart().cudaHostRegister(self._buffer.data_ptr(), self.bytes, 0)
            self._pinned = int(code) == 0  # not pinned is slower, not wrong

    def _join(self) -> None:
        if self._toucher is not None:
            self._toucher.join()
            self._toucher = None


def upload_now(storage: Storage, pieces: list[Piece], manifest: Manifest, tuning: Tuning) -> Manifest:
    """One rank's part, uploaded before this returns; `manifest` lacks its shards and tensors. Raises StorageError."""
    # A second copy of this rank's part in host memory, for as long as the upload lasts.
    stream = torch.zeros(stream_bytes(pieces), dtype=torch.uint8)
    copy_into(stream, pieces)
    manifest = replace(manifest, tensors=tuple(piece.part for piece in pieces))
    job = Job(save=1, length=len(stream), shard_bytes=tuning.shard_size(len(stream)), manifest=manifest)
    return upload(storage, memory_of(stream), job, parallel=tuning.parallel)


def copy_into(stream: torch.Tensor, pieces: list[Piece]) -> None:
    """Each piece to its place; from a GPU to pinned memory this only asks for the copies."""
    for piece in pieces:
        part = piece.part
        if part.bytes:
            room = stream[part.at : part.at + part.bytes]
            room.view(_dtype(part.dtype)).view(part.extent).copy_(piece.local, non_blocking=True)


def _cudart() -> Any:
    return torch.cuda.cudart()


def _dtype(name: str) -> torch.dtype:
    found = dtype_of(name)
    assert found is not None, name
    return found


def _anonymous_file() -> int:
    if sys.platform == "linux":
        return os.memfd_create("holdfast-staging", os.MFD_CLOEXEC)
    descriptor, path = tempfile.mkstemp(prefix="holdfast-staging-")
    Path(path).unlink()
    return descriptor
