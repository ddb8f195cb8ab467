"""Restoring on another number of ranks reads rows where they belong, and only the shards that hold
some of them.
"""

import math
import random
from itertools import pairwise

import torch

from holdfast.checkpoint.format import Commit, Manifest, Shard, TensorPart
from holdfast.checkpoint.restore import reader
from holdfast.checkpoint.restore.reader import Opened, ShardSource, Transfer
from holdfast.checkpoint.state.tensors import Box
from holdfast.checkpoint.stores.storage import crc32c

KEY = "weight"
CASES = 400


class MemoryStorage:
    """Shards in memory, and the addresses of the memory that reads filled."""

    def __init__(self, read_bytes: int) -> None:
        self.read_bytes = read_bytes
        self.shards: dict[str, bytes] = {}
        self.names: set[str] = set()
        self.addresses: list[int] = []

    def read_into(self, name: str, start: int, into: memoryview) -> None:
        self.names.add(name)
        self.addresses.append(torch.frombuffer(into, dtype=torch.uint8).data_ptr())
        into[:] = self.shards[name][start : start + len(into)]


def store(
    storage: MemoryStorage,
    whole: torch.Tensor,
    rank: int,
    *,
    axis: int,
    rows: slice,
    shard_bytes: int,
) -> Manifest:
    """Stores rows of an axis of the tensor as the stream of a rank."""
    tensor = whole.narrow(axis, rows.start, rows.stop - rows.start)
    stream = bytearray(tensor.contiguous().numpy().tobytes())
    offset = [0] * whole.ndim
    offset[axis] = rows.start
    part = TensorPart(
        key=KEY,
        dtype="float32",
        shape=tuple(whole.shape),
        offset=tuple(offset),
        extent=tuple(tensor.shape),
        at=0,
        bytes=len(stream),
    )
    pieces: list[bytearray] = []
    for start in range(0, len(stream), shard_bytes):
        pieces.append(stream[start : start + shard_bytes])
    shards = [Shard(bytes=len(piece), crc32c=crc32c(memoryview(piece))) for piece in pieces]
    manifest = Manifest(
        run="run",
        step=1,
        attempt="a" * 12,
        rank=rank,
        world_size=1,
        shards=tuple(shards),
        tensors=(part,),
        values={},
    )
    for index, piece in enumerate(pieces):
        storage.shards[manifest.shard_name(index)] = bytes(piece)
    return manifest


def restore(
    storage: MemoryStorage,
    manifests: list[Manifest],
    local: torch.Tensor,
    offset: tuple[int, ...],
) -> None:
    """Fills a box of the tensor from the ranks of `manifests`."""
    sources: list[ShardSource] = []
    for manifest in manifests:
        sources.append(ShardSource(rank=manifest.rank, part=manifest.tensors[0]))
    commit = Commit(
        run="run",
        step=1,
        attempt="a" * 12,
        world_size=len(manifests),
        total_bytes=0,
        created=0,
        manifests=(),
    )
    opened = Opened(commit=commit, manifests=tuple(manifests), sources={KEY: sources})
    box = Box(key=KEY, local=local, shape=sources[0].part.shape, offset=offset, owned=True)
    copies = reader._plan_box(opened, box, 0)  # pyright: ignore[reportPrivateUsage]
    Transfer(storage, opened, parallel=2).run(copies)  # type: ignore[arg-type]


def cut(rng: random.Random, length: int, parts: int) -> list[slice]:
    """Divides a range into at most `parts` ranges that are not empty."""
    bounds = {0, length}
    for _ in range(parts - 1):
        bounds.add(rng.randrange(length))
    return [slice(start, end) for start, end in pairwise(sorted(bounds))]


def test_any_box_is_restored_from_any_division() -> None:
    rng = random.Random(1)
    for case in range(CASES):
        shape = [rng.randint(1, 7) for _ in range(rng.randint(1, 3))]
        whole = torch.arange(float(math.prod(shape))).view(shape)
        storage = MemoryStorage(rng.choice([4, 8, 20, 1000]))
        axis = rng.randrange(len(shape))
        shard_bytes = rng.choice([8, 12, 64])
        manifests: list[Manifest] = []
        for rank, rows in enumerate(cut(rng, shape[axis], 4)):
            manifest = store(storage, whole, rank, axis=axis, rows=rows, shard_bytes=shard_bytes)
            manifests.append(manifest)
        box = tuple(rng.choice(cut(rng, length, 3)) for length in shape)
        expected = whole[box]
        local = torch.full(expected.shape, -1.0, dtype=rng.choice([torch.float32, torch.float64]))
        restore(storage, manifests, local, tuple(rows.start for rows in box))
        assert torch.equal(local, expected.to(local.dtype)), case


def test_rows_are_read_into_their_tensor_from_their_shards_alone() -> None:
    whole = torch.arange(48.0).view(12, 4)
    storage = MemoryStorage(read_bytes=16)
    manifest = store(storage, whole, 0, axis=0, rows=slice(0, 12), shard_bytes=32)
    local = torch.zeros(4, 4)
    restore(storage, [manifest], local, (4, 0))
    assert torch.equal(local, whole[4:8])
    # A shard has two rows of 16 bytes.
    assert storage.names == {manifest.shard_name(2), manifest.shard_name(3)}
    begin = local.data_ptr()
    assert sorted(storage.addresses) == [begin, begin + 16, begin + 32, begin + 48]
