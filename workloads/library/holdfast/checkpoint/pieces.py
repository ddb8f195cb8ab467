"""Which bytes of the state this rank writes: its boxes of sharded tensors, and its share of replicated ones.

Pure: every rank computes the same split from the same state, so nothing is exchanged.
"""

import ctypes
import math
from dataclasses import dataclass, replace

import torch
from torch.distributed.tensor import DTensor, Partial, Shard

from holdfast.checkpoint.format import TensorPart
from holdfast.checkpoint.tree import Captured
from holdfast.contract.errors import InputError

# Tensors begin at multiples of it in a stream: any dtype may be viewed there.
ALIGN = 64


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    part: TensorPart
    local: torch.Tensor


def box_of(key: str, tensor: torch.Tensor) -> Box:
    if not isinstance(tensor, DTensor):
        return Box(key=key, local=tensor, shape=tuple(tensor.shape), offset=(0,) * tensor.ndim, owned=True)
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    placements, mesh = tensor.placements, tensor.device_mesh
    if any(isinstance(p, Partial) for p in placements):
        raise InputError(
            f"tensor {key} is a partial sum",
            got=str(placements),
            allowed="Shard and Replicate placements",
            fix="redistribute it before it is part of the state",
        )
    _, offset = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
    coordinate = mesh.get_coordinate() or []
    first = all(isinstance(p, Shard) or at == 0 for p, at in zip(placements, coordinate, strict=True))
    # No full_tensor(): it is a collective, and a save must not contain one.
    local = tensor.to_local()
    return Box(
        key=key,
        local=local.detach(),
        shape=tuple(tensor.shape),
        offset=tuple(offset) if local.numel() else (0,) * tensor.ndim,
        owned=first and local.numel() > 0,
    )


def pieces_of(captured: Captured, rank: int, world_size: int) -> list[Piece]:
    boxes = [(box_of(key, tensor), tensor) for key, tensor in captured.tensors.items()]
    load = [0] * world_size
    mine: list[Box] = []
    for box, tensor in boxes:
        if isinstance(tensor, DTensor) or box.key in captured.per_rank:
            if box.owned:
                mine.append(box)
            continue
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
