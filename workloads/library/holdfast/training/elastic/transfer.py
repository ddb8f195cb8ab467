"""The state from a member that has it to those that have none, or an older one. By collectives of the new epoch.

Of a state that a node shares each rank gets its own shard, from the rank of its number on the other node.
"""

from collections.abc import Set as AbstractSet
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from holdfast.checkpoint.parts import (
    RNG_KEY,
    Captured,
    Skeleton,
    as_dtensor,
    capture,
    decode,
    load_entry,
    local_of,
    targets,
)
from holdfast.contract.errors import InputError
from holdfast.training.elastic.group import broadcast_json
from holdfast.training.elastic.node import Node

CHUNK_BYTES = 64 << 20


def furthest(applied: int, group: dist.ProcessGroup | None) -> int:
    """The largest number of steps that any member has done. A collective."""
    return max(_all_applied(applied, group))


def _all_applied(applied: int, group: dist.ProcessGroup | None) -> list[int]:
    if group is None:
        return [applied]
    # On the CPU, and so through gloo on any machine: a count is not worth a kernel, and no GPU is waited for.
    mine = torch.tensor([applied], dtype=torch.int64)
    found = [torch.empty_like(mine) for _ in range(group.size())]
    dist.all_gather(found, mine, group=group)
    return [int(steps) for steps in found]


def synchronize(
    state: dict[str, Any], applied: int, device: torch.device, group: dist.ProcessGroup | None, node: Node
) -> int:
    """Steps that every member's state has now. A collective; the lowest rank of those furthest ahead gives its state.

    -1 for `applied`: this member has no state. It is copied only if somebody is behind."""
    got: tuple[Skeleton, dict[str, Tensor]] | None = None
    # Taken only once all ranks of the node have theirs: else their shards would be of different steps.
    with node.together():
        steps = _all_applied(applied, group)
        if min(steps) < max(steps):
            assert group
            # All members have the same list, and so choose the same one without asking.
            source = steps.index(max(steps))
            if group.rank() == source:
                _give(capture(state), source, device, group)
            else:
                got = _got(source, device, group, node)
    if got:
        take(state, *got)
    return max(steps)


def _give(captured: Captured, source: int, device: torch.device, group: dist.ProcessGroup) -> None:
    skeleton = {name: value for name, value in captured.skeleton.items() if name != RNG_KEY}
    # Not the random state: draws are seeded by (seed, step, shard), on every member alike.
    tensors = {key: t for key, t in captured.tensors.items() if not key.startswith(f"{RNG_KEY}/")}
    locals_ = [local_of(t) for t in tensors.values()]
    described = [
        [key, str(t.dtype).removeprefix("torch."), list(local.shape), _layout(t)]
        for (key, t), local in zip(tensors.items(), locals_, strict=True)
    ]
    broadcast_json([skeleton, described], source, device, group)
    # As bytes: tensors of all types share a chunk, and every bit arrives, those of a NaN too.
    _broadcast([local.reshape(-1).view(torch.uint8).to(device) for local in locals_], source, group)


def _got(source: int, device: torch.device, group: dist.ProcessGroup, node: Node) -> tuple[Skeleton, dict[str, Tensor]]:
    skeleton, described = broadcast_json(None, source, device, group)
    locals_ = [torch.empty(shape, dtype=getattr(torch, dtype), device=device) for _, dtype, shape, _ in described]
    _broadcast([local.reshape(-1).view(torch.uint8) for local in locals_], source, group)
    return skeleton, {
        key: node.sharded(local, *layout) if layout else local
        for (key, _, _, layout), local in zip(described, locals_, strict=True)
    }


def take(state: dict[str, Any], skeleton: Skeleton, tensors: dict[str, Tensor]) -> None:
    """What another member has given, into `state`. Raises InputError where that is another state."""
    here, there = state.keys(), skeleton.keys() - {RNG_KEY}
    if here != there:
        raise _another_state(f"only here: {_names(here - there)}; only there: {_names(there - here)}")
    with torch.no_grad():
        for name, value in targets(state):
            saved = decode(skeleton[name], tensors.__getitem__)
            try:
                if isinstance(value, Tensor):
                    value.copy_(saved)
                else:
                    load_entry(name, value, saved)
            # PyTorch's word for another shape: it must not pass for a lost group, which would meet for ever.
            except RuntimeError as error:
                raise _another_state(f"{name}: {error}"[:300]) from error


def _names(entries: AbstractSet[str]) -> str:
    return ", ".join(sorted(entries)) or "none"


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
