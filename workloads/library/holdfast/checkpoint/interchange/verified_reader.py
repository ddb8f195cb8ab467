"""Read the tensors of a checkpoint in blocks of bounded memory, each byte verified.

A shard is read twice: once for its checksum and those of its chunks, and then chunk by chunk.
Every rank may have a part of each tensor, so a chunk of each rank is kept for the next tensor.
"""

import math
from collections.abc import Iterator

import torch

from holdfast.checkpoint.errors import Damaged, NotFound
from holdfast.checkpoint.format import TensorPart
from holdfast.checkpoint.restore.reader import Opened, ShardSource
from holdfast.checkpoint.state.tensors import get_dtype, view_memory
from holdfast.checkpoint.stores.storage import Crc32c, Storage, crc32c

CHUNK_BYTES = 8 << 20
"""Size of a chunk; it is smaller if there are many ranks."""
KEPT_BYTES = 512 << 20
"""The most that kept chunks take."""
BLOCK_BYTES = 32 << 20


class VerifiedReader:
    """The tensors of an opened checkpoint, row by row."""

    def __init__(self, storage: Storage, opened: Opened) -> None:
        self._storage = storage
        self._opened = opened
        self._chunk_sums: dict[str, list[str]] = {}
        """Checksums of the chunks of a verified shard, by its name."""
        self._chunk_bytes = min(CHUNK_BYTES, KEPT_BYTES // max(1, len(opened.manifests)))
        self._chunks: dict[int, tuple[str, int, memoryview]] = {}
        """The newest chunk of each rank, after the name of its shard and its number."""
        self._stretches = [manifest.stretches() for manifest in opened.manifests]

    def read_blocks(self, key: str) -> Iterator[torch.Tensor]:
        """Yield the rows of a tensor in order, some at a time. Raises Damaged."""
        sources = self._opened.sources[key]
        part = sources[0].part
        dtype = get_dtype(part)
        if part.extent == part.shape or not part.shape:
            yield from self._read_linear(sources[0], dtype)
            return
        row_bytes = math.prod(part.shape[1:]) * dtype.itemsize
        rows = max(1, BLOCK_BYTES // max(1, row_bytes))
        for start in range(0, part.shape[0], rows):
            count = min(rows, part.shape[0] - start)
            block = torch.empty((count, *part.shape[1:]), dtype=dtype)
            for source in sources:
                self._copy_rows(source, block, start)
            yield block

    def _read_linear(self, source: ShardSource, dtype: torch.dtype) -> Iterator[torch.Tensor]:
        """Yield flat blocks of a tensor that one part holds whole."""
        length = source.part.bytes
        step = BLOCK_BYTES // dtype.itemsize * dtype.itemsize
        for start in range(0, length, step):
            data = torch.empty(min(step, length - start), dtype=torch.uint8)
            self._read(source.rank, source.part.at + start, view_memory(data))
            yield data.view(dtype)

    def _copy_rows(
        self,
        source: ShardSource,
        block: torch.Tensor,
        start: int,
    ) -> None:
        """Copy to a block, which begins at row `start`, the rows of it that a part has."""
        part = source.part
        first_row = part.offset[0]
        low = max(start, first_row)
        high = min(start + block.shape[0], first_row + part.extent[0])
        if low >= high or not part.bytes:
            return
        row_bytes = part.bytes // part.extent[0]
        shape = (high - low, *part.extent[1:])
        rows = torch.empty(shape, dtype=block.dtype)
        first_byte = part.at + (low - first_row) * row_bytes
        self._read(source.rank, first_byte, view_memory(rows))
        target = block[low - start : high - start]
        target[_find_columns(part)] = rows

    def _read(
        self,
        rank: int,
        start: int,
        into: memoryview,
    ) -> None:
        done = 0
        for index, stretch in enumerate(self._stretches[rank]):
            while done < len(into) and stretch.start <= start + done < stretch.stop:
                inside = start + done - stretch.start
                chunk = self._load_chunk(rank, index, inside // self._chunk_bytes)
                available = chunk[inside % self._chunk_bytes :]
                count = min(len(available), len(into) - done)
                into[done : done + count] = available[:count]
                done += count
                del chunk, available
        if done < len(into):
            raise Damaged("a tensor is outside of its shards")

    def _load_chunk(
        self,
        rank: int,
        index: int,
        number: int,
    ) -> memoryview:
        manifest = self._opened.manifests[rank]
        name = manifest.shard_name(index)
        shard = manifest.shards[index]
        if name not in self._chunk_sums:
            self._chunk_sums[name] = self._verify(name, shard.bytes)
            total = self._chunk_sums[name].pop()
            if total != shard.crc32c:
                raise Damaged(f"{name} differs from what was committed")
        newest = self._chunks.get(rank)
        if newest is None or newest[:2] != (name, number):
            # Released before the next one is fetched.
            newest = None
            self._chunks.pop(rank, None)
            chunk = self._fetch(name, number, shard.bytes)
            if crc32c(chunk) != self._chunk_sums[name][number]:
                raise Damaged(f"{name} changed while it was read")
            newest = (name, number, chunk)
            self._chunks[rank] = newest
        return newest[2]

    def _verify(self, name: str, length: int) -> list[str]:
        """Return the checksums of the chunks of a shard, and that of all of it."""
        checksum = Crc32c()
        chunk_sums: list[str] = []
        for number in range(-(-length // self._chunk_bytes)):
            chunk = self._fetch(name, number, length)
            checksum.extend(chunk)
            chunk_sums.append(crc32c(chunk))
        return [*chunk_sums, checksum.hex()]

    def _fetch(
        self,
        name: str,
        number: int,
        length: int,
    ) -> memoryview:
        start = number * self._chunk_bytes
        chunk = memoryview(bytearray(min(self._chunk_bytes, length - start)))
        try:
            self._storage.read_into(name, start, chunk)
        except (NotFound, EOFError) as error:
            raise Damaged(str(error)) from error
        return chunk


def _find_columns(part: TensorPart) -> tuple[slice, ...]:
    """Return the slices of whole rows that a part covers."""
    slices = [slice(None)]
    for axis in range(1, len(part.shape)):
        start = part.offset[axis]
        slices.append(slice(start, start + part.extent[axis]))
    return tuple(slices)
