"""Refuse what state_dict() returned as an entry: it is a snapshot and does not follow its object.

The weights in it are those of the live module, but moments that an optimizer creates later, its
settings, a scheduler's and a loader's position are not: every save would store those of the start.
"""

from collections import OrderedDict
from typing import Any

from holdfast.support.errors import InputError

_KEYS: dict[str, tuple[frozenset[str], ...]] = {
    "optimizer": (frozenset({"state", "param_groups"}),),
    "scheduler": (
        frozenset({"last_epoch", "_last_lr"}),
        frozenset({"last_epoch", "base_lrs"}),
    ),
    "scaler": (frozenset({"growth_factor", "_growth_tracker"}),),
    "loader": (frozenset({"_num_yielded", "_iterator_finished"}),),
}
"""Keys by which the state of an object is recognized."""


def check_no_snapshot(name: str, value: Any) -> None:
    """Raise InputError if an entry is, or holds, the state_dict() of an object."""
    waiting = [(name, value)]
    visited: set[int] = set()
    while waiting:
        key, item = waiting.pop()
        if id(item) in visited:
            continue
        visited.add(id(item))
        kind = _recognize(item)
        if kind:
            raise InputError(
                f"state entry {key} is what state_dict() of a {kind} returned",
                got="a snapshot, which does not follow its object: saves would repeat it",
                allowed="the object itself; its state_dict() is called for each save",
                fix=f'pass the object: "{name}": {kind}',
            )
        if isinstance(item, dict):
            for child_key, child in item.items():
                waiting.append((f"{key}/{child_key}", child))
        elif isinstance(item, list | tuple):
            for index, child in enumerate(item):
                waiting.append((f"{key}/{index}", child))


def _recognize(item: Any) -> str:
    """Return the kind of object whose state an item is; empty for anything else."""
    if not isinstance(item, dict):
        return ""
    # Only Module.state_dict() sets this attribute.
    if isinstance(item, OrderedDict) and hasattr(item, "_metadata"):
        return "model"
    for kind, alternatives in _KEYS.items():
        if any(keys <= item.keys() for keys in alternatives):
            return kind
    return ""
