"""Which bytes of the state this rank writes: its boxes of sharded tensors, and its share of replicated ones.

A plain tensor is one box of offset and extent. A DTensor is one, or several where its mesh interleaves ranks on an
axis: FSDP over tensor parallelism shards one axis twice, and not always into one stretch. Pure: every rank computes
the same split from the same state, so nothing is exchanged.
"""

import itertools
import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from holdfast.checkpoint.format.records import TensorPart
from holdfast.checkpoint.state.tensors import as_dtensor, dtype_name, local_of
from holdfast.checkpoint.state.tree import Captured
from holdfast.contract.errors import InputError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.placement_types import Placement

# A stretch of an axis: where it begins in the local tensor and in the whole one, and its length.
Stretch = tuple[int, int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Box:
    """A tensor's part that lives on this rank."""

    key: str
    local: torch.Tensor
    shape: tuple[int, ...]
    offset: tuple[int, ...]
    owned: bool
    """False where a lower rank of a replicated dimension writes the same box."""

    @property
    def bytes(self) -> int:
        return self.local.numel() * self.local.element_size()


def boxes_of(key: str, tensor: torch.Tensor) -> list[Box]:
    """At least one; of no elements where this rank holds nothing."""
    local, shape = local_of(tensor), tuple(tensor.shape)
    if (sharded := as_dtensor(tensor)) is None:
        return [Box(key=key, local=local, shape=shape, offset=(0,) * tensor.ndim, owned=True)]
    _check_placements(key, sharded)
    coordinate = sharded.device_mesh.get_coordinate()
    # Of a replicated mesh axis the first writes. Not by isinstance(Shard): strided shards are of another class.
    first = coordinate is not None and all(
        not placement.is_replicate() or at == 0 for placement, at in zip(sharded.placements, coordinate, strict=True)
    )
    if not local.numel():
        owned = first and not tensor.numel()
        return [Box(key=key, local=local, shape=shape, offset=(0,) * tensor.ndim, owned=owned)]
    axes = _stretches(shape, sharded.device_mesh, tuple(sharded.placements))
    _check_local(key, local, axes)
    return [_box(key, local, shape, chosen, owned=first) for chosen in itertools.product(*axes)]


def _box(key: str, local: torch.Tensor, shape: tuple[int, ...], chosen: tuple[Stretch, ...], *, owned: bool) -> Box:
    for axis, (start, _, length) in enumerate(chosen):
        if length != local.shape[axis]:
            local = local.narrow(axis, start, length)
    return Box(key=key, local=local, shape=shape, offset=tuple(at for _, at, _ in chosen), owned=owned)


@lru_cache(maxsize=65_536)  # asked for every tensor of every save
def _stretches(
    shape: tuple[int, ...], mesh: "DeviceMesh", placements: "tuple[Placement, ...]"
) -> tuple[tuple[Stretch, ...], ...]:
    """For each axis, what this rank holds of it."""
    from torch.distributed.tensor import Shard

    if all(placement.is_replicate() or type(placement) is Shard for placement in placements):
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

        extents, offsets = compute_local_shape_and_global_offset(shape, mesh, placements)
        return tuple(((0, at, length),) for at, length in zip(offsets, extents, strict=True))
    return tuple(_runs(_indices(axis, shape, mesh, placements)) for axis in range(len(shape)))


def _indices(axis: int, shape: tuple[int, ...], mesh: "DeviceMesh", placements: "tuple[Placement, ...]") -> list[int]:
    """Which elements of the axis this rank holds: the placements themselves split a list of all of them."""
    held = torch.arange(shape[axis]).view([-1 if one == axis else 1 for one in range(len(shape))])
    coordinate = mesh.get_coordinate() or []
    for dimension, placement in enumerate(placements):
        if getattr(placement, "dim", None) == axis:
            split = placement._split_tensor  # pyright: ignore[reportAttributeAccessIssue]
            chunks, _ = split(held, mesh.size(dimension), with_padding=False, contiguous=False)
            held = chunks[coordinate[dimension]]
    return held.flatten().tolist()


def _runs(indices: list[int]) -> tuple[Stretch, ...]:
    cuts = [0, *(n for n in range(1, len(indices)) if indices[n] != indices[n - 1] + 1), len(indices)]
    return tuple((start, indices[start], end - start) for start, end in itertools.pairwise(cuts))


def _check_local(key: str, local: torch.Tensor, axes: tuple[tuple[Stretch, ...], ...]) -> None:
    # What is computed from placements is a claim; the memory that is there must bear it out.
    computed = tuple(sum(length for _, _, length in runs) for runs in axes)
    if computed != tuple(local.shape):
        raise InputError(
            f"layout of tensor {key} is not understood",
            got=f"a local part of {list(local.shape)}, computed {list(computed)}",
            allowed="placements that describe the local part",
            fix="redistribute it to Shard and Replicate placements before it is part of the state",
        )


def _check_placements(key: str, tensor: "DTensor") -> None:
    if any(placement.is_partial() for placement in tensor.placements):
        raise InputError(
            f"tensor {key} is a partial sum",
            got=str(tensor.placements),
            allowed="Shard and Replicate placements",
            fix="redistribute it before it is part of the state",
        )


# Tensors begin at multiples of it in a stream: any dtype may be viewed there.
ALIGN = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    part: TensorPart
    local: torch.Tensor


def pieces_of(captured: Captured, rank: int, world_size: int) -> list[Piece]:
    load = [0] * world_size
    mine: list[Box] = []
    for key, tensor in captured.tensors.items():
        boxes = boxes_of(key, tensor)
        if as_dtensor(tensor) is not None or key in captured.per_rank:
            mine += [box for box in boxes if box.owned]
            continue
        (box,) = boxes
        # The least loaded rank, in the order of keys: the same on every rank, whatever its timing.
        writer = load.index(min(load))
        load[writer] += box.bytes
        if writer == rank:
            mine.append(box)
    return laid_out([(_part_of(box), box.local) for box in mine])


def _part_of(box: Box) -> TensorPart:
    return TensorPart(
        key=box.key,
        dtype=dtype_name(box.local.dtype),
        shape=box.shape,
        offset=box.offset,
        extent=tuple(box.local.shape),
        at=0,
        bytes=box.bytes,
    )


def laid_out(parts: list[tuple[TensorPart, torch.Tensor]]) -> list[Piece]:
    """The parts one after the other in a stream."""
    at = 0
    pieces: list[Piece] = []
    for part, local in parts:
        pieces.append(Piece(part=replace(part, at=at), local=local))
        at += math.ceil(part.bytes / ALIGN) * ALIGN
    return pieces


def stream_bytes(pieces: list[Piece]) -> int:
    return pieces[-1].part.at + pieces[-1].part.bytes if pieces else 0
