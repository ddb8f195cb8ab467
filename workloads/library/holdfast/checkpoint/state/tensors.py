"""Tensors as memory: whether one can be stored, and which bytes of the state this rank writes.

A rank writes its boxes of each sharded tensor, and its share of the replicated tensors. A plain
tensor is one box of offset and extent. A DTensor is one box, or several if its mesh interleaves
ranks on an axis: FSDP over tensor parallelism shards one axis twice, and not always into one
interval. Every rank computes the same split from the same state, so nothing is exchanged.
"""

import ctypes
import itertools
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch

from holdfast.checkpoint.format import Sizes, TensorPart
from holdfast.checkpoint.format.dtypes import dtype_of
from holdfast.checkpoint.state.sharding import Interval, list_intervals
from holdfast.support.errors import InputError

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

    from holdfast.checkpoint.state import Captured

Tensors = dict[str, torch.Tensor]
"""Tensors by their keys in a checkpoint."""

# PyTorch has names for these dtypes, but cannot copy them.
NO_KERNEL = {
    "int1",
    "int2",
    "int3",
    "int4",
    "int5",
    "int6",
    "int7",
    "uint1",
    "uint2",
    "uint3",
    "uint4",
    "uint5",
    "uint6",
    "uint7",
    "quint2x4",
    "quint4x2",
    "quint8",
    "qint8",
    "qint32",
}


def detach_storable(tensor: torch.Tensor, key: str) -> torch.Tensor:
    """Return the live tensor without its graph. Raises InputError if it cannot be stored."""
    # First: every other call on a lazy parameter raises.
    if torch.nn.parameter.is_lazy(tensor):
        raise _memory_error(
            key,
            "a parameter without a shape",
            "run one batch through the lazy module before the start",
        )
    if type(tensor).__name__ == "ShardedTensor":
        raise _memory_error(
            key,
            "a ShardedTensor of FSDP1",
            "give FSDP a device_mesh, or use fully_shard (FSDP2): DTensors",
        )
    kind = ""
    if tensor.is_nested:
        kind = "nested, "
    elif tensor.is_quantized:
        kind = "quantized, "
    is_dense = tensor.layout is torch.strided and not kind
    if not is_dense or tensor.device.type == "meta":
        got = f"layout {tensor.layout}, {kind}device {tensor.device}"
        raise _memory_error(key, got, "convert it to a dense tensor, or leave it out of the state")
    tensor = tensor.detach()
    local = to_local(tensor)
    # Only the local part of a DTensor can be a wrapper here: a wrapper that is not sharded is
    # stored as the tensors inside it.
    if hasattr(type(local), "__tensor_flatten__"):
        raise _memory_error(
            key,
            f"a sharded {type(local).__name__}, which wraps other tensors",
            "quantize after fully_shard (FSDP2) has gathered the weights, or keep this state whole"
            " (DDP); for moments, use an optimizer of torch.optim",
        )
    if dtype_name(local.dtype) in NO_KERNEL:
        raise _memory_error(
            key,
            f"{local.dtype}, which PyTorch cannot copy",
            "save its .view(torch.uint8), or .int_repr()",
        )
    if local.is_conj() or local.is_neg():
        raise _memory_error(
            key, "a conjugated or negated view", "save its .resolve_conj() or .resolve_neg()"
        )
    if overlaps_itself(local):
        raise _memory_error(
            key, f"an expanded tensor, strides {local.stride()}", "save its .contiguous()"
        )
    return tensor


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Return whether elements may share memory, which then cannot be filled in parallel."""
    reach = 0
    axes = zip(tensor.stride(), tensor.shape, strict=True)
    for stride, size in sorted(axes):
        if size > 1 and stride <= reach:
            return tensor.numel() > 0
        reach += stride * (size - 1)
    return False


def _memory_error(
    key: str,
    got: str,
    fix: str,
) -> InputError:
    return InputError(
        f"tensor {key} has no plain memory to store",
        got=got,
        allowed="dense tensors on a real device, each element with memory of its own",
        fix=fix,
    )


def as_dtensor(tensor: torch.Tensor) -> "DTensor | None":
    """Return the tensor as a DTensor; None if it is none."""
    package = sys.modules.get("torch.distributed.tensor")
    # Absent in a package that another thread is just importing.
    kind = getattr(package, "DTensor", None)
    if kind is not None and isinstance(tensor, kind):
        return cast("DTensor", tensor)
    return None


def is_wrapper(tensor: torch.Tensor) -> bool:
    """Return whether a tensor wraps others. A DTensor does not count: it is stored by its boxes."""
    if type(tensor) is torch.Tensor or not hasattr(type(tensor), "__tensor_flatten__"):
        return False
    # Lazy, nested and sharded tensors are refused by name when they are stored.
    is_plain = tensor.layout is torch.strided and not tensor.is_nested
    return is_plain and as_dtensor(tensor) is None


def first_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return the first plain tensor inside a wrapper, or the tensor itself if it wraps none."""
    while is_wrapper(tensor):
        names, _ = tensor.__tensor_flatten__()  # pyright: ignore[reportAttributeAccessIssue]
        if not names:
            break
        tensor = getattr(tensor, names[0])
    return tensor


def to_local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a tensor, without its graph."""
    # No full_tensor(): it is a collective, and a save must not contain one.
    sharded = as_dtensor(tensor)
    return (tensor if sharded is None else sharded.to_local()).detach()


def storage_address(tensor: torch.Tensor) -> int:
    """Return the address of the storage of this rank's part; -1 if it has no storage of its own.

    For a tensor that wraps others, it is the address of the first tensor inside.
    """
    try:
        return to_local(first_part(tensor)).untyped_storage().data_ptr()
    # Raised by a subclass that wraps other tensors.
    except (NotImplementedError, RuntimeError):
        return -1


def view_memory(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a dense, contiguous CPU tensor, writable and not copied.

    The bytes keep the tensor alive. NumPy would offer the same, but PyTorch does not install it.
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


def get_dtype(part: TensorPart) -> torch.dtype:
    dtype = dtype_of(part.dtype)
    # The name was checked when the step was opened, or comes from this process.
    assert dtype is not None, part.dtype
    return dtype


@dataclass(frozen=True, kw_only=True, slots=True)
class Box:
    """A part of a tensor that is stored on this rank."""

    key: str
    local: torch.Tensor
    shape: Sizes
    """Shape of the whole tensor."""
    offset: Sizes
    owned: bool
    """False if a lower rank of a replicated dimension writes the same box."""

    @property
    def bytes(self) -> int:
        return self.local.numel() * self.local.element_size()


def list_boxes(key: str, tensor: torch.Tensor) -> list[Box]:
    """Return this rank's boxes of a tensor: at least one, without elements if it holds none."""
    local = to_local(tensor)
    shape = tuple(tensor.shape)
    origin = (0,) * tensor.ndim
    sharded = as_dtensor(tensor)
    if sharded is None:
        return [
            Box(
                key=key,
                local=local,
                shape=shape,
                offset=origin,
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
    is_writer = _writes_replicas(sharded)
    if not local.numel():
        owned = is_writer and not tensor.numel()
        return [
            Box(
                key=key,
                local=local,
                shape=shape,
                offset=origin,
                owned=owned,
            )
        ]
    mesh = sharded.device_mesh
    axes = list_intervals(
        shape,
        tuple(mesh.shape),
        tuple(mesh.get_coordinate() or ()),
        tuple(sharded.placements),
    )
    _check_local(key, local, axes)
    boxes: list[Box] = []
    for intervals in itertools.product(*axes):
        slices: list[slice] = []
        offset: list[int] = []
        for local_start, whole_start, length in intervals:
            slices.append(slice(local_start, local_start + length))
            offset.append(whole_start)
        box = Box(
            key=key,
            local=local[tuple(slices)],
            shape=shape,
            offset=tuple(offset),
            owned=is_writer,
        )
        boxes.append(box)
    return boxes


def _writes_replicas(sharded: "DTensor") -> bool:
    """Return whether this rank is the first on every replicated axis of the mesh."""
    coordinate = sharded.device_mesh.get_coordinate()
    if coordinate is None:
        return False
    # Not by isinstance(Shard): strided shards are of another class.
    for placement, index in zip(sharded.placements, coordinate, strict=True):
        if placement.is_replicate() and index != 0:
            return False
    return True


def _check_local(
    key: str,
    local: torch.Tensor,
    axes: tuple[tuple[Interval, ...], ...],
) -> None:
    # What is computed from placements is a claim; the memory of this rank must confirm it.
    computed: list[int] = []
    for intervals in axes:
        length = sum(interval[2] for interval in intervals)
        computed.append(length)
    if computed != list(local.shape):
        raise InputError(
            f"layout of tensor {key} is not understood",
            got=f"a local part of {list(local.shape)}, computed {computed}",
            allowed="placements that describe the local part",
            fix="redistribute it to Shard and Replicate placements before it is part of the state",
        )


# Tensors begin at multiples of this in a stream, so that any dtype may be viewed there.
ALIGN = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A box that this rank writes, and its description in the manifest."""

    part: TensorPart
    local: torch.Tensor


def make_pieces(
    captured: "Captured",
    rank: int,
    world_size: int,
) -> list[Piece]:
    """Return the pieces of a state that this rank writes, in the order of its stream."""
    pieces: list[Piece] = []
    offset = 0
    for box in _assign_boxes(captured, rank, world_size):
        part = _make_part(box, offset)
        pieces.append(Piece(part=part, local=box.local))
        aligned_bytes = math.ceil(box.bytes / ALIGN) * ALIGN
        offset += aligned_bytes
    return pieces


def _assign_boxes(
    captured: "Captured",
    rank: int,
    world_size: int,
) -> Iterator[Box]:
    load = [0] * world_size
    # First what is not trained: its shards may be those of the checkpoint before.
    frozen_first = sorted(captured.tensors, key=lambda key: key not in captured.frozen)
    for key in frozen_first:
        tensor = captured.tensors[key]
        boxes = list_boxes(key, tensor)
        if as_dtensor(tensor) is not None or key in captured.per_rank:
            for box in boxes:
                if box.owned:
                    yield box
            continue
        (box,) = boxes
        # The least loaded rank, in the order of keys: the same on every rank, whatever its timing.
        writer = load.index(min(load))
        load[writer] += box.bytes
        if writer == rank:
            yield box


def _make_part(box: Box, stream_offset: int) -> TensorPart:
    return TensorPart(
        key=box.key,
        dtype=dtype_name(box.local.dtype),
        shape=box.shape,
        offset=box.offset,
        extent=tuple(box.local.shape),
        at=stream_offset,
        bytes=box.bytes,
    )


def count_frozen_bytes(captured: "Captured", pieces: list[Piece]) -> int:
    """Return the length of the beginning of a stream that holds parameters that are not trained."""
    for piece in pieces:
        if piece.part.key not in captured.frozen:
            return piece.part.at
    return stream_bytes(pieces)


def stream_bytes(pieces: list[Piece]) -> int:
    """Return the length of the stream of a rank's pieces."""
    if not pieces:
        return 0
    end = pieces[-1].part
    return end.at + end.bytes
