"""Copies the state of a member to those that have none or an older one, by collectives of a new
epoch.

If the ranks of a node share one state, each gets its own shard from the same local rank of the
other node.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from holdfast.checkpoint.errors import CheckpointExit
from holdfast.checkpoint.gangs import load_entry
from holdfast.checkpoint.state import RNG_KEY, Captured, Skeleton, capture, decode, targets
from holdfast.checkpoint.state.tensors import NO_KERNEL, as_dtensor, dtype_of, to_local
from holdfast.support.errors import InputError
from holdfast.training.gang.node import Node
from holdfast.training.gang.process_group import broadcast_json

CHUNK_BYTES = 64 << 20
# Limits of a state that a newcomer accepts: an optimizer that has done a step holds several tensors
# for each parameter.
MAX_GROWTH = 32
MIN_LIMIT_BYTES = 1 << 30


def gather_steps(step: int, group: dist.ProcessGroup | None) -> list[int]:
    """Returns the numbers of steps of all members' states. A collective."""
    if group is None:
        return [step]
    # On the CPU, and so through gloo on any machine: a count justifies neither a GPU kernel nor
    # a wait for the GPU.
    tensor = torch.tensor([step], dtype=torch.int64)
    gathered = [torch.empty_like(tensor) for _ in range(group.size())]
    dist.all_gather(gathered, tensor, group=group)
    return [int(steps) for steps in gathered]


@dataclass(frozen=True, kw_only=True, slots=True)
class Description:
    """A tensor as the sender describes it. Its JSON is a list of the fields in this order."""

    key: str
    dtype: torch.dtype
    shape: list[int]
    """Shape of the part that one rank holds."""
    layout: list[Any]
    """Arguments of Node.make_dtensor after the local part; empty if the tensor is not sharded."""


def synchronize(
    state: dict[str, Any],
    step: int,
    device: torch.device,
    group: dist.ProcessGroup | None,
    node: Node,
) -> int:
    """Gives every member the state with the most steps, and returns that number. A collective.

    The lowest rank of those furthest ahead sends its state, if a member is behind. `step` is -1 if
    this member has no state.
    """
    copy: tuple[Skeleton, dict[str, Tensor]] | None = None
    # Loaded only once all ranks of the node have received theirs: else their shards would be of
    # different steps.
    with node.vote():
        steps = gather_steps(step, group)
        if min(steps) < max(steps):
            assert group
            # All members have the same list, and so choose the same source.
            source = steps.index(max(steps))
            captured = capture(state)
            if group.rank() == source:
                _send(captured, source, device, group)
            else:
                limit = _compute_limit(captured)
                copy = _receive(source, device, group, node, most_bytes=limit)
    if copy:
        skeleton, tensors = copy
        load_state(state, skeleton, tensors)
    return max(steps)


def _compute_limit(captured: Captured) -> int:
    """Returns the largest state that a member accepts, in bytes."""
    local_bytes = 0
    for tensor in captured.tensors.values():
        local_bytes += to_local(tensor).nbytes
    return max(MIN_LIMIT_BYTES, MAX_GROWTH * local_bytes)


def _send(
    captured: Captured,
    source: int,
    device: torch.device,
    group: dist.ProcessGroup,
) -> None:
    # Without the random state: draws are seeded by (seed, step, shard), on every member.
    skeleton = {name: value for name, value in captured.skeleton.items() if name != RNG_KEY}
    descriptions = list[list[Any]]()
    flats = list[Tensor]()
    for key, tensor in captured.tensors.items():
        if key.startswith(f"{RNG_KEY}/"):
            continue
        local = to_local(tensor)
        dtype = str(tensor.dtype).removeprefix("torch.")
        descriptions.append([key, dtype, list(local.shape), _describe_layout(tensor)])
        flats.append(_view_bytes(local).to(device))
    broadcast_json([skeleton, descriptions], source, device, group)
    _broadcast(flats, source, group)


def _view_bytes(tensor: Tensor) -> Tensor:
    """Views a tensor as bytes: all dtypes share a chunk, and every bit arrives, also of a NaN."""
    return tensor.reshape(-1).view(torch.uint8)


def _receive(
    source: int,
    device: torch.device,
    group: dist.ProcessGroup,
    node: Node,
    *,
    most_bytes: int,
) -> tuple[Skeleton, dict[str, Tensor]]:
    message = broadcast_json(None, source, device, group)
    try:
        skeleton, entries = message
        descriptions = read_descriptions(entries, most_bytes=most_bytes)
    except (ValueError, TypeError, AttributeError) as error:
        raise CheckpointExit(
            0, f"this member cannot load the state of another member: {error}"[:300]
        ) from error
    tensors = dict[str, Tensor]()
    try:
        for description in descriptions:
            part = torch.empty(description.shape, dtype=description.dtype, device=device)
            tensors[description.key] = part
    # It must not pass for a lost group, which would be formed again forever.
    except RuntimeError as error:
        raise CheckpointExit(
            0, f"this member has no memory for the state of another member: {error}"[:300]
        ) from error
    _broadcast([_view_bytes(part) for part in tensors.values()], source, group)
    for description in descriptions:
        if description.layout:
            part = tensors[description.key]
            tensors[description.key] = node.make_dtensor(part, *description.layout)
    return skeleton, tensors


def read_descriptions(entries: Any, *, most_bytes: int) -> list[Description]:
    """Reads the descriptions of another member's tensors.

    Raises ValueError, TypeError or AttributeError for one that no member would send, before any
    memory is allocated.
    """
    descriptions: list[Description] = []
    total = 0
    for key, name, shape, layout in entries:
        dtype = dtype_of(name)
        if dtype is None or name in NO_KERNEL:
            raise ValueError(f"{key!r} is of dtype {name!r}")
        if not _is_shape(shape) or not _is_layout(layout):
            raise ValueError(f"{key!r} has shape {shape!r} and layout {layout!r}")
        total += math.prod(shape) * dtype.itemsize
        description = Description(
            key=key,
            dtype=dtype,
            shape=shape,
            layout=layout,
        )
        descriptions.append(description)
    if total > most_bytes:
        raise ValueError(f"it has {total} bytes, and at most {most_bytes} are expected")
    return descriptions


def _is_shape(sizes: Any) -> bool:
    return all(isinstance(size, int) and size >= 0 for size in sizes)


def _is_layout(layout: Any) -> bool:
    if len(layout) == 0:
        return True
    if len(layout) != 3:
        return False
    shape, stride, _ = layout
    return _is_shape(shape) and _is_shape(stride)


def load_state(
    state: dict[str, Any],
    skeleton: Skeleton,
    tensors: dict[str, Tensor],
) -> None:
    """Loads a received state into `state`. Raises InputError if the two do not match."""
    local_names = state.keys()
    remote_names = skeleton.keys() - {RNG_KEY}
    if local_names != remote_names:
        only_local = sorted(local_names - remote_names)
        only_remote = sorted(remote_names - local_names)
        raise _make_mismatch_error(f"only here: {only_local}; only there: {only_remote}")
    with torch.no_grad():
        for name, value in targets(state):
            saved = decode(skeleton[name], tensors.__getitem__)
            try:
                if isinstance(value, Tensor):
                    value.copy_(saved)
                else:
                    load_entry(name, value, saved)
            # PyTorch raises it for another shape. It must not pass for a lost group, which would be
            # formed again forever.
            except RuntimeError as error:
                raise _make_mismatch_error(f"{name}: {error}"[:300]) from error


def _make_mismatch_error(got: str) -> InputError:
    return InputError(
        "state of this member is not that of the gang",
        got=got,
        allowed="the same entries, of the same shapes, on every member",
        fix="start every member with the same program and the same arguments",
    )


def _describe_layout(tensor: Tensor) -> list[Any]:
    """Returns the arguments of Node.make_dtensor, or an empty list if it is not sharded."""
    sharded = as_dtensor(tensor)
    if sharded is None:
        return []
    (placement,) = sharded.placements
    dim = getattr(placement, "dim", -1)
    return [list(sharded.shape), list(sharded.stride()), dim]


def _broadcast(
    flats: list[Tensor],
    source: int,
    group: dist.ProcessGroup,
) -> None:
    """Broadcasts tensors of bytes in chunks: one collective for each of a thousand small tensors
    would be a thousand round trips.
    """
    for chunk in _split_into_chunks(flats):
        joined = torch.cat(chunk)
        dist.broadcast(joined, group=group, group_src=source)
        lengths = [len(flat) for flat in chunk]
        for part, flat in zip(joined.split(lengths), chunk, strict=True):
            flat.copy_(part)


def _split_into_chunks(flats: list[Tensor]) -> Iterator[list[Tensor]]:
    """Yields runs of non-empty tensors of at most CHUNK_BYTES, or a single larger one."""
    chunk: list[Tensor] = []
    chunk_bytes = 0
    for flat in flats:
        if chunk and chunk_bytes + len(flat) > CHUNK_BYTES:
            yield chunk
            chunk = []
            chunk_bytes = 0
        if len(flat):
            chunk.append(flat)
            chunk_bytes += len(flat)
    if chunk:
        yield chunk
