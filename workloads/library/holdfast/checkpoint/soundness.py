"""What the objects of one checkpoint must agree on: asked before a commit is written, and before one is restored.

Digests prove that bytes are those of the commit; they do not prove that its author was right. After these checks
every element of every tensor has exactly one place in the stored bytes, and nothing needs more memory than is stored.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from holdfast.checkpoint.decoding import MAX_BYTES
from holdfast.checkpoint.dtypes import item_bytes
from holdfast.checkpoint.errors import Damaged
from holdfast.checkpoint.format import Commit, Manifest, TensorPart
from holdfast.checkpoint.storage import Stat
from holdfast.checkpoint.tiling import check_tiling
from holdfast.contract.printable import printable


def check_committed(commit: Commit, manifests: Sequence[Manifest]) -> None:
    if (held := sum(manifest.length for manifest in manifests)) != commit.total_bytes:
        raise Damaged(f"its manifests list {held} bytes, the commit {commit.total_bytes}")
    check_manifests(manifests)


def check_manifests(manifests: Sequence[Manifest]) -> None:
    """Raises Damaged unless they make up one state."""
    dtypes: dict[str, str] = {}
    for manifest in manifests:
        for part in manifest.tensors:
            if dtypes.setdefault(part.key, part.dtype) != part.dtype:
                raise Damaged(f"{_name(part)} has two dtypes")
            _check_size(part)
        _check_stream(manifest.tensors)
    check_tiling(manifests)


def check_stored(manifest: Manifest, stored: Mapping[str, Stat]) -> None:
    """`stored`: what the store lists below the attempt. Raises Damaged for a shard that is missing or another."""
    for index, shard in enumerate(manifest.shards):
        name = manifest.shard_name(index)
        found = stored.get(name)
        if found is None:
            raise Damaged(f"{name} is missing")
        if found.bytes != shard.bytes or (found.crc32c or shard.crc32c) != shard.crc32c:
            raise Damaged(f"{name} is not stored as it was sent: {found}")


def _check_size(part: TensorPart) -> None:
    size = item_bytes(part.dtype)
    if size is None:
        wanted = "restore with the PyTorch version that wrote it, or a newer one"
        raise Damaged(f"{_name(part)} has a dtype that this PyTorch does not know: {wanted}")
    if math.prod(max(1, length) for length in part.shape) * size > MAX_BYTES:
        raise Damaged(f"{_name(part)} is larger than any memory")
    if math.prod(part.extent) * size != part.bytes:
        raise Damaged(f"{_name(part)} has {part.bytes} bytes for a box of {list(part.extent)}")


def _check_stream(parts: Iterable[TensorPart]) -> None:
    """Two parts in one place would leave one of them unread."""
    filled = sorted((part for part in parts if part.bytes), key=lambda part: part.at)
    for before, after in pairwise(filled):
        if before.at + before.bytes > after.at:
            raise Damaged(f"{_name(before)} and {_name(after)} share bytes")


def _name(part: TensorPart) -> str:
    return f"tensor {printable(part.key, 80)}"
