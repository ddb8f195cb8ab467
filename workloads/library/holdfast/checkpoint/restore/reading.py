"""Reading a committed checkpoint: what it holds, which shards a set of boxes needs, and their
verified bytes.

Nothing is handed out that was not compared with its checksum. Damage raises Damaged; what the
caller must fix (another shape, another format) raises InputError.
"""

import itertools
import mmap
import os
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from operator import itemgetter

import torch

from holdfast.checkpoint.errors import Damaged, NotFound, Preempted
from holdfast.checkpoint.format import Commit, Manifest, TensorPart
from holdfast.checkpoint.format.decoding import (
    MAX_COMMIT_BYTES,
    MAX_MANIFEST_BYTES,
    decode_commit,
    decode_manifest,
)
from holdfast.checkpoint.format.soundness import check_committed, check_stored
from holdfast.checkpoint.state.tensors import Box, boxes_of, memory_of, saved_dtype
from holdfast.checkpoint.stores.storage import Crc32c, Storage, read_object
from holdfast.support import object_names


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardSource:
    rank: int
    part: TensorPart


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A commit and its manifests, digests and agreement checked; tensor bytes not yet read."""

    commit: Commit
    manifests: tuple[Manifest, ...]
    sources: dict[str, list[ShardSource]] = field(default_factory=dict[str, list[ShardSource]])

    def part(self, key: str, rank: int) -> TensorPart:
        """What describes a tensor to `rank`: its own, since an entry of each rank's own may differ
        in shape.
        """
        sources = self.sources[key]
        return next((source.part for source in sources if source.rank == rank), sources[0].part)

    def values(self, rank: int) -> dict[str, object]:
        """The skeleton as `rank` saved it; a rank that did not exist then sees what rank 0 saved."""
        return dict(self.manifests[rank if rank < len(self.manifests) else 0].values)


def open_step(storage: Storage, run: str, step: int) -> Opened:
    """Raises Damaged for whatever is odd; no memory has been allocated for a tensor yet."""
    try:
        data = read_object(storage, object_names.commit_object(run, step), limit=MAX_COMMIT_BYTES)
        commit = decode_commit(data, run=run, step=step)
        names = [
            object_names.manifest_object(run, step, commit.attempt, rank)
            for rank in range(commit.world_size)
        ]
        manifests = tuple(
            decode_manifest(read_object(storage, name, limit=MAX_MANIFEST_BYTES), commit, rank)
            for rank, name in enumerate(names)
        )
        stored = {}
        for found in storage.list(object_names.attempt_prefix(run, step, commit.attempt)):
            stored[found.name] = found
    # Also when retention has deleted the step since it was listed: the next candidate is tried.
    except (NotFound, EOFError) as error:
        raise Damaged(str(error)) from error
    check_committed(commit, manifests)
    for manifest in manifests:
        check_stored(manifest, stored)
    opened = Opened(commit=commit, manifests=manifests)
    for manifest in manifests:
        for part in manifest.tensors:
            opened.sources.setdefault(part.key, []).append(
                ShardSource(rank=manifest.rank, part=part)
            )
    return opened


@dataclass(frozen=True, kw_only=True, slots=True)
class Copy:
    source: ShardSource
    into: torch.Tensor
    """The part of the target that this source fills."""
    start: tuple[int, ...]
    extent: tuple[int, ...]
    """The same part within the source's box."""


def plan(opened: Opened, tensors: Mapping[str, torch.Tensor], *, rank: int) -> list[Copy]:
    """What fills these, of which this rank may hold parts only. Raises Damaged."""
    boxes = (box for key, tensor in tensors.items() for box in boxes_of(key, tensor))
    return [copy for box in boxes for copy in _copies(opened, box, rank)]


def _copies(opened: Opened, want: Box, rank: int) -> list[Copy]:
    if not want.local.numel():
        return []
    # This rank's own file first: after a restart on the same machine it may still be in the page
    # cache.
    sources = sorted(opened.sources.get(want.key, []), key=lambda s: s.rank != rank)
    found = [copy for source in sources if (copy := _overlap(source, want)) is not None]
    whole = next((copy for copy in found if copy.extent == tuple(want.local.shape)), None)
    # One source that holds the whole box spares reading the others' shards.
    if whole is not None:
        return [whole]
    # Replicas of one box, as every rank wrote its own: one of them is enough.
    distinct = list({(c.source.part.offset, c.source.part.extent): c for c in found}.values())
    if sum(copy.into.numel() for copy in distinct) != want.local.numel():
        raise Damaged(f"the shards of tensor {want.key} do not cover it")
    return distinct


def _overlap(source: ShardSource, want: Box) -> Copy | None:
    part = source.part
    into = want.local
    if len(part.shape) != into.ndim:
        return None  # another rank's own entry of this name
    start: list[int] = []
    extent: list[int] = []
    for axis, (have_at, have, want_at) in enumerate(
        zip(part.offset, part.extent, want.offset, strict=True)
    ):
        low = max(have_at, want_at)
        high = min(have_at + have, want_at + want.local.shape[axis])
        if low >= high:
            return None
        start.append(low - have_at)
        extent.append(high - low)
        into = into.narrow(axis, low - want_at, high - low)
    return Copy(
        source=source,
        into=into,
        start=tuple(start),
        extent=tuple(extent),
    )


ByteRange = tuple[int, torch.Tensor]
"""Where in a rank's stream some bytes begin, and the memory that they go to."""


class Transfer:
    """Reads every shard that some copies need once and whole, verifies it, and puts its bytes where
    they belong.

    Bytes go straight to their tensor where a read falls into one, else through small buffers that
    are used again and again: fresh memory costs more to touch than to fill. So a target may have
    been written when damage is found; the caller then overwrites it with an older checkpoint or
    gives up.
    """

    def __init__(
        self,
        storage: Storage,
        opened: Opened,
        *,
        parallel: int,
        stop_asked: Callable[[], bool] = lambda: False,
    ) -> None:
        self._storage = storage
        self._opened = opened
        self._parallel = parallel
        self._stop_asked = stop_asked
        self._ranges: dict[int, list[ByteRange]] = {}
        self._own = threading.local()

    def run(self, copies: Sequence[Copy]) -> None:
        boxes: dict[tuple[int, int], torch.Tensor] = {}
        for copy in copies:
            part, place = copy.source.part, (copy.source.rank, copy.source.part.at)
            if place not in boxes:
                dtype = saved_dtype(part)
                whole = (
                    copy.extent == part.extent
                    and copy.into.is_contiguous()
                    and copy.into.dtype == dtype
                )
                boxes[place] = copy.into if whole else torch.empty(part.extent, dtype=dtype)
                into = boxes[place].detach().view(-1).view(torch.uint8)
                self._ranges.setdefault(copy.source.rank, []).append((part.at, into))
        for ranges in self._ranges.values():
            ranges.sort(key=itemgetter(0))
        needed = sorted({shard for copy in copies for shard in self._shards_of(copy.source)})
        # Where a read is a request, many wait at once; where it is a copy, more threads than cores
        # only queue.
        largest = max(
            (shard.bytes for m in self._opened.manifests for shard in m.shards), default=0
        )
        waits = self._storage.read_bytes > largest
        threads = self._parallel if waits else min(self._parallel, os.cpu_count() or 1)
        with ThreadPoolExecutor(threads, thread_name_prefix="restore") as pool:
            list(pool.map(self._fetch, needed))
        for copy in copies:
            box = boxes[(copy.source.rank, copy.source.part.at)]
            if box is not copy.into:
                part = (
                    slice(at, at + length)
                    for at, length in zip(copy.start, copy.extent, strict=True)
                )
                copy.into.copy_(box[tuple(part)])

    def _shards_of(self, source: ShardSource) -> list[tuple[int, int]]:
        start = source.part.at
        end = source.part.at + source.part.bytes
        stretches = self._opened.manifests[source.rank].stretches()
        return [
            (source.rank, n)
            for n, one in enumerate(stretches)
            if one.start < end and one.stop > start
        ]

    def _fetch(self, which: tuple[int, int]) -> None:
        rank, index = which
        manifest = self._opened.manifests[rank]
        at = sum(shard.bytes for shard in manifest.shards[:index])
        shard = manifest.shards[index]
        name = manifest.shard_name(index)
        running = Crc32c()
        try:
            for start in range(0, shard.bytes, self._storage.read_bytes):
                # no work is at risk yet, and the grace period may be shorter than the restore
                if self._stop_asked():
                    raise Preempted(0)
                length = min(self._storage.read_bytes, shard.bytes - start)
                direct = self._within_one(rank, at + start, length)
                chunk = self._buffer(length) if direct is None else direct
                self._storage.read_into(name, start, chunk)
                running.extend(chunk)
                if direct is None:
                    self._scatter(rank, at + start, chunk)
        except (NotFound, EOFError) as error:
            raise Damaged(str(error)) from error
        # Only after the last byte: a shard that fails has already been written to its tensors.
        if running.hex() != shard.crc32c:
            raise Damaged(f"{name} has crc32c {running.hex()}, committed was {shard.crc32c}")

    def _buffer(self, length: int) -> memoryview:
        """This thread's."""
        if len(getattr(self._own, "buffer", b"")) < length:
            self._own.buffer = memoryview(
                mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            )
        return self._own.buffer[:length]

    def _within_one(self, rank: int, at: int, length: int) -> memoryview | None:
        """The memory of the tensor that takes all of this stretch, where there is one that the CPU
        can write.
        """
        ranges = self._ranges[rank]
        found = bisect_right(ranges, at, key=itemgetter(0)) - 1
        begin, into = ranges[max(0, found)]
        if found < 0 or begin + len(into) < at + length:
            return None
        low = at - begin
        if into.device.type == "cpu":
            return memory_of(into[low : low + length])
        return None

    def _scatter(self, rank: int, at: int, chunk: memoryview) -> None:
        data = torch.frombuffer(chunk, dtype=torch.uint8)
        ranges = self._ranges[rank]
        # Parts of a stream do not overlap, so only the one before the chunk's start can reach into
        # it.
        first = max(0, bisect_left(ranges, at, key=itemgetter(0)) - 1)
        for begin, into in itertools.islice(ranges, first, None):
            if begin >= at + len(chunk):
                break
            low = max(at, begin)
            high = min(at + len(chunk), begin + len(into))
            if low < high:
                into[low - begin : high - begin].copy_(data[low - at : high - at])


def empty_like_saved(part: TensorPart) -> torch.Tensor:
    """Memory for the whole tensor. Raises Damaged where there is not enough."""
    try:
        return torch.empty(part.shape, dtype=saved_dtype(part))
    # A sparse file has any size for nothing; PyTorch reports a refused allocation as RuntimeError.
    except (MemoryError, RuntimeError) as error:
        raise Damaged(
            f"tensor {part.key[:80]} of {list(part.shape)} does not fit into memory"
        ) from error
