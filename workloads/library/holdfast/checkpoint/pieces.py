"""Which bytes of the state this rank writes: its boxes of sharded tensors, and its share of replicated ones.

Pure: every rank computes the same split from the same state, so nothing is exchanged.
"""

import ctypes
import math
from dataclasses import dataclass, replace

import torch

from holdfast.checkpoint.boxes import Box, boxes_of
from holdfast.checkpoint.format import TensorPart
from holdfast.checkpoint.sharded import as_dtensor, local_of
from holdfast.checkpoint.tree import Captured

# Tensors begin at multiples of it in a stream: any dtype may be viewed there.
ALIGN = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    part: TensorPart
    local: torch.Tensor


def memory_at(tensor: torch.Tensor) -> int:
    """Address of the memory behind it, of this rank's part for a DTensor; -1 where it has none of its own."""
    try:
        return local_of(tensor).untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):  # a subclass that wraps other tensors
        return -1


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


def memory_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a dense, contiguous CPU tensor, writable and not copied; they keep the tensor alive.

    Not by way of NumPy, which PyTorch does not bring along.
    """
    count = tensor.numel() * tensor.element_size()
    array = (ctypes.c_ubyte * count).from_address(tensor.data_ptr()) if count else (ctypes.c_ubyte * 0)()
    array.tensor = tensor  # pyright: ignore[reportAttributeAccessIssue]
    return memoryview(array).cast("B")


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> torch.dtype | None:
    """None for a name that is no dtype of this PyTorch."""
    found = getattr(torch, name, None) if name.isidentifier() else None
    return found if isinstance(found, torch.dtype) else None
