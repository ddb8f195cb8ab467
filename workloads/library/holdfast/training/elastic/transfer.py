"""The state from a member that has it to those that have none, or an older one. By collectives of the new epoch."""

import json
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from holdfast.checkpoint.target import load_entry
from holdfast.checkpoint.tree import RNG_KEY, Captured, capture, targets
from holdfast.checkpoint.values import decode

CHUNK_BYTES = 64 << 20


def furthest(applied: int) -> int:
    """The largest number of steps that any member has done. A collective."""
    return max(_all_applied(applied))


def _all_applied(applied: int) -> list[int]:
    if not dist.is_initialized():
        return [applied]
    # On the CPU, and so through gloo on any machine: a count is not worth a kernel, and no GPU is waited for.
    mine = torch.tensor([applied], dtype=torch.int64)
    found = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(found, mine)
    return [int(steps) for steps in found]


def synchronize(state: dict[str, Any], applied: int, device: torch.device) -> int:
    """Steps that every member's state has now. A collective; the lowest rank of those furthest ahead gives its state.

    -1 for `applied`: this member has no state. It is copied only if somebody is behind."""
    steps = _all_applied(applied)
    if min(steps) < max(steps):
        # All members have the same list, and so choose the same one without asking.
        source = steps.index(max(steps))
        _give(state, capture(state) if dist.get_rank() == source else None, source, device)
    return max(steps)


def _give(state: dict[str, Any], captured: Captured | None, source: int, device: torch.device) -> None:
    giving = dist.get_rank() == source
    head: list[Any] = []
    if giving:
        assert captured
        skeleton = {name: value for name, value in captured.skeleton.items() if name != RNG_KEY}
        # Not the random state: draws are seeded by (seed, step, shard), on every member alike.
        tensors = {key: t for key, t in captured.tensors.items() if not key.startswith(f"{RNG_KEY}/")}
        head = [skeleton, [[key, str(t.dtype).removeprefix("torch."), list(t.shape)] for key, t in tensors.items()]]
        # As bytes: tensors of all types share a chunk, and every bit arrives, those of a NaN too.
        flats = [t.detach().reshape(-1).view(torch.uint8).to(device) for t in tensors.values()]
    else:
        tensors, flats = {}, []
    skeleton, described = _broadcast_json(head, source, device)
    if not giving:
        for key, dtype, shape in described:
            tensors[key] = torch.empty(shape, dtype=getattr(torch, dtype), device=device)
            flats.append(tensors[key].reshape(-1).view(torch.uint8))
    _broadcast(flats, source)
    if not giving:
        with torch.no_grad():
            for name, value in targets(state):
                saved = decode(skeleton[name], tensors.__getitem__)
                if isinstance(value, Tensor):
                    value.copy_(saved)
                else:
                    load_entry(name, value, saved)


def _broadcast_json(value: Any, source: int, device: torch.device) -> Any:
    """JSON and not torch's objects: those are pickles, which run code."""
    data = json.dumps(value).encode() if dist.get_rank() == source else b""
    length = torch.tensor([len(data)], dtype=torch.int64, device=device)
    dist.broadcast(length, source)
    buffer = torch.empty(int(length), dtype=torch.uint8, device=device)
    if data:
        buffer.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    dist.broadcast(buffer, source)
    return json.loads(bytes(buffer.cpu().tolist()))


def _broadcast(flats: list[Tensor], source: int) -> None:
    """In chunks: a collective for each of a thousand small tensors would be a thousand round trips."""
    chunk: list[Tensor] = []
    for flat in [*flats, None]:
        if chunk and (flat is None or sum(map(len, chunk)) + len(flat) > CHUNK_BYTES):
            joined = torch.cat(chunk)
            dist.broadcast(joined, source)
            for part, into in zip(joined.split([len(c) for c in chunk]), chunk, strict=True):
                into.copy_(part)
            chunk = []
        if flat is not None and len(flat):
            chunk.append(flat)
