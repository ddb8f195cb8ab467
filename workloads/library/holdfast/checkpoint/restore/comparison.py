"""Compare a loaded state with what was verified, bit by bit or by its state_dict()."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from holdfast.checkpoint.format.validation import MAPPINGS
from holdfast.checkpoint.state import Captured, Skeleton, Stateful, tensor_keys
from holdfast.checkpoint.state.tensors import storage_address, to_local
from holdfast.support.errors import InputError

# Objects whose state_dict() after load_state_dict() returns what was loaded; that of loaders and
# schedulers may not.
EXACT = (nn.Module, torch.optim.Optimizer, torch.Tensor)
# Elements of a tensor that show whether it changed: more would read each average of a model's
# weights again.
_HEAD_ELEMENTS = 1024
_MISSING = ["missing"]
"""A skeleton of no value that a module or an optimizer has."""


def has_own_format(value: Any) -> bool:
    """Return whether an entry has a state format of its own, as loaders and schedulers have."""
    return isinstance(value, Stateful) and not isinstance(value, EXACT)


def keeps_position(value: Any) -> bool:
    """Return whether an entry is a loader with a state format of its own.

    Its state_dict() may begin an iteration, which then ignores what is loaded: it is called only
    after the load.
    """
    return has_own_format(value) and isinstance(value, Iterable)


def fingerprint(captured: Captured, name: str) -> str:
    """Return a digest of an entry's values and of the first elements of its tensors.

    It stays the same if load_state_dict() did nothing.
    """
    skeleton = captured.skeleton[name]
    digest = hashlib.sha256(json.dumps(skeleton).encode())
    for key in tensor_keys(skeleton):
        local = to_local(captured.tensors[key])
        head = view_bytes(local.flatten()[:_HEAD_ELEMENTS])
        digest.update(bytes(head.tolist()))
    return digest.hexdigest()


def find_differences(
    name: str,
    saved: Skeleton,
    tensors: Mapping[str, torch.Tensor],
    after: Captured,
) -> dict[str, bool]:
    """Return the keys in which an entry's state_dict() differs from the saved one.

    The value is True if the key is present in the state_dict() after the load.
    """
    saved_items = _list_items(saved)
    live_items = _list_items(after.skeleton[name])
    differences: dict[str, bool] = {}
    for key, item in saved_items.items():
        is_present = key in live_items
        same_values = is_present and live_items[key] == item
        if not same_values or not _same_tensors(item, after, tensors):
            full_key = f"{name}/{key}".rstrip("/")
            differences[full_key] = is_present
    return differences


def _same_tensors(
    skeleton: Skeleton,
    after: Captured,
    tensors: Mapping[str, torch.Tensor],
) -> bool:
    keys = tensor_keys(skeleton)
    return all(same_bits(after.tensors[key], tensors[key]) for key in keys)


def _list_items(skeleton: Skeleton) -> dict[str, Skeleton]:
    """Return the items of a mapping's skeleton by key; any other skeleton under an empty key."""
    if isinstance(skeleton, dict):
        ((mark, content),) = skeleton.items()
        if mark in MAPPINGS:
            return {str(key): item for key, item in content}
    return {"": skeleton}


def judge_differences(
    name: str,
    value: Any,
    differences: dict[str, bool],
    *,
    changed: bool,
) -> str:
    """Return a report of what could not be checked in an entry, or an empty string.

    `changed` tells whether the load changed its state_dict(). Raises InputError if a value differs
    from the saved one although nothing changed.
    """
    present = [key for key, is_present in differences.items() if is_present]
    # A loader may apply its position only when it is iterated.
    if present and not changed and not isinstance(value, Iterable):
        raise restore_error(present[0])
    keys = ", ".join([*differences][:3])
    if not keys:
        return ""
    return (
        f"{name}: could not be checked: after load_state_dict() its state_dict() differs in {keys}"
    )


def count_writes(tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Return how often PyTorch has written each tensor; -1 if it does not count them."""
    return {key: _count_writes(tensor) for key, tensor in tensors.items()}


def _count_writes(tensor: torch.Tensor) -> int:
    local = to_local(tensor)
    return -1 if local.is_inference() else local._version


def find_rewritten(
    loaded: Mapping[str, torch.Tensor],
    live: Mapping[str, torch.Tensor],
    write_counts: Mapping[str, int],
) -> list[str]:
    """Compare live tensors with the loaded ones. Returns the keys that need a second reading.

    These are live tensors in the memory that was verified, but written since. `write_counts` are
    those of `loaded` when its bytes were verified. Raises InputError for a key with other bits.
    """
    rewritten: list[str] = []
    for key, tensor in loaded.items():
        if key not in live:
            raise restore_error(key)
        if storage_address(live[key]) != storage_address(tensor):
            check_same(key, live[key], tensor)
            continue
        count = write_counts[key]
        if count < 0 or count != _count_writes(live[key]):
            rewritten.append(key)
    return rewritten


def check_same(
    key: str,
    live: torch.Tensor,
    expected: torch.Tensor,
) -> None:
    """Raise InputError unless both tensors have the same bits."""
    if not same_bits(live, expected):
        raise restore_error(key)


def same_bits(live: torch.Tensor, expected: torch.Tensor) -> bool:
    live = to_local(live)
    expected = to_local(expected)
    if live.shape != expected.shape:
        return False
    if live.dtype != expected.dtype:
        return False
    live_bytes = view_bytes(live)
    expected_bytes = view_bytes(expected).to(live.device)
    return torch.equal(live_bytes, expected_bytes)


def view_bytes(tensor: torch.Tensor) -> torch.Tensor:
    # As bytes: a NaN equals no NaN, and -0.0 equals 0.0.
    flat = tensor.detach().contiguous().view(-1)
    return flat.view(torch.uint8)


def restore_error(key: str) -> InputError:
    return InputError(
        "state was not restored: it holds other bits than the checkpoint that was loaded into it",
        got=key,
        allowed="a load_state_dict() after which state_dict() returns what was loaded",
        fix=(
            "fix load_state_dict() (or set_extra_state) of this entry, or leave the entry out of"
            " the state"
        ),
    )


def check_values(
    name: str,
    saved: Skeleton,
    after: Skeleton,
    find_live_key: Callable[[str], str],
) -> None:
    """Raise InputError unless a module or an optimizer has the values that were loaded.

    `find_live_key` returns the live key of a value by its key in the checkpoint. Settings of an
    optimizer's groups are not compared: PyTorch adds those of its version.
    """
    saved_items = _list_items(saved)
    after_items = _list_items(after)
    if "param_groups" in saved_items and "state" in saved_items:
        saved_items = _list_items(saved_items["state"])
        after_items = _list_items(after_items.get("state", {"$map": []}))
    for key, item in saved_items.items():
        live_item = after_items.get(find_live_key(key), after_items.get(key, _MISSING))
        if _blank(live_item) != _blank(item):
            raise restore_error(f"{name}/{key}".rstrip("/"))


def _blank(skeleton: Skeleton) -> Skeleton:
    """Return a skeleton without the keys of its tensors, which differ with their numbers."""
    if isinstance(skeleton, list):
        return [_blank(item) for item in skeleton]
    if not isinstance(skeleton, dict):
        return skeleton
    blanks: dict[str, Skeleton] = {}
    for mark, item in skeleton.items():
        blanks[mark] = None if mark == "$tensor" else _blank(item)
    return blanks
