"""Validate manifests: what one may hold, and what the manifests of one checkpoint must agree on.

A skeleton is a saved state without its tensors, as `state` encodes it. It is walked without
recursion, so that its depth costs no stack. Digests prove that bytes are those of the commit; they
do not prove that its author was right. These checks run before a commit is written and before one
is restored. After them, every element of every tensor has exactly one place in the stored bytes,
and nothing needs more memory than is stored.
"""

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from holdfast.checkpoint.errors import Damaged, NotFound
from holdfast.checkpoint.format import MAX_BYTES, Commit, Manifest, Sizes, TensorPart
from holdfast.checkpoint.format.dtypes import item_bytes
from holdfast.checkpoint.stores.storage import Stat, Storage, crc32c
from holdfast.support.printable import printable

Json = Any

# Levels of JSON: each mapping of a state takes three. Decoding is recursive, and Python's stack
# ends near 1,000.
MAX_DEPTH = 200
FLOATS = ("nan", "inf", "-inf")
MAPPINGS = ("$map", "$ordered", "$counter")
# Python refuses to write or read a number of more than 4,300 digits.
MAX_INT_BITS = 14_000
# Factories of a defaultdict that can be found again without an import; "" means none.
FACTORIES = ("", "int", "float", "bool", "str", "list", "dict", "set")
_NUMPY_BYTES = ("|b1", "|i1", "|u1")
_NUMPY_WORDS = ("<i2", "<i4", "<i8", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16")
NUMPY_DTYPES = frozenset(_NUMPY_BYTES + _NUMPY_WORDS)
_HEX = re.compile("([0-9a-f]{2})*")
# The checkpointer's notes about the run (plain JSON, no skeleton).
NOTES_KEY = "__notes__"


def check_values(values: Json) -> dict[str, Json]:
    """Return the `values` of a manifest. Raises ValueError if they are malformed."""
    if type(values) is not dict:
        raise ValueError("values are not an object")
    list_tensor_keys(values)
    _check_notes(values.get(NOTES_KEY, {}))
    return values


def list_tensor_keys(values: dict[str, Json]) -> set[str]:
    """Return the keys of the tensors that `values` name. Raises ValueError."""
    entries = dict(values)
    entries.pop(NOTES_KEY, None)
    keys: set[str] = set()
    for mark, content in walk_nodes([*entries.values()]):
        if mark == "$tensor":
            keys.add(content)
    return keys


def walk_nodes(entries: list[Json]) -> Iterator[tuple[str, Json]]:
    """Yield the mark and content of every marked node below some skeletons.

    Raises ValueError at anything that is no skeleton.
    """
    # A list instead of recursion: a forged depth of a million would crash the whole process.
    waiting: list[tuple[Json, int]] = [(entries, 0)]
    while waiting:
        node, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise ValueError(f"values are nested deeper than {MAX_DEPTH}")
        children: list[Json] = []
        if isinstance(node, list):
            children = node
        elif isinstance(node, dict):
            if len(node) != 1:
                raise ValueError("a node has more or fewer than one mark")
            ((mark, content),) = node.items()
            yield mark, content
            children = _list_children(mark, content)
        for child in children:
            waiting.append((child, depth + 1))


def _list_children(mark: str, content: Json) -> list[Json]:
    """Return the skeletons inside a marked node. Raises ValueError."""
    if mark == "$tensor" and isinstance(content, str):
        return []
    if mark in _SCALARS and _SCALARS[mark](content):
        return []
    if mark == "$tuple" and isinstance(content, list):
        return content
    if mark in MAPPINGS and isinstance(content, list):
        return _list_items(content)
    if mark == "$wrapped" and isinstance(content, list) and len(content) == 5:
        type_name, settings, size, stride, pairs = content
        if isinstance(type_name, str) and isinstance(pairs, list):
            return [
                settings,
                size,
                stride,
                *_list_items(pairs),
            ]
    if mark == "$default" and _is_pair(content):
        factory, pairs = content
        if factory in FACTORIES and isinstance(pairs, list):
            return _list_items(pairs)
    raise ValueError(f"mark {mark[:20]!r} is unknown or holds something else")


def _list_items(pairs: list[Json]) -> list[Json]:
    """Return the values of a mapping's pairs. Raises ValueError."""
    items: list[Json] = []
    for pair in pairs:
        # True is an int for isinstance, but no key.
        if not _is_pair(pair) or type(pair[0]) is bool:
            raise ValueError("a mapping holds something else than pairs of a key and a value")
        items.append(pair[1])
    return items


def _is_pair(content: Json) -> bool:
    if not isinstance(content, list) or len(content) != 2:
        return False
    return isinstance(content[0], str | int)


def _is_bytes(content: Json) -> bool:
    return isinstance(content, str) and bool(_HEX.fullmatch(content))


def _is_numpy(content: Json) -> bool:
    if not _is_pair(content):
        return False
    dtype, data = content
    if dtype not in NUMPY_DTYPES or not _is_bytes(data):
        return False
    item_size = int(dtype[2:])
    return len(data) == 2 * item_size


def _is_size(content: Json) -> bool:
    if not isinstance(content, list):
        return False
    return all(_is_length(item) for item in content)


def _is_dtype(content: Json) -> bool:
    return isinstance(content, str) and content.isidentifier() and len(content) <= 40


def _is_length(item: Json) -> bool:
    return type(item) is int and 0 <= item < 1 << 63


_SCALARS: dict[str, Callable[[Json], bool]] = {
    "$float": lambda content: content in FLOATS,
    "$bytes": _is_bytes,
    "$numpy": _is_numpy,
    "$size": _is_size,
    "$dtype": _is_dtype,
}


def _check_notes(notes: Json) -> None:
    """Raise ValueError unless restore can use the notes without another check."""
    if type(notes) is not dict:
        raise ValueError("notes are not an object")
    if not notes:
        return
    hazard = notes["hazard"]
    for number in (*hazard["events"], *hazard["exposure_s"]):
        is_number = type(number) in (int, float)
        if not is_number or not 0 <= number < 1e15:
            raise ValueError("notes hold something else than counts and seconds")


def check_commit(commit: Commit, manifests: Sequence[Manifest]) -> None:
    """Raise Damaged unless the manifests are one state, of the size that the commit says."""
    listed_bytes = sum(manifest.length for manifest in manifests)
    if listed_bytes != commit.total_bytes:
        raise Damaged(f"its manifests list {listed_bytes} bytes, the commit {commit.total_bytes}")
    check_manifests(manifests)


def check_manifests(manifests: Sequence[Manifest]) -> None:
    """Raise Damaged unless the manifests make up one state."""
    dtypes: dict[str, str] = {}
    for manifest in manifests:
        for part in manifest.tensors:
            dtype = dtypes.setdefault(part.key, part.dtype)
            if dtype != part.dtype:
                raise Damaged(f"{_describe(part)} has two dtypes")
            _check_size(part)
        _check_stream(manifest.tensors)
    check_tiling(manifests)


def check_shards(manifest: Manifest, stored: Mapping[str, Stat]) -> None:
    """Raise Damaged if a shard is missing from `stored` or differs there.

    `stored` is the store's listing of the attempt, by name.
    """
    for index, shard in enumerate(manifest.shards):
        name = manifest.shard_name(index)
        stat = stored.get(name)
        if stat is None:
            raise Damaged(f"{name} is missing")
        same_checksum = not stat.crc32c or stat.crc32c == shard.crc32c
        if stat.bytes != shard.bytes or not same_checksum:
            raise Damaged(f"{name} is not stored as it was sent: {stat}")


def read_shard(
    storage: Storage,
    manifest: Manifest,
    index: int,
) -> memoryview:
    """Read a whole shard. Raises Damaged unless it is the one that was committed."""
    shard = manifest.shards[index]
    name = manifest.shard_name(index)
    data = memoryview(bytearray(shard.bytes))
    try:
        storage.read_into(name, 0, data)
    except (NotFound, EOFError) as error:
        raise Damaged(str(error)) from error
    if crc32c(data) != shard.crc32c:
        raise Damaged(f"{name} differs from what was committed")
    return data


def _check_size(part: TensorPart) -> None:
    size = item_bytes(part.dtype)
    if size is None:
        raise Damaged(
            f"{_describe(part)} has a dtype that this PyTorch does not know: restore with the"
            " PyTorch version that wrote it, or a newer one"
        )
    # An empty axis counts as one element: its other axes may still be too large to allocate.
    max_elements = math.prod(max(1, length) for length in part.shape)
    if max_elements * size > MAX_BYTES:
        raise Damaged(f"{_describe(part)} is larger than any memory")
    elements = math.prod(part.extent)
    if elements * size != part.bytes:
        box = list(part.extent)
        raise Damaged(f"{_describe(part)} has {part.bytes} bytes for a box of {box}")


def _check_stream(parts: Iterable[TensorPart]) -> None:
    """Raise Damaged if two parts share bytes of the stream: one of them would not be read."""
    filled = [part for part in parts if part.bytes]
    filled.sort(key=lambda part: part.at)
    for before, after in pairwise(filled):
        if before.at + before.bytes > after.at:
            raise Damaged(f"{_describe(before)} and {_describe(after)} share bytes")


def _describe(part: TensorPart) -> str:
    return f"tensor {printable(part.key, 80)}"


Box = tuple[Sizes, Sizes]
"""Offset and extent of a part."""
MAX_SPLIT_AXES = 8


def check_tiling(manifests: Iterable[Manifest]) -> None:
    """Raise Damaged with the first tensor that is not whole."""
    # Grouped by shape too: an entry that differs between ranks may have another shape on each, and
    # is whole on each.
    boxes: dict[tuple[str, Sizes], set[Box]] = {}
    referenced_keys: set[str] = set()
    written_keys: set[str] = set()
    for manifest in manifests:
        referenced_keys.update(list_tensor_keys(manifest.values))
        for part in manifest.tensors:
            written_keys.add(part.key)
            tensor_boxes = boxes.setdefault((part.key, part.shape), set())
            tensor_boxes.add((part.offset, part.extent))
    for (key, shape), tensor_boxes in boxes.items():
        if not tiles(shape, tensor_boxes):
            raise Damaged(f"the boxes of tensor {key} do not make up its shape {list(shape)}")
    absent = sorted(referenced_keys - written_keys)
    if absent:
        raise Damaged(f"no rank wrote tensor {absent[0]}")


def tiles(shape: Sizes, boxes: set[Box]) -> bool:
    """Return whether the boxes cover every element of `shape` exactly once.

    Boxes without elements do not count.
    """
    origin = (0,) * len(shape)
    whole = (origin, shape)
    if boxes == {whole} or 0 in shape:
        return True
    split_axes: list[int] = []
    for axis, size in enumerate(shape):
        if _splits_axis(boxes, axis, size):
            split_axes.append(axis)
    # Each axis that is split doubles the corners of every box: no layout splits more axes, and a
    # forger's 60 would take forever.
    if len(split_axes) > MAX_SPLIT_AXES:
        return False
    # The signed corners of a set of boxes are the derivative of how often each element is covered,
    # so they cancel to those of the whole if and only if every element is covered once.
    balance: Counter[Sizes] = Counter()
    for box in boxes:
        projected_box = _project(box, split_axes)
        for corner, sign in _list_corners(projected_box):
            balance[corner] += sign
    projected_whole = _project(whole, split_axes)
    for corner, sign in _list_corners(projected_whole):
        balance[corner] -= sign
    return not any(balance.values())


def _splits_axis(
    boxes: set[Box],
    axis: int,
    size: int,
) -> bool:
    whole = (0, size)
    return any((offset[axis], extent[axis]) != whole for offset, extent in boxes)


def _project(box: Box, axes: list[int]) -> Box:
    offset, extent = box
    projected_offset = tuple(offset[axis] for axis in axes)
    projected_extent = tuple(extent[axis] for axis in axes)
    return projected_offset, projected_extent


def _list_corners(box: Box) -> Iterator[tuple[Sizes, int]]:
    """Yield the corners of a box, with sign -1 for an odd number of far ends."""
    offset, extent = box
    if not all(extent):
        return
    for far_ends in itertools.product((False, True), repeat=len(offset)):
        corner = list(offset)
        sign = 1
        for axis, is_far in enumerate(far_ends):
            if is_far:
                corner[axis] += extent[axis]
                sign = -sign
        yield tuple(corner), sign
