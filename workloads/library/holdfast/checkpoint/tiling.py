"""Do the boxes that all ranks wrote make up each tensor exactly, with no hole and no overlap?

Asked before every commit: a checkpoint that lacks a piece of a tensor can never be read, and its tries would push
out the ones that can. Exact in any number of axes and linear in the boxes, so that it costs nothing.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator

from holdfast.checkpoint.errors import Damaged
from holdfast.checkpoint.format import Manifest, TensorPart
from holdfast.checkpoint.skeleton import tensors_in

Box = tuple[tuple[int, ...], tuple[int, ...]]
"""Offset and extent."""
MAX_SPLIT_AXES = 8


def check_tiling(manifests: Iterable[Manifest]) -> None:
    """Raises Damaged with the first tensor that is not whole."""
    # By shape too: an entry of each rank's own may differ in shape from rank to rank, and is whole on each.
    boxes: defaultdict[tuple[str, tuple[int, ...]], set[Box]] = defaultdict(set)
    named: set[str] = set()
    for manifest in manifests:
        named.update(tensors_in(manifest.values))
        for part in manifest.tensors:
            boxes[part.key, part.shape].add(_box(part))
    for key, shape in boxes:
        if not tiles(shape, boxes[key, shape]):
            raise Damaged(f"the boxes of tensor {key} do not make up its shape {list(shape)}")
    if absent := sorted(named - {key for key, _ in boxes}):
        raise Damaged(f"no rank wrote tensor {absent[0]}")


def _box(part: TensorPart) -> Box:
    return part.offset, part.extent


def tiles(shape: tuple[int, ...], boxes: set[Box]) -> bool:
    """Boxes of no elements count for nothing."""
    whole = ((0,) * len(shape), shape)
    if boxes == {whole} or 0 in shape:
        return True
    split = [axis for axis, size in enumerate(shape) if any((o[axis], e[axis]) != (0, size) for o, e in boxes)]
    # Each axis that is split doubles the corners of every box: no layout splits more, and a forger's 60 never end.
    if len(split) > MAX_SPLIT_AXES:
        return False
    whole = _on(split, whole)
    # The signed corners of a set of boxes are the derivative of how often each element is covered, so they cancel
    # to those of the whole if and only if every element is covered once.
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
            sign = 1
            for _, factor in corner:
                sign *= factor
            yield tuple(at for at, _ in corner), sign
