"""What a manifest may hold, and what the manifests of one checkpoint must agree on.

A skeleton is a saved state without its tensors, as `state` encodes it; it is walked without
recursion, so that depth costs no stack. Digests prove that bytes are those of the commit; they do
not prove that its author was right. After these checks, before a commit is written and before one
is restored, every element of every tensor has exactly one place in the stored bytes, and nothing
needs more memory than is stored.
"""

import itertools
import math
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import pairwise
from typing import Any

from holdfast.checkpoint.errors import Damaged, NotFound
from holdfast.checkpoint.format import MAX_BYTES, Commit, Manifest, TensorPart
from holdfast.checkpoint.stores.storage import Stat, Storage, crc32c
from holdfast.support.printable import printable

Json = Any

# Of JSON: each mapping of a state takes three levels. Decoding is recursive, and Python's stack
# ends near 1,000.
MAX_DEPTH = 200
FLOATS = ("nan", "inf", "-inf")
MAPPINGS = ("$map", "$ordered", "$counter")
# Factories of defaultdict that need no import to be made again; "" means none.
FACTORIES = ("", "int", "float", "bool", "str", "list", "dict", "set")
NUMPY_DTYPES = frozenset(
    [
        "|b1",
        "|i1",
        "|u1",
        "<i2",
        "<i4",
        "<i8",
        "<u2",
        "<u4",
        "<u8",
        "<f2",
        "<f4",
        "<f8",
        "<c8",
        "<c16",
    ]
)
_HEX = re.compile("([0-9a-f]{2})*")
# Written by the checkpointer: what it has learnt of this run (plain JSON, no skeleton).
NOTES_KEY = "__notes__"


def check_values(values: Json) -> dict[str, Json]:
    """`values` of a manifest. Raises ValueError."""
    if type(values) is not dict:
        raise ValueError("values are no object")
    tensors_in(values)
    _check_notes(values.get(NOTES_KEY, {}))
    return values


def tensors_in(values: dict[str, Json]) -> set[str]:
    """Keys of the tensors that some values name. Raises ValueError."""
    entries = [entry for name, entry in values.items() if name != NOTES_KEY]
    return {content for kind, content in nodes(entries) if kind == "$tensor"}


def nodes(entries: list[Json]) -> Iterator[tuple[str, Json]]:
    """Every marked node below some skeletons as kind and content. Raises ValueError at what is no
    skeleton.
    """
    # A list and no recursion: a forged depth of a million would end the process and not the read.
    waiting = [(entry, 1) for entry in entries]
    while waiting:
        node, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise ValueError(f"values are nested deeper than {MAX_DEPTH}")
        if isinstance(node, list):
            waiting += [(item, depth + 1) for item in node]
        elif isinstance(node, dict):
            if len(node) != 1:
                raise ValueError("a node has more or fewer than one mark")
            ((kind, content),) = node.items()
            yield kind, content
            waiting += [(item, depth + 1) for item in _below(kind, content)]


def _below(kind: str, content: Json) -> list[Json]:
    if kind == "$tensor" and isinstance(content, str):
        return []
    if kind in _SCALARS and _SCALARS[kind](content):
        return []
    if kind == "$tuple" and isinstance(content, list):
        return content
    if kind in MAPPINGS and isinstance(content, list):
        return [_item(pair) for pair in content]
    if (
        kind == "$default"
        and _is_pair(content)
        and content[0] in FACTORIES
        and isinstance(content[1], list)
    ):
        return [_item(pair) for pair in content[1]]
    raise ValueError(f"mark {kind[:20]!r} is unknown or holds something else")


def _is_pair(content: Json) -> bool:
    return isinstance(content, list) and len(content) == 2 and isinstance(content[0], str | int)


def _is_bytes(content: Json) -> bool:
    return isinstance(content, str) and bool(_HEX.fullmatch(content))


def _is_numpy(content: Json) -> bool:
    known = _is_pair(content) and content[0] in NUMPY_DTYPES and _is_bytes(content[1])
    return known and len(content[1]) == 2 * int(content[0][2:])


def _is_size(content: Json) -> bool:
    return isinstance(content, list) and all(type(n) is int and 0 <= n < 1 << 63 for n in content)


_SCALARS: dict[str, Callable[[Json], bool]] = {
    "$float": lambda content: content in FLOATS,
    "$bytes": _is_bytes,
    "$numpy": _is_numpy,
    "$size": _is_size,
}


def _item(pair: Json) -> Json:
    if not isinstance(pair, list) or len(pair) != 2 or type(pair[0]) not in (str, int):
        raise ValueError("a mapping holds something else than pairs of a key and a value")
    return pair[1]


def _check_notes(notes: Json) -> None:
    """What restore reads of them without looking again."""
    if type(notes) is not dict:
        raise ValueError("notes are no object")
    if notes:
        hazard = notes["hazard"]
        numbers = [*hazard["events"], *hazard["exposure_s"]]
        if not all(type(n) in (int, float) and 0 <= n < 1e15 for n in numbers):
            raise ValueError("notes hold something else than counts and seconds")


# Bytes of an element, known without PyTorch: an uploader has to start fast and stay small.
ITEM_BYTES = {
    **dict.fromkeys(("bool", "int8", "uint8", "qint8", "quint8"), 1),
    **dict.fromkeys(
        ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"), 1
    ),
    **dict.fromkeys(("bfloat16", "float16", "int16", "uint16"), 2),
    **dict.fromkeys(("float32", "int32", "uint32", "complex32", "qint32"), 4),
    **dict.fromkeys(("float64", "int64", "uint64", "complex64"), 8),
    "complex128": 16,
}


def check_committed(commit: Commit, manifests: Sequence[Manifest]) -> None:
    """Raises Damaged unless the manifests are one state, of the size that the commit says."""
    held = sum(manifest.length for manifest in manifests)
    if held != commit.total_bytes:
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
    """`stored`: what the store lists below the attempt. Raises Damaged for a shard that is missing
    or another.
    """
    for index, shard in enumerate(manifest.shards):
        name = manifest.shard_name(index)
        found = stored.get(name)
        if found is None:
            raise Damaged(f"{name} is missing")
        if found.bytes != shard.bytes or (found.crc32c or shard.crc32c) != shard.crc32c:
            raise Damaged(f"{name} is not stored as it was sent: {found}")


def read_shard(storage: Storage, manifest: Manifest, index: int) -> memoryview:
    """Whole. Raises Damaged unless it is what was committed."""
    shard = manifest.shards[index]
    name = manifest.shard_name(index)
    data = memoryview(bytearray(shard.bytes))
    try:
        storage.read_into(name, 0, data)
    except (NotFound, EOFError) as error:
        raise Damaged(str(error)) from error
    if crc32c(data) != shard.crc32c:
        raise Damaged(f"{name} is not what was committed")
    return data


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


Box = tuple[tuple[int, ...], tuple[int, ...]]
"""Offset and extent."""
MAX_SPLIT_AXES = 8


def check_tiling(manifests: Iterable[Manifest]) -> None:
    """Raises Damaged with the first tensor that is not whole."""
    # By shape too: an entry of each rank's own may differ in shape from rank to rank, and is whole
    # on each.
    boxes: defaultdict[tuple[str, tuple[int, ...]], set[Box]] = defaultdict(set)
    named: set[str] = set()
    for manifest in manifests:
        named.update(tensors_in(manifest.values))
        for part in manifest.tensors:
            boxes[part.key, part.shape].add((part.offset, part.extent))
    for key, shape in boxes:
        if not tiles(shape, boxes[key, shape]):
            raise Damaged(f"the boxes of tensor {key} do not make up its shape {list(shape)}")
    absent = sorted(named - {key for key, _ in boxes})
    if absent:
        raise Damaged(f"no rank wrote tensor {absent[0]}")


def tiles(shape: tuple[int, ...], boxes: set[Box]) -> bool:
    """Boxes of no elements count for nothing."""
    whole = ((0,) * len(shape), shape)
    if boxes == {whole} or 0 in shape:
        return True
    split = []
    for axis, size in enumerate(shape):
        if any((o[axis], e[axis]) != (0, size) for o, e in boxes):
            split.append(axis)
    # Each axis that is split doubles the corners of every box: no layout splits more, and a
    # forger's 60 never end.
    if len(split) > MAX_SPLIT_AXES:
        return False
    whole = _on(split, whole)
    # The signed corners of a set of boxes are the derivative of how often each element is covered,
    # so they cancel to those of the whole if and only if every element is covered once.
    corners: defaultdict[tuple[int, ...], int] = defaultdict(int)
    for box in boxes:
        for corner, sign in _corners(_on(split, box)):
            corners[corner] += sign
    for corner, sign in _corners(whole):
        corners[corner] -= sign
    return not any(corners.values())


def _on(axes: list[int], box: Box) -> Box:
    offset, extent = box
    return tuple(offset[axis] for axis in axes), tuple(extent[axis] for axis in axes)


def _corners(box: Box) -> Iterator[tuple[tuple[int, ...], int]]:
    offset, extent = box
    if all(extent):
        ends = [((at, 1), (at + length, -1)) for at, length in zip(offset, extent, strict=True)]
        for corner in itertools.product(*ends):
            yield tuple(at for at, _ in corner), math.prod(sign for _, sign in corner)


def item_bytes(name: str) -> int | None:
    """None for a name that is no dtype of this PyTorch."""
    # Where PyTorch is loaded it decides: an older one may lack a dtype. A dtype newer than the
    # table is worth a start.
    if "torch" not in sys.modules and name in ITEM_BYTES:
        return ITEM_BYTES[name]
    torch = import_module("torch")
    dtype: Any = getattr(torch, name, None)
    return dtype.itemsize if isinstance(dtype, torch.dtype) else None
