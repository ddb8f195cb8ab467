"""The staging memory: one buffer of the state's size, shared with the uploader, touched before it
is needed.

It is a memfd: it has no name that a killed job could leave behind, is not bound by the 64 MiB of a
container's /dev/shm, and counts against the pod's memory like any other. A save copies the state
there and training goes on. Frozen parameters that the store has are left out, if their bytes are in
this process: see frozen.py. Those on a GPU are copied each time.

Decisions: infra/decisions/0020, infra/decisions/0174, infra/decisions/0175.
"""

import mmap
import os
import sys
import tempfile
import threading
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from holdfast.checkpoint.failpoints import failpoint
from holdfast.checkpoint.format import Manifest, Shard
from holdfast.checkpoint.save.page_touch import touch_pages
from holdfast.checkpoint.save.uploader import Job
from holdfast.checkpoint.save.uploader_process import upload
from holdfast.checkpoint.settings import Tuning
from holdfast.checkpoint.state import Captured, targets
from holdfast.checkpoint.state.tensors import (
    Piece,
    count_frozen_bytes,
    get_dtype,
    storage_address,
    stream_bytes,
    view_memory,
)
from holdfast.checkpoint.stores.storage import Storage

MIN_RELEASED_BYTES = 1 << 20
SPARE_BYTES = 64 << 10
"""Room for state that a program adds after its start, such as the random stream of a library that
it imports late. A memory that has to grow is mapped and touched again, and the save waits for that
longer than for its copy.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class StagedState:
    """One rank's part of a state, in a staging memory."""

    captured: Captured
    pieces: list[Piece]
    shared: tuple[Shard, ...] = ()
    """Shards that the store has of the stream's beginning, which is not in the memory."""

    @property
    def bytes(self) -> int:
        """Length of the stream."""
        return stream_bytes(self.pieces)

    @property
    def start(self) -> int:
        """Place in the stream before which nothing is staged."""
        return sum(shard.bytes for shard in self.shared)

    @property
    def frozen_bytes(self) -> int:
        """Length of the beginning of the memory that holds parameters that are not trained."""
        return count_frozen_bytes(self.captured, self.pieces) - self.start


class Staging:
    """One staging memory: grows with the state, and is pinned if a GPU copies to it."""

    def __init__(self, descriptor: int = -1) -> None:
        """`descriptor`: a memory that outlives this process, and may hold what a restore needs."""
        self.descriptor = _anonymous_file() if descriptor < 0 else descriptor
        self.bytes = os.fstat(self.descriptor).st_size
        self._memory, self._buffer = _map_buffer(self.descriptor, self.bytes)
        self._used_bytes = self.bytes
        """Length of the beginning of the memory that may have pages."""
        self._toucher: threading.Thread | None = None
        self._pinned: bool | None = None
        """None: not tried yet."""
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._copy_events: list[Any] = []
        """GPU events that complete with the last `stage`."""

    def prepare(self, pieces: list[Piece], start: int = 0) -> None:
        """Makes room for `pieces`; touches every page in the background, and pins it if a GPU will
        copy.

        `start`: place in the stream before which nothing will be staged.
        """
        length = stream_bytes(pieces) - start
        is_too_small = length > self.bytes
        if is_too_small:
            self._grow(length + SPARE_BYTES)
        device = next(iter(_gpus(pieces)), None)
        # A memory that outlived the process that touched it is no longer pinned.
        is_unpinned = device and self._pinned is None and self._toucher is None
        if is_too_small or is_unpinned:
            self._toucher = threading.Thread(
                target=self._touch,
                args=(device,),
                name="stage-touch",
                daemon=True,
            )
            self._toucher.start()

    def stage(
        self,
        pieces: list[Piece],
        *,
        steady: Collection[str] = (),
        start: int = 0,
    ) -> int:
        """Starts the copy, and returns its length. It is complete when `wait` returns. The uploader
        must not be reading.

        `steady`: keys of tensors that do not change until then, which a GPU copies while it goes on
        computing. `start`: place in the stream before which nothing is staged.
        """
        failpoint("stage.begin")
        length = stream_bytes(pieces) - start
        pieces = [piece for piece in pieces if piece.part.at >= start]
        self.prepare(pieces, start)
        if start:
            self._release(length)
        self._used_bytes = max(self._used_bytes, length)
        devices = _gpus(pieces)
        if devices:  # no memory is pinned while it is copied to
            self._join()
        steady_pieces: list[Piece] = []
        changing_pieces: list[Piece] = []
        for piece in pieces:
            group = steady_pieces if piece.part.key in steady else changing_pieces
            group.append(piece)
        copy_into(self._buffer, changing_pieces, start)
        with ExitStack() as streams:
            for device in devices if steady else ():
                stream = self._copy_stream(device)
                streams.enter_context(torch.cuda.stream(stream))
            copy_into(self._buffer, steady_pieces, start)
            # Each GPU has its own streams: those of the current one say nothing about the others.
            self._copy_events = [
                torch.cuda.current_stream(device).record_event() for device in devices
            ]
        failpoint("stage.end")
        return length

    def _copy_stream(self, device: torch.device) -> torch.cuda.Stream:
        """Returns the stream for copies, which begin when the GPU has done its present work."""
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        stream = self._streams[device]
        stream.wait_stream(torch.cuda.current_stream(device))
        return stream

    @property
    def touching(self) -> bool:
        return self._toucher is not None and self._toucher.is_alive()

    @property
    def copying(self) -> bool:
        """True while a GPU is still copying for the last `stage`."""
        return any(not event.query() for event in self._copy_events)

    def wait(self) -> None:
        """Waits until the last `stage` is complete; returns at once for CPU tensors."""
        for event in self._copy_events:
            event.synchronize()

    def close(self) -> None:
        self._join()
        self._unpin()
        self._memory, self._buffer = _map_buffer(self.descriptor, 0)
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def _grow(self, length: int) -> None:
        self._join()
        self._unpin()
        self._pinned = None
        pages = -(-length // mmap.PAGESIZE)
        length = pages * mmap.PAGESIZE
        # Grown in place and never replaced: the uploader holds this very descriptor.
        os.ftruncate(self.descriptor, length)
        self._memory, self._buffer = _map_buffer(self.descriptor, length)
        self.bytes = length
        self._used_bytes = length

    def _release(self, length: int) -> None:
        """Gives back the pages of frozen parameters, which were staged for an earlier save."""
        pages = -(-(length + SPARE_BYTES) // mmap.PAGESIZE)
        kept_bytes = pages * mmap.PAGESIZE
        if self._used_bytes - kept_bytes < MIN_RELEASED_BYTES or not hasattr(mmap, "MADV_REMOVE"):
            return
        self._join()
        # A GPU would go on writing to the pinned pages, which are no longer read.
        if self._memory and not self._pinned:
            self._memory.madvise(mmap.MADV_REMOVE, kept_bytes, self.bytes - kept_bytes)
            self._used_bytes = kept_bytes

    def _unpin(self) -> None:
        if self._pinned:
            _cudart().cudaHostUnregister(self._buffer.data_ptr())

    def _touch(self, device: torch.device | None) -> None:
        # Page faults cost more than the copy: taken here, during the first steps, and not in the
        # first save.
        assert self._memory
        address = self._buffer.data_ptr()
        touch_pages(self._memory, address)
        if device is not None:
            # a thread begins on GPU 0, whose memory a context would take
            with torch.cuda.device(device):
                code = _cudart().cudaHostRegister(address, self.bytes, 0)
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
    """Uploads one rank's part, and returns `manifest` with its shards. Raises StorageError."""
    # A second copy of this rank's part in host memory, for as long as the upload lasts.
    stream = torch.zeros(stream_bytes(pieces), dtype=torch.uint8)
    copy_into(stream, pieces)
    job = Job(
        save=1,
        length=len(stream),
        shard_bytes=tuning.shard_size(len(stream)),
        manifest=manifest,
    )
    return upload(
        storage,
        view_memory(stream),
        job,
        parallel=tuning.parallel,
    )


def steady_keys(state: Mapping[str, Any], captured: Captured) -> frozenset[str]:
    """Returns keys of tensors that only an optimizer's step changes: trained parameters, and the
    optimizer's own state.
    """
    trained: set[int] = set()
    optimizer_prefixes: list[str] = []
    for name, entry in targets(state):
        if isinstance(entry, torch.nn.Module):
            trained |= {storage_address(p) for p in entry.parameters() if p.requires_grad}
        elif isinstance(entry, torch.optim.Optimizer):
            optimizer_prefixes.append(f"{name}/")
    prefixes = tuple(optimizer_prefixes)
    keys: list[str] = []
    for key, tensor in captured.tensors.items():
        is_optimizer_state = key.startswith(prefixes)
        if is_optimizer_state or storage_address(tensor) in trained:
            keys.append(key)
    return frozenset(keys)


def copy_into(stream: torch.Tensor, pieces: list[Piece], start: int = 0) -> None:
    """Copies each piece to its position; from a GPU to pinned memory it only starts the copies.

    `start`: place of the stream with which the memory begins.
    """
    for piece in pieces:
        part = piece.part
        if not part.bytes:
            continue
        position = part.at - start
        target = stream[position : position + part.bytes].view(get_dtype(part))
        target = target.view(part.extent)
        target.copy_(piece.local, non_blocking=True)
        # A tensor that is freed meanwhile must not be overwritten before it is copied.
        if piece.local.is_cuda:
            current = torch.cuda.current_stream(piece.local.device)
            piece.local.record_stream(current)


def _gpus(pieces: list[Piece]) -> set[torch.device]:
    return {piece.local.device for piece in pieces if piece.local.is_cuda}


def _map_buffer(descriptor: int, length: int) -> tuple[mmap.mmap | None, torch.Tensor]:
    if not length:
        return None, torch.empty(0, dtype=torch.uint8)
    memory = mmap.mmap(descriptor, length)
    return memory, torch.frombuffer(memory, dtype=torch.uint8)


def _cudart() -> Any:
    return torch.cuda.cudart()


def _anonymous_file() -> int:
    if sys.platform == "linux":
        return os.memfd_create("holdfast-staging", os.MFD_CLOEXEC)
    descriptor, path = tempfile.mkstemp(prefix="holdfast-staging-")
    Path(path).unlink()
    return descriptor
