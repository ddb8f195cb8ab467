"""Reading a committed checkpoint: what it holds, which shards a set of boxes needs, and their verified bytes.

Nothing is handed out that was not compared with its checksum. Damage raises Damaged; what the caller must
mend (another shape, another format) raises InputError.
"""

import mmap
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import torch

from infra.contract import names
from infra.contract.errors import InputError
from workloads.checkpoint.checksum import crc32c
from workloads.checkpoint.format import (
    MAX_JSON_BYTES,
    Commit,
    Damaged,
    Manifest,
    TensorPart,
    decode_commit,
    decode_manifest,
)
from workloads.checkpoint.pieces import dtype_of
from workloads.checkpoint.storage import NotFound, Storage, StorageError, read_object


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    rank: int
    part: TensorPart


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A commit and its manifests, digests checked; tensor bytes not yet read."""

    commit: Commit
    manifests: tuple[Manifest, ...]
    sources: dict[str, list[Source]] = field(default_factory=dict[str, list[Source]])

    def values(self, rank: int) -> dict[str, object]:
        """The skeleton as `rank` saved it; a rank that did not exist then sees what rank 0 saved."""
        return dict(self.manifests[rank if rank < len(self.manifests) else 0].values)


def open_step(storage: Storage, run: str, step: int) -> Opened:
    try:
        data = read_object(storage, names.commit_object(run, step), limit=MAX_JSON_BYTES)
        commit = decode_commit(data, run=run, step=step)
        manifests = tuple(
            decode_manifest(read_object(storage, commit.manifest_name(rank), limit=MAX_JSON_BYTES), commit, rank)
            for rank in range(commit.world_size)
        )
    except (NotFound, EOFError) as error:
        raise Damaged(str(error)) from error
    opened = Opened(commit=commit, manifests=manifests)
    for manifest in manifests:
        for part in manifest.tensors:
            opened.sources.setdefault(part.key, []).append(Source(rank=manifest.rank, part=part))
    return opened


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """A box of a saved tensor, and the memory that it shall fill."""

    key: str
    offset: tuple[int, ...]
    into: torch.Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Copy:
    source: Source
    into: torch.Tensor
    """The part of the target that this source fills."""
    start: tuple[int, ...]
    extent: tuple[int, ...]
    """The same part within the source's box."""


def plan(opened: Opened, wanted: Iterable[Wanted], *, rank: int) -> list[Copy]:
    return [copy for want in wanted for copy in _copies(opened, want, rank)]


def _copies(opened: Opened, want: Wanted, rank: int) -> list[Copy]:
    if not want.into.numel():
        return []
    sources = sorted(opened.sources.get(want.key, []), key=lambda s: s.rank != rank)
    found = [copy for source in sources if (copy := _overlap(source, want)) is not None]
    whole = next((copy for copy in found if copy.extent == tuple(want.into.shape)), None)
    if whole is not None:
        return [whole]
    distinct = list({(c.source.part.offset, c.source.part.extent): c for c in found}.values())
    if sum(copy.into.numel() for copy in distinct) != want.into.numel():
        raise Damaged(f"the shards of tensor {want.key} do not cover it")
    return distinct


def _overlap(source: Source, want: Wanted) -> Copy | None:
    part = source.part
    into = want.into
    start: list[int] = []
    extent: list[int] = []
    for axis, (have_at, have, want_at) in enumerate(zip(part.offset, part.extent, want.offset, strict=True)):
        low = max(have_at, want_at)
        high = min(have_at + have, want_at + want.into.shape[axis])
        if low >= high:
            return None
        start.append(low - have_at)
        extent.append(high - low)
        into = into.narrow(axis, low - want_at, high - low)
    return Copy(source=source, into=into, start=tuple(start), extent=tuple(extent))


class Streams:
    """The verified bytes of the shards that some copies need."""

    def __init__(self, storage: Storage, opened: Opened, *, parallel: int) -> None:
        self._storage, self._opened, self._parallel = storage, opened, parallel
        self._memory: dict[int, memoryview] = {}

    def fetch(self, copies: Sequence[Copy]) -> None:
        """Reads every shard once, whole, and compares it with its checksum."""
        needed = sorted({shard for copy in copies for shard in self._shards_of(copy.source)})
        for rank in {rank for rank, _ in needed}:
            self._memory[rank] = _anonymous_memory(self._opened.manifests[rank].length)
        with ThreadPoolExecutor(self._parallel, thread_name_prefix="restore") as pool:
            list(pool.map(self._fetch_one, needed))

    def _shards_of(self, source: Source) -> list[tuple[int, int]]:
        start, end = source.part.at, source.part.at + source.part.bytes
        found: list[tuple[int, int]] = []
        at = 0
        for index, shard in enumerate(self._opened.manifests[source.rank].shards):
            if at < end and at + shard.bytes > start:
                found.append((source.rank, index))
            at += shard.bytes
        return found

    def _fetch_one(self, which: tuple[int, int]) -> None:
        rank, index = which
        manifest = self._opened.manifests[rank]
        start = sum(shard.bytes for shard in manifest.shards[:index])
        shard = manifest.shards[index]
        name = manifest.shard_name(index)
        into = self._memory[rank][start : start + shard.bytes]
        try:
            self._storage.read_into(name, 0, into)
        except (NotFound, EOFError) as error:
            raise Damaged(str(error)) from error
        if (found := crc32c(into)) != shard.crc32c:
            raise Damaged(f"{name} has crc32c {found}, committed was {shard.crc32c}")

    def copy(self, copies: Iterable[Copy]) -> None:
        for copy in copies:
            box = self._box(copy.source)
            for axis, (start, length) in enumerate(zip(copy.start, copy.extent, strict=True)):
                box = box.narrow(axis, start, length)
            copy.into.copy_(box)

    def _box(self, source: Source) -> torch.Tensor:
        part = source.part
        memory = self._memory[source.rank][part.at : part.at + part.bytes]
        return torch.frombuffer(memory, dtype=saved_dtype(part)).view(part.extent)


def saved_dtype(part: TensorPart) -> torch.dtype:
    dtype = dtype_of(part.dtype)
    if dtype is None:
        raise InputError(
            f"tensor {part.key} has a dtype that this PyTorch does not know",
            got=part.dtype[:40],
            allowed="the dtypes of the installed PyTorch",
            fix="restore with the PyTorch version that wrote the checkpoint, or a newer one",
        )
    return dtype


def _anonymous_memory(length: int) -> memoryview:
    """Huge pages where the kernel gives them: first touches of small pages cost more than reading them."""
    memory = mmap.mmap(-1, max(length, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if sys.platform == "linux":
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)


UNREADABLE = (Damaged, StorageError)
