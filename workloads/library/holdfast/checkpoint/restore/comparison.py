"""Whether the live state holds what was loaded into it.

A load_state_dict() that keeps nothing is a fresh start that is not noticed. So the state is captured again: modules
and optimizers are compared bit by bit, other objects by what their state_dict() was before and is now.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from holdfast.checkpoint.format.soundness import MAPPINGS
from holdfast.checkpoint.state import Captured, Skeleton, Stateful, tensor_keys
from holdfast.checkpoint.state.tensors import local_of, memory_at
from holdfast.contract.errors import InputError

# Of these a state_dict() after load_state_dict() gives back what was loaded; loaders and schedulers may not.
EXACT = (nn.Module, torch.optim.Optimizer, torch.Tensor)
# Of a tensor, to see that it changed at all: more would read every average of a model's weights again.
_HEAD_ELEMENTS = 1024


def unproven(value: Any) -> bool:
    """Whether it keeps its state in its own way."""
    return isinstance(value, Stateful) and not isinstance(value, EXACT)


def sketch(captured: Captured, name: str) -> str:
    """Of an entry's values and of where its tensors begin: the same if load_state_dict() did nothing."""
    skeleton = captured.skeleton[name]
    found = hashlib.sha256(json.dumps(skeleton).encode())
    for key in tensor_keys(skeleton):
        head = _bits(local_of(captured.tensors[key]).flatten()[:_HEAD_ELEMENTS])
        found.update(bytes(head.tolist()))
    return found.hexdigest()


def unlike(name: str, saved: Skeleton, tensors: Mapping[str, torch.Tensor], after: Captured) -> dict[str, bool]:
    """What an entry's state_dict() gives otherwise than it was saved, and whether it gives it at all."""
    mine, theirs = _items(saved), _items(after.skeleton[name])
    return {
        f"{name}/{key}".rstrip("/"): key in theirs
        for key, item in mine.items()
        if theirs.get(key, _ABSENT) != item
        or not all(_same(after.tensors[one], tensors[one]) for one in tensor_keys(item))
    }


_ABSENT = object()


def _items(skeleton: Skeleton) -> dict[str, Skeleton]:
    ((mark, content),) = skeleton.items() if isinstance(skeleton, dict) else (("", skeleton),)
    return {str(key): item for key, item in content} if mark in MAPPINGS else {"": skeleton}


def check_loaded(name: str, value: Any, found: dict[str, bool], *, changed: bool) -> str:
    """What could not be checked. Raises InputError where a value is unlike the saved one and nothing changed."""
    given = [key for key, is_given in found.items() if is_given]
    # A loader may take its place up only when it is iterated.
    if given and not changed and not isinstance(value, Iterable):
        raise not_restored(given[0])
    keys = ", ".join([*found][:3])
    return f"{name}: could not be checked: after load_state_dict() its state_dict() differs in {keys}" if keys else ""


def versions(tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """How often each was written through PyTorch; -1 where PyTorch does not count."""
    return {key: _version(local_of(tensor)) for key, tensor in tensors.items()}


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def compare(
    loaded: Mapping[str, torch.Tensor], live: Mapping[str, torch.Tensor], before: Mapping[str, int]
) -> list[str]:
    """Keys whose memory was filled and then written again, to be compared with a second reading.

    `before`: versions of `loaded` when its bytes were verified. Raises InputError for a key that holds other bits.
    """
    again: list[str] = []
    for key, tensor in loaded.items():
        if key not in live:
            raise not_restored(key)
        if memory_at(live[key]) != memory_at(tensor):
            check_same(key, live[key], tensor)
        # The very memory that was verified: only a later write can have changed it.
        elif before[key] < 0 or before[key] != _version(local_of(live[key])):
            again.append(key)
    return again


def check_same(key: str, live: torch.Tensor, truth: torch.Tensor) -> None:
    """Raises InputError."""
    if not _same(live, truth):
        raise not_restored(key)


def _same(live: torch.Tensor, truth: torch.Tensor) -> bool:
    a, b = local_of(live), local_of(truth)
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(_bits(a), _bits(b).to(a.device))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    # As bytes: a NaN equals no NaN, and -0.0 equals 0.0.
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def not_restored(key: str) -> InputError:
    return InputError(
        "state was not restored: it holds other bits than the checkpoint that was loaded into it",
        got=key,
        allowed="a load_state_dict() after which state_dict() gives back what was loaded",
        fix="fix load_state_dict() (or set_extra_state) of this entry, or leave the entry out of the state",
    )
