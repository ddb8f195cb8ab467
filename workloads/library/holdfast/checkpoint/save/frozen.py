"""Digest frozen parameters where they are, so that what the store has is not staged again.

Their checksums are compared with those of the shards that the newest save named. If one differs,
the whole stream is staged, and the uploader stores what has changed.

Decision: infra/decisions/0175.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import takewhile

import torch

from holdfast.checkpoint.format import Shard
from holdfast.checkpoint.save.shared_shards import MIN_BYTES
from holdfast.checkpoint.state.tensors import ALIGN, Piece, view_memory
from holdfast.checkpoint.stores.storage import Crc32c

_GAP = memoryview(bytearray(ALIGN))
"""The bytes between two tensors of a stream."""


class FrozenParameters:
    """The frozen parameters of one rank, and their shards in the store."""

    def __init__(self, restored: Iterable[Shard] = ()) -> None:
        """`restored`: the shards of this rank's stream that a restore has just verified."""
        self._stored: tuple[Shard, ...] = ()
        self._ahead: tuple[Shard, ...] | None = None
        """Shards that were found ahead of the save; None: the save digests by itself."""
        self.record(restored)

    def record(self, shards: Iterable[Shard]) -> None:
        """Remember the shards of a stream that the store has."""
        # The first that is not shared changes with each save, and no later one is looked for.
        self._stored = tuple(takewhile(lambda shard: shard.sha256, shards))

    def may_skip(self, pieces: list[Piece], frozen_bytes: int, shard_bytes: int) -> bool:
        """Return whether the store may have the frozen parameters, by their sizes and memory."""
        if frozen_bytes < MIN_BYTES:
            return False
        stretches = split_stream(frozen_bytes, shard_bytes)
        if [len(stretch) for stretch in stretches] != [shard.bytes for shard in self._stored]:
            return False
        return all(_is_readable(piece.local) for piece in _list_frozen(pieces, frozen_bytes))

    def find_stored(
        self,
        pieces: list[Piece],
        frozen_bytes: int,
        shard_bytes: int,
    ) -> tuple[Shard, ...]:
        """Return the shards that hold the frozen parameters; empty if any byte has changed."""
        ahead = self._ahead
        self._ahead = None
        if ahead is not None:
            return ahead
        if not self.may_skip(pieces, frozen_bytes, shard_bytes):
            return ()
        frozen = _list_frozen(pieces, frozen_bytes)
        # A checksum leaves the interpreter's lock to other threads.
        with ThreadPoolExecutor(torch.get_num_threads(), thread_name_prefix="digest") as pool:
            stretches = split_stream(frozen_bytes, shard_bytes)
            checksums = pool.map(partial(_digest, frozen), stretches)
            for shard, checksum in zip(self._stored, checksums, strict=True):
                if shard.crc32c != checksum:
                    pool.shutdown(cancel_futures=True)
                    return ()
        return self._stored

    @property
    def is_digested(self) -> bool:
        """True if the next save need not digest."""
        return self._ahead is not None

    def keep(self, shards: tuple[Shard, ...]) -> None:
        """Keep what was found for the next save, before which nothing may change."""
        # The save in flight may be the one that stores them.
        if shards:
            self._ahead = shards


def split_stream(length: int, size: int) -> list[range]:
    return [range(start, min(start + size, length)) for start in range(0, length, size)]


def _list_frozen(pieces: list[Piece], frozen_bytes: int) -> list[Piece]:
    return [piece for piece in pieces if piece.part.at < frozen_bytes and piece.part.bytes]


def _is_readable(tensor: torch.Tensor) -> bool:
    """Return whether the bytes of a tensor are those of the stream, in memory of this process."""
    return tensor.device.type == "cpu" and tensor.is_contiguous()


def _digest(pieces: list[Piece], stretch: range) -> str:
    """Return the checksum of a stretch of the stream."""
    checksum = Crc32c()
    for data in read_stretch(pieces, stretch):
        checksum.extend(data)
    return checksum.hex()


def read_stretch(pieces: list[Piece], stretch: range) -> Iterator[memoryview]:
    """Yield the bytes of a stretch of the stream, which are not copied."""
    position = stretch.start
    first = bisect_right(pieces, position, key=lambda piece: piece.part.at) - 1
    for piece in pieces[first:]:
        part = piece.part
        if part.at >= stretch.stop:
            break
        if part.at > position:
            yield _GAP[: part.at - position]
            position = part.at
        end = min(part.at + part.bytes, stretch.stop)
        if position < end:
            yield view_memory(piece.local)[position - part.at : end - part.at]
            position = end
    yield _GAP[: stretch.stop - position]
