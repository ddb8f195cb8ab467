"""Read a committed checkpoint: its contents, and the verified bytes for a set of tensors.

Bytes are compared with their checksum before they count as read. Damage raises Damaged; what the
caller must fix (another shape, another format) raises InputError.
"""

import itertools
import mmap
import os
import threading
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from operator import itemgetter

import torch

from holdfast.checkpoint.errors import Damaged, NotFound, Preempted
from holdfast.checkpoint.format import Commit, Manifest, Sizes, TensorPart
from holdfast.checkpoint.format.commit import list_common_objects
from holdfast.checkpoint.format.decoding import (
    MAX_COMMIT_BYTES,
    MAX_MANIFEST_BYTES,
    decode_commit,
    decode_manifest,
)
from holdfast.checkpoint.format.validation import check_commit, check_shards
from holdfast.checkpoint.state.tensors import Box, get_dtype, list_boxes, view_memory
from holdfast.checkpoint.stores.storage import Crc32c, Storage, read_object
from holdfast.support import object_names


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardSource:
    """A part of a tensor in the stream of a rank."""

    rank: int
    part: TensorPart


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A commit and its manifests, with digests and agreement checked; no tensor is read yet."""

    commit: Commit
    manifests: tuple[Manifest, ...]
    sources: dict[str, list[ShardSource]] = field(default_factory=dict)
    """The parts of each tensor, by key."""

    def part(self, key: str, rank: int) -> TensorPart:
        """Return the description of a tensor for `rank`.

        It is the rank's own if it has one, since a PerRank entry may differ in shape.
        """
        sources = self.sources[key]
        for source in sources:
            if source.rank == rank:
                return source.part
        return sources[0].part

    def values(self, rank: int) -> dict[str, object]:
        """Return the skeleton that `rank` saved; that of rank 0 if `rank` did not exist then."""
        existed = rank < len(self.manifests)
        manifest = self.manifests[rank if existed else 0]
        return dict(manifest.values)


def open_step(
    storage: Storage,
    run: str,
    step: int,
) -> Opened:
    """Read and check a step's commit and manifests. No memory is allocated for its tensors.

    Raises Damaged for anything unexpected.
    """
    try:
        data = read_object(
            storage,
            object_names.commit_object(run, step),
            limit=MAX_COMMIT_BYTES,
        )
        commit = decode_commit(data, run=run, step=step)
        manifests = tuple(_read_manifests(storage, commit))
        listing = storage.list(object_names.attempt_prefix(run, step, commit.attempt))
        stored = {stat.name: stat for stat in listing}
        for manifest in manifests:
            if not manifest.common_names <= stored.keys():
                stored |= list_common_objects(storage, manifest)
    # Also raised if retention has deleted the step since it was listed: the next candidate is
    # tried.
    except (NotFound, EOFError) as error:
        raise Damaged(str(error)) from error
    check_commit(commit, manifests)
    for manifest in manifests:
        check_shards(manifest, stored)
    opened = Opened(commit=commit, manifests=manifests)
    for manifest in manifests:
        for part in manifest.tensors:
            source = ShardSource(rank=manifest.rank, part=part)
            opened.sources.setdefault(part.key, []).append(source)
    return opened


def _read_manifests(storage: Storage, commit: Commit) -> Iterator[Manifest]:
    for rank in range(commit.world_size):
        name = object_names.manifest_object(
            commit.run,
            commit.step,
            commit.attempt,
            rank,
        )
        data = read_object(storage, name, limit=MAX_MANIFEST_BYTES)
        yield decode_manifest(data, commit, rank)


StreamPlace = tuple[int, int]
"""A rank, and an offset in its stream."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Copy:
    """A transfer from a source into a tensor, of the box that both have."""

    source: ShardSource
    into: torch.Tensor
    """Part of the target that this source fills."""
    start: Sizes
    """Offset of the box within the source's box."""
    extent: Sizes

    @property
    def slices(self) -> tuple[slice, ...]:
        """The box within the source's box."""
        slices: list[slice] = []
        for start, length in zip(self.start, self.extent, strict=True):
            slices.append(slice(start, start + length))
        return tuple(slices)

    @property
    def place(self) -> StreamPlace:
        """The place of the source's bytes."""
        return self.source.rank, self.source.part.at

    def find_start(self) -> int | None:
        """Return where the target's bytes begin in the stream; None if they are not one stretch of
        it, because the box does not have whole rows of the source, or the target has another dtype
        or layout.
        """
        part = self.source.part
        if self.into.dtype != get_dtype(part) or not self.into.is_contiguous():
            return None
        if self.extent[1:] != part.extent[1:]:
            return None
        if not part.extent:
            return part.at
        row_bytes = part.bytes // part.extent[0]
        return part.at + self.start[0] * row_bytes


def plan(
    opened: Opened,
    tensors: Mapping[str, torch.Tensor],
    *,
    rank: int,
) -> list[Copy]:
    """Return the copies that fill this rank's parts of the tensors. Raises Damaged."""
    copies: list[Copy] = []
    for key, tensor in tensors.items():
        for box in list_boxes(key, tensor):
            copies += _plan_box(opened, box, rank)
    return copies


def _plan_box(
    opened: Opened,
    box: Box,
    rank: int,
) -> list[Copy]:
    if not box.local.numel():
        return []
    # This rank's own file first: after a restart on the same machine it may still be in the page
    # cache.
    sources = list(opened.sources.get(box.key, []))
    sources.sort(key=lambda source: source.rank != rank)
    # By box: replicas of a box, which every rank wrote, are read from one rank.
    copies: dict[tuple[Sizes, Sizes], Copy] = {}
    for source in sources:
        copy = _overlap(source, box)
        if copy is None:
            continue
        # A source that holds the whole box spares reading the others' shards.
        if copy.extent == tuple(box.local.shape):
            return [copy]
        copies[source.part.offset, source.part.extent] = copy
    copied = sum(copy.into.numel() for copy in copies.values())
    if copied != box.local.numel():
        raise Damaged(f"the shards of tensor {box.key} do not cover it")
    return list(copies.values())


def _overlap(source: ShardSource, box: Box) -> Copy | None:
    """Return the copy of what `source` and `box` have in common; None if that is nothing."""
    part = source.part
    into = box.local
    if len(part.shape) != into.ndim:
        return None  # a PerRank entry of another rank, of the same name
    start: list[int] = []
    extent: list[int] = []
    for axis, box_start in enumerate(box.offset):
        box_end = box_start + box.local.shape[axis]
        part_start = part.offset[axis]
        part_end = part_start + part.extent[axis]
        low = max(part_start, box_start)
        high = min(part_end, box_end)
        if low >= high:
            return None
        start.append(low - part_start)
        extent.append(high - low)
        length = high - low
        into = into.narrow(axis, low - box_start, length)
    return Copy(
        source=source,
        into=into,
        start=tuple(start),
        extent=tuple(extent),
    )


ByteRange = tuple[int, torch.Tensor]
"""Offset of some bytes in a rank's stream, and the memory that they are copied to."""


class Transfer:
    """Reads each shard that some copies need once, verifies it, and fills the tensors.

    Bytes are read directly into their tensor if a read falls within one, else through small buffers
    that are reused: fresh memory takes longer to touch than to fill. So a tensor may have been
    written when damage is found; the caller then overwrites it with an older checkpoint or gives
    up.
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
        # Once, since there may be many thousand tensors.
        self._stretches = [manifest.stretches() for manifest in opened.manifests]
        self._ranges: dict[int, list[ByteRange]] = {}
        """Byte ranges by rank, in the order of its stream."""
        self._thread = threading.local()

    def run(self, copies: Sequence[Copy]) -> None:
        """Fill the tensors. Raises Damaged; Preempted if a stop is asked for before the end."""
        boxes = self._allocate(copies)
        shards: set[tuple[int, int]] = set()
        for rank, ranges in self._ranges.items():
            for start, into in ranges:
                shards.update(self._list_shards(rank, start, start + len(into)))
        with ThreadPoolExecutor(self._count_threads(), thread_name_prefix="restore") as pool:
            list(pool.map(self._fetch, sorted(shards)))
        for copy in copies:
            box = boxes[copy.place]
            if box is not copy.into:
                copy.into.copy_(box[copy.slices])

    def _allocate(self, copies: Sequence[Copy]) -> dict[StreamPlace, torch.Tensor]:
        """Return the memory for each source by its place: the target itself if it can be filled."""
        boxes: dict[StreamPlace, torch.Tensor] = {}
        copy_counts = Counter(copy.place for copy in copies)
        for copy in copies:
            if copy.place in boxes:
                continue
            part = copy.source.part
            box = copy.into
            start = copy.find_start()
            # Another copy may need other rows of the same source.
            has_all_rows = copy.extent == part.extent or copy_counts[copy.place] == 1
            if start is None or not has_all_rows:
                box = torch.empty(part.extent, dtype=get_dtype(part))
                start = part.at
            boxes[copy.place] = box
            into = box.detach().view(-1).view(torch.uint8)
            self._ranges.setdefault(copy.source.rank, []).append((start, into))
        for ranges in self._ranges.values():
            ranges.sort(key=itemgetter(0))
        return boxes

    def _count_threads(self) -> int:
        # If a read is a request, many wait at once; if it is a copy, more threads than cores only
        # queue.
        for manifest in self._opened.manifests:
            for shard in manifest.shards:
                if shard.bytes >= self._storage.read_bytes:
                    return min(self._parallel, os.cpu_count() or 1)
        return self._parallel

    def _list_shards(self, rank: int, start: int, end: int) -> list[tuple[int, int]]:
        """Return the rank and index of each shard that holds bytes of a range of its stream."""
        shards: list[tuple[int, int]] = []
        for index, stretch in enumerate(self._stretches[rank]):
            if stretch.start < end and stretch.stop > start:
                shards.append((rank, index))
        return shards

    def _fetch(self, rank_and_index: tuple[int, int]) -> None:
        rank, index = rank_and_index
        manifest = self._opened.manifests[rank]
        shard = manifest.shards[index]
        shard_start = self._stretches[rank][index].start
        name = manifest.shard_name(index)
        checksum = Crc32c()
        try:
            for start in range(0, shard.bytes, self._storage.read_bytes):
                # No work is at risk yet, and the grace period may be shorter than the restore.
                if self._stop_asked():
                    raise Preempted(0)
                length = min(self._storage.read_bytes, shard.bytes - start)
                target = self._find_target(
                    rank,
                    shard_start + start,
                    length,
                )
                chunk = self._buffer(length) if target is None else target
                self._storage.read_into(name, start, chunk)
                checksum.extend(chunk)
                if target is None:
                    self._scatter(rank, shard_start + start, chunk)
        except (NotFound, EOFError) as error:
            raise Damaged(str(error)) from error
        # Only after the last byte: a shard that fails has already been written to its tensors.
        if checksum.hex() != shard.crc32c:
            raise Damaged(f"{name} has crc32c {checksum.hex()}, committed was {shard.crc32c}")

    def _buffer(self, length: int) -> memoryview:
        """Return a buffer of this thread."""
        if len(getattr(self._thread, "buffer", b"")) < length:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            pages = mmap.mmap(-1, length, flags=flags)
            self._thread.buffer = memoryview(pages)
        return self._thread.buffer[:length]

    def _find_target(
        self,
        rank: int,
        start: int,
        length: int,
    ) -> memoryview | None:
        """Return the memory for some bytes of a stream, if they fall into one tensor on the CPU."""
        ranges = self._ranges[rank]
        index = bisect_right(ranges, start, key=itemgetter(0)) - 1
        if index < 0:
            return None
        range_start, into = ranges[index]
        is_within = start + length <= range_start + len(into)
        if not is_within or into.device.type != "cpu":
            return None
        low = start - range_start
        return view_memory(into[low : low + length])

    def _scatter(
        self,
        rank: int,
        start: int,
        chunk: memoryview,
    ) -> None:
        """Copy a chunk of a stream to the tensors that it belongs to."""
        data = torch.frombuffer(chunk, dtype=torch.uint8)
        end = start + len(chunk)
        ranges = self._ranges[rank]
        # Parts of a stream do not overlap, so only the one before the chunk's start can reach into
        # it.
        next_range = bisect_left(ranges, start, key=itemgetter(0))
        first = max(0, next_range - 1)
        for range_start, into in itertools.islice(ranges, first, None):
            if range_start >= end:
                break
            low = max(start, range_start)
            high = min(end, range_start + len(into))
            if low < high:
                target = into[low - range_start : high - range_start]
                source = data[low - start : high - start]
                target.copy_(source)


def allocate_tensor(part: TensorPart) -> torch.Tensor:
    """Allocate memory for the whole tensor. Raises Damaged if there is not enough."""
    try:
        return torch.empty(part.shape, dtype=get_dtype(part))
    # A sparse file may claim any size; PyTorch reports a refused allocation as RuntimeError.
    except (MemoryError, RuntimeError) as error:
        raise Damaged(
            f"tensor {part.key[:80]} of {list(part.shape)} does not fit into memory"
        ) from error
