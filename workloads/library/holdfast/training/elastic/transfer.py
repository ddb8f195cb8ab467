"""The state from a member that has it to those that have none, or an older one. By collectives of
the new epoch.

Of a state that a node shares each rank gets its own shard, from the rank of its number on the other
node.
"""

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from holdfast.checkpoint.errors import CheckpointExit
from holdfast.checkpoint.gangs import load_entry
from holdfast.checkpoint.state import RNG_KEY, Captured, Skeleton, capture, decode, targets
from holdfast.checkpoint.state.tensors import NO_KERNEL, as_dtensor, dtype_of, local_of
from holdfast.support.errors import InputError
from holdfast.training.gang.node import Node
from holdfast.training.gang.process_group import broadcast_json

CHUNK_BYTES = 64 << 20
MOST_TIMES = 32
LEAST_ROOM_BYTES = 1 << 30
"""Of a newcomer's state: an optimizer that has taken a step holds several tensors for each
parameter.
"""


def all_applied(applied: int, group: dist.ProcessGroup | None) -> list[int]:
    """The numbers of steps that the members have done. A collective."""
    if group is None:
        return [applied]
    # On the CPU, and so through gloo on any machine: a count is not worth a kernel, and no GPU is
    # waited for.
    mine = torch.tensor([applied], dtype=torch.int64)
    found = [torch.empty_like(mine) for _ in range(group.size())]
    dist.all_gather(found, mine, group=group)
    return [int(steps) for steps in found]


def synchronize(
    state: dict[str, Any],
    applied: int,
    device: torch.device,
    group: dist.ProcessGroup | None,
    node: Node,
) -> int:
    """Steps that every member's state has now. A collective; the lowest rank of those furthest
    ahead gives its state.

    -1 for `applied`: this member has no state. It is copied only if a member is behind.
    """
    got: tuple[Skeleton, dict[str, Tensor]] | None = None
    # Taken only once all ranks of the node have theirs: else their shards would be of different
    # steps.
    with node.together():
        steps = all_applied(applied, group)
        if min(steps) < max(steps):
            assert group
            # All members have the same list, and so choose the same one without asking.
            source = steps.index(max(steps))
            if group.rank() == source:
                _give(capture(state), source, device, group)
            else:
                own = sum(local_of(t).nbytes for t in capture(state).tensors.values())
                got = _got(
                    source, device, group, node, most_bytes=max(LEAST_ROOM_BYTES, MOST_TIMES * own)
                )
    if got:
        take(state, *got)
    return max(steps)


def _give(
    captured: Captured,
    source: int,
    device: torch.device,
    group: dist.ProcessGroup,
) -> None:
    skeleton = {name: value for name, value in captured.skeleton.items() if name != RNG_KEY}
    # Not the random state: draws are seeded by (seed, step, shard), on every member.
    tensors = {key: t for key, t in captured.tensors.items() if not key.startswith(f"{RNG_KEY}/")}
    locals_ = [local_of(t) for t in tensors.values()]
    described = [
        [
            key,
            str(t.dtype).removeprefix("torch."),
            list(local.shape),
            _layout(t),
        ]
        for (key, t), local in zip(tensors.items(), locals_, strict=True)
    ]
    broadcast_json([skeleton, described], source, device, group)
    # As bytes: tensors of all types share a chunk, and every bit arrives, those of a NaN too.
    _broadcast([local.reshape(-1).view(torch.uint8).to(device) for local in locals_], source, group)


def _got(
    source: int,
    device: torch.device,
    group: dist.ProcessGroup,
    node: Node,
    *,
    most_bytes: int,
) -> tuple[Skeleton, dict[str, Tensor]]:
    described = broadcast_json(None, source, device, group)
    try:
        skeleton, tensors = described
        described = room_for(tensors, device, most_bytes=most_bytes)
    except (ValueError, TypeError, AttributeError) as error:
        raise CheckpointExit(
            0, f"the state of another member is none that this one can take: {error}"[:300]
        ) from error
    _broadcast([local.reshape(-1).view(torch.uint8) for _, local, _ in described], source, group)
    return skeleton, {
        key: node.sharded(local, *layout) if layout else local for key, local, layout in described
    }


def room_for(
    described: Any, device: torch.device, *, most_bytes: int
) -> list[tuple[str, Tensor, list[Any]]]:
    """For tensors that another member describes by key, dtype, shape and layout. Raises ValueError,
    TypeError or AttributeError for a description that no member gives, before any memory is taken.
    """
    kinds: list[tuple[str, torch.dtype, list[int], list[Any]]] = []
    total = 0
    for key, name, shape, layout in described:
        dtype = dtype_of(name)
        if dtype is None or name in NO_KERNEL:
            raise ValueError(f"{key!r} is of dtype {name!r}")
        sizes = [shape, *(layout[:2] if layout else [])]
        if not all(isinstance(size, int) and size >= 0 for axes in sizes for size in axes) or len(
            layout
        ) not in (0, 3):
            raise ValueError(f"{key!r} has shape {shape!r} and layout {layout!r}")
        total += math.prod(shape) * dtype.itemsize
        kinds.append((key, dtype, shape, layout))
    if total > most_bytes:
        raise ValueError(f"it has {total} bytes, and at most {most_bytes} are expected")
    return [
        (key, torch.empty(shape, dtype=dtype, device=device), layout)
        for key, dtype, shape, layout in kinds
    ]


def take(state: dict[str, Any], skeleton: Skeleton, tensors: dict[str, Tensor]) -> None:
    """What another member has given, into `state`. Raises InputError where that is another state."""
    here = state.keys()
    there = skeleton.keys() - {RNG_KEY}
    if here != there:
        raise _another_state(
            f"only here: {sorted(here - there)}; only there: {sorted(there - here)}"
        )
    with torch.no_grad():
        for name, value in targets(state):
            saved = decode(skeleton[name], tensors.__getitem__)
            try:
                if isinstance(value, Tensor):
                    value.copy_(saved)
                else:
                    load_entry(name, value, saved)
            # PyTorch's word for another shape: it must not pass for a lost group, which would meet
            # for ever.
            except RuntimeError as error:
                raise _another_state(f"{name}: {error}"[:300]) from error


def _another_state(got: str) -> InputError:
    return InputError(
        "state of this member is not that of the gang",
        got=got,
        allowed="the same entries, of the same shapes, on every member",
        fix="start every place with the same program and the same arguments",
    )


def _layout(tensor: Tensor) -> list[Any]:
    """What Node.sharded asks for; empty: not sharded."""
    sharded = as_dtensor(tensor)
    if sharded is None:
        return []
    (placement,) = sharded.placements
    return [list(sharded.shape), list(sharded.stride()), getattr(placement, "dim", -1)]


def _broadcast(flats: list[Tensor], source: int, group: dist.ProcessGroup) -> None:
    """In chunks: a collective for each of a thousand small tensors would be a thousand round trips."""
    chunk: list[Tensor] = []
    for flat in [*flats, None]:
        if chunk and (flat is None or sum(map(len, chunk)) + len(flat) > CHUNK_BYTES):
            joined = torch.cat(chunk)
            dist.broadcast(joined, group=group, group_src=source)
            for part, into in zip(joined.split([len(c) for c in chunk]), chunk, strict=True):
                into.copy_(part)
            chunk = []
        if flat is not None and len(flat):
            chunk.append(flat)
