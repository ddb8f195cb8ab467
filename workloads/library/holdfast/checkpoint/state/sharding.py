"""Computes which elements of a sharded tensor a rank holds, from mesh and placements alone.

Nothing here asks a process group, so that the ranks of a checkpoint of another job can be computed
as well as this one's.
"""

from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from holdfast.checkpoint.format import Sizes

if TYPE_CHECKING:
    from torch.distributed.tensor.placement_types import Placement

# An interval of an axis: its start in the local tensor, its start in the whole one, its length.
Interval = tuple[int, int, int]


@lru_cache(maxsize=65_536)  # called for every tensor of every save
def list_intervals(
    shape: Sizes,
    mesh_shape: Sizes,
    coordinate: Sizes,
    placements: "tuple[Placement, ...]",
) -> tuple[tuple[Interval, ...], ...]:
    """Return the intervals of each axis that the rank at a coordinate of the mesh holds."""
    from torch.distributed.tensor import Shard

    intervals: list[tuple[Interval, ...]] = []
    for axis, size in enumerate(shape):
        splits = _order_splits(axis, mesh_shape, placements)
        if all(type(placement) is Shard for _, placement in splits):
            start = 0
            for dimension, _ in splits:
                # As torch.chunk does: all parts but the last ones have one length.
                length = -(-size // mesh_shape[dimension])
                skipped = min(coordinate[dimension] * length, size)
                start += skipped
                size = min(length, size - skipped)
            intervals.append(((0, start, size),))
        else:
            indices = _list_indices(axis, shape, mesh_shape, coordinate, splits)
            intervals.append(_join(indices))
    return tuple(intervals)


def _order_splits(
    axis: int,
    mesh_shape: Sizes,
    placements: "tuple[Placement, ...]",
) -> "list[tuple[int, Placement]]":
    """Return the dimensions of the mesh that split the axis, in the order of their splits.

    FSDP2 splits what tensor parallelism has split, although its dimension comes first: a strided
    shard. PyTorch 2.8 gives such a shard other elements than it has if they do not divide evenly,
    so it becomes a plain one that splits last.
    """
    from torch.distributed.tensor import Shard

    splits: list[tuple[int, Placement]] = []
    strided: list[int] = []
    later_parts = 1
    for dimension, placement in enumerate(placements):
        if getattr(placement, "dim", None) != axis:
            continue
        splits.append((dimension, placement))
        if hasattr(placement, "split_factor"):
            strided.append(len(splits) - 1)
        elif strided:
            later_parts *= mesh_shape[dimension]
    if len(strided) != 1:
        return splits
    dimension, placement = splits[strided[0]]
    if placement.split_factor != later_parts:  # pyright: ignore[reportAttributeAccessIssue]
        return splits
    del splits[strided[0]]
    return [*splits, (dimension, Shard(axis))]


def _list_indices(
    axis: int,
    shape: Sizes,
    mesh_shape: Sizes,
    coordinate: Sizes,
    splits: "list[tuple[int, Placement]]",
) -> list[int]:
    """Return the elements of the axis that a rank holds.

    The placements themselves split a tensor of all indices.
    """
    view = [1] * len(shape)
    view[axis] = -1
    indices = torch.arange(shape[axis]).view(view)
    for dimension, placement in splits:
        split = placement._split_tensor  # pyright: ignore[reportAttributeAccessIssue]
        chunks, _ = split(
            indices,
            mesh_shape[dimension],
            with_padding=False,
            contiguous=False,
        )
        indices = chunks[coordinate[dimension]]
    return indices.flatten().tolist()


def _join(indices: list[int]) -> tuple[Interval, ...]:
    """Join consecutive indices to intervals."""
    intervals: list[Interval] = []
    start = 0
    for end in range(1, len(indices) + 1):
        is_last = end == len(indices)
        if is_last or indices[end] != indices[end - 1] + 1:
            length = end - start
            intervals.append((start, indices[start], length))
            start = end
    return tuple(intervals)
