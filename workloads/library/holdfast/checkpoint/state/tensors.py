"""Tensors as memory: whether one can be stored, and which bytes of the state this rank writes.

Of a sharded tensor a rank writes its boxes, of the replicated ones its share. A plain tensor is one
box of offset and extent. A DTensor is one, or several where its mesh interleaves ranks on an axis:
FSDP over tensor parallelism shards one axis twice, and not always into one stretch. Pure: every
rank computes the same split from the same state, so nothing is exchanged.
"""

import ctypes
import itertools
import math
import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, cast

import torch

from holdfast.checkpoint.format import TensorPart
from holdfast.support.errors import InputError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.placement_types import Placement

    from holdfast.checkpoint.state import Captured

# PyTorch names these and cannot copy them.
NO_KERNEL = {f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8)} | {
    "quint2x4",
    "quint4x2",
}


def storable(tensor: torch.Tensor, key: str) -> torch.Tensor:
    """The live tensor without its graph. Raises InputError."""
    # First: every other call on a lazy parameter raises.
    if torch.nn.parameter.is_lazy(tensor):
        raise _refused(
            key,
            "a parameter without a shape",
            "run one batch through the lazy module before the start",
        )
    if type(tensor).__name__ == "ShardedTensor":
        raise _refused(
            key,
            "a ShardedTensor of FSDP1",
            "give FSDP a device_mesh, or use fully_shard (FSDP2): DTensors",
        )
    if (
        tensor.is_nested
        or tensor.layout is not torch.strided
        or tensor.is_quantized
        or tensor.device.type == "meta"
    ):
        kind = "nested, " if tensor.is_nested else "quantized, " if tensor.is_quantized else ""
        got = f"layout {tensor.layout}, {kind}device {tensor.device}"
        raise _refused(key, got, "convert it to a dense tensor, or leave it out of the state")
    tensor = tensor.detach()
    local = local_of(tensor)
    # A copy would unwrap it, and what comes back would be another tensor than the one that was
    # saved.
    if hasattr(type(local), "__tensor_flatten__"):
        raise _refused(
            key,
            f"a {type(local).__name__}, which wraps other tensors",
            "save the tensors that it wraps",
        )
    if str(local.dtype).removeprefix("torch.") in NO_KERNEL:
        raise _refused(
            key, f"{local.dtype}, which PyTorch cannot copy", "save its .view(torch.uint8)"
        )
    if local.is_conj() or local.is_neg():
        raise _refused(
            key, "a conjugated or negated view", "save its .resolve_conj() or .resolve_neg()"
        )
    if overlaps_itself(local):
        raise _refused(
            key, f"an expanded tensor, strides {local.stride()}", "save its .contiguous()"
        )
    return tensor


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two elements may be one memory, which cannot be filled in parallel pieces."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride <= reach:
            return tensor.numel() > 0
        reach += stride * (size - 1)
    return False


def _refused(key: str, got: str, fix: str) -> InputError:
    return InputError(
        f"tensor {key} has no plain memory to store",
        got=got,
        allowed="dense tensors on a real device, each element with memory of its own",
        fix=fix,
    )


def as_dtensor(tensor: torch.Tensor) -> "DTensor | None":
    package = sys.modules.get("torch.distributed.tensor")
    # Absent in a package that another thread is just importing.
    kind = getattr(package, "DTensor", None)
    if kind is not None and isinstance(tensor, kind):
        return cast("DTensor", tensor)
    return None


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's memory, without its graph."""
    # No full_tensor(): it is a collective, and a save must not contain one.
    sharded = as_dtensor(tensor)
    return (tensor if sharded is None else sharded.to_local()).detach()


def memory_at(tensor: torch.Tensor) -> int:
    """Address of the memory behind it, of this rank's part for a DTensor; -1 where it has none of
    its own.
    """
    try:
        return local_of(tensor).untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):  # a subclass that wraps other tensors
        return -1


def memory_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a dense, contiguous CPU tensor, writable and not copied; they keep the tensor
    alive.

    Not by way of NumPy, which PyTorch does not bring along.
    """
    count = tensor.numel() * tensor.element_size()
    if count:
        array = (ctypes.c_ubyte * count).from_address(tensor.data_ptr())
    else:
        array = (ctypes.c_ubyte * 0)()
    array.tensor = tensor  # pyright: ignore[reportAttributeAccessIssue]
    return memoryview(array).cast("B")


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> torch.dtype | None:
    """None for a name that is no dtype of this PyTorch."""
    found = getattr(torch, name, None) if name.isidentifier() else None
    return found if isinstance(found, torch.dtype) else None


def saved_dtype(part: TensorPart) -> torch.dtype:
    dtype = dtype_of(part.dtype)
    # checked when the step was opened, or named by this process
    assert dtype is not None, part.dtype
    return dtype


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
    local = local_of(tensor)
    shape = tuple(tensor.shape)
    sharded = as_dtensor(tensor)
    if sharded is None:
        return [
            Box(
                key=key,
                local=local,
                shape=shape,
                offset=(0,) * tensor.ndim,
                owned=True,
            )
        ]
    if any(placement.is_partial() for placement in sharded.placements):
        raise InputError(
            f"tensor {key} is a partial sum",
            got=str(sharded.placements),
            allowed="Shard and Replicate placements",
            fix="redistribute it before it is part of the state",
        )
    coordinate = sharded.device_mesh.get_coordinate()
    # Of a replicated mesh axis the first writes. Not by isinstance(Shard): strided shards are of
    # another class.
    first = coordinate is not None and all(
        not placement.is_replicate() or at == 0
        for placement, at in zip(sharded.placements, coordinate, strict=True)
    )
    if not local.numel():
        owned = first and not tensor.numel()
        return [
            Box(
                key=key,
                local=local,
                shape=shape,
                offset=(0,) * tensor.ndim,
                owned=owned,
            )
        ]
    axes = _stretches(shape, sharded.device_mesh, tuple(sharded.placements))
    _check_local(key, local, axes)
    boxes: list[Box] = []
    for chosen in itertools.product(*axes):
        part = local[tuple(slice(start, start + length) for start, _, length in chosen)]
        boxes.append(
            Box(
                key=key,
                local=part,
                shape=shape,
                offset=tuple(at for _, at, _ in chosen),
                owned=first,
            )
        )
    return boxes


@lru_cache(maxsize=65_536)  # called for every tensor of every save
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


def _indices(
    axis: int,
    shape: tuple[int, ...],
    mesh: "DeviceMesh",
    placements: "tuple[Placement, ...]",
) -> list[int]:
    """Which elements of the axis this rank holds: the placements themselves split a list of all of
    them.
    """
    held = torch.arange(shape[axis]).view([-1 if one == axis else 1 for one in range(len(shape))])
    coordinate = mesh.get_coordinate() or []
    for dimension, placement in enumerate(placements):
        if getattr(placement, "dim", None) == axis:
            split = placement._split_tensor  # pyright: ignore[reportAttributeAccessIssue]
            chunks, _ = split(
                held,
                mesh.size(dimension),
                with_padding=False,
                contiguous=False,
            )
            held = chunks[coordinate[dimension]]
    return held.flatten().tolist()


def _runs(indices: list[int]) -> tuple[Stretch, ...]:
    cuts = [
        0,
        *(n for n in range(1, len(indices)) if indices[n] != indices[n - 1] + 1),
        len(indices),
    ]
    return tuple((start, indices[start], end - start) for start, end in itertools.pairwise(cuts))


def _check_local(key: str, local: torch.Tensor, axes: tuple[tuple[Stretch, ...], ...]) -> None:
    # What is computed from placements is a claim; the memory that is there must confirm it.
    computed = tuple(sum(length for _, _, length in runs) for runs in axes)
    if computed != tuple(local.shape):
        raise InputError(
            f"layout of tensor {key} is not understood",
            got=f"a local part of {list(local.shape)}, computed {list(computed)}",
            allowed="placements that describe the local part",
            fix="redistribute it to Shard and Replicate placements before it is part of the state",
        )


# Tensors begin at multiples of it in a stream: any dtype may be viewed there.
ALIGN = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    part: TensorPart
    local: torch.Tensor


def pieces_of(captured: "Captured", rank: int, world_size: int) -> list[Piece]:
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
    places = itertools.accumulate((math.ceil(box.bytes / ALIGN) * ALIGN for box in mine), initial=0)
    return [
        Piece(part=_part_of(box, at), local=box.local)
        for box, at in zip(mine, places, strict=False)
    ]


def _part_of(box: Box, at: int) -> TensorPart:
    return TensorPart(
        key=box.key,
        dtype=dtype_name(box.local.dtype),
        shape=box.shape,
        offset=box.offset,
        extent=tuple(box.local.shape),
        at=at,
        bytes=box.bytes,
    )


def stream_bytes(pieces: list[Piece]) -> int:
    return pieces[-1].part.at + pieces[-1].part.bytes if pieces else 0
