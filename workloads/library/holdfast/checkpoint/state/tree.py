"""A user's state as named tensors plus a JSON skeleton. Nothing else can be saved, so nothing can run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, runtime_checkable

import torch

from holdfast.checkpoint.state.random_streams import rng_state
from holdfast.checkpoint.state.tensors import storable
from holdfast.checkpoint.state.values import Skeleton, encode_value
from holdfast.contract.errors import InputError

# Written by capture in addition to the user's own entries.
RNG_KEY = "__rng__"
IMMUTABLE = (type(None), bool, int, float, complex, str, bytes, tuple, Enum)


@runtime_checkable
class Stateful(Protocol):
    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any: ...


@dataclass(frozen=True, slots=True)
class PerRank:
    """Marks an entry that differs between ranks: its tensors are saved by every rank, not once."""

    value: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Captured:
    skeleton: Skeleton
    tensors: dict[str, torch.Tensor]
    """Live tensors by key, not copies."""
    per_rank: frozenset[str]
    """Keys of tensors that belong to this rank alone."""


def capture(state: Mapping[str, Any]) -> Captured:
    tensors: dict[str, torch.Tensor] = {}
    per_rank: set[str] = set()
    skeleton: dict[str, Skeleton] = {}

    def put(key: str, tensor: torch.Tensor) -> None:
        tensors[key] = storable(tensor, key)

    for name, entry in state.items():
        value = entry.value if isinstance(entry, PerRank) else entry
        before = len(tensors)
        skeleton[name] = encode_value(_state_of(name, value), name, put)
        if isinstance(entry, PerRank):
            per_rank.update(list(tensors)[before:])
    before = len(tensors)
    skeleton[RNG_KEY] = encode_value(rng_state(), RNG_KEY, put)
    per_rank.update(list(tensors)[before:])
    return Captured(skeleton=skeleton, tensors=tensors, per_rank=frozenset(per_rank))


def encode(value: Any, key: str) -> Skeleton:
    """A value without tensors. Raises InputError for a type that cannot be stored."""

    def put(key: str, tensor: torch.Tensor) -> None:
        raise AssertionError(f"{key} is a tensor of shape {tensor.shape}")

    return encode_value(value, key, put)


def _state_of(name: str, value: Any) -> Any:
    # By duck typing: schedulers, loaders and wrappers of other libraries have the methods and no common class.
    if not isinstance(value, Stateful):
        return value
    # By name: to import it would cost every start a second.
    if any(kind.__name__ == "ZeroRedundancyOptimizer" for kind in type(value).__mro__):
        raise InputError(
            f"optimizer {name} holds the moments of this rank's parameters only",
            got="a ZeroRedundancyOptimizer, whose state exists whole on no rank",
            allowed="an optimizer of torch.optim, or one over the parameters of fully_shard (FSDP2), which shards it too",
            fix=f'fully_shard(model), then "{name}": torch.optim.AdamW(model.parameters())',
        )
    return value.state_dict()


def targets(state: Mapping[str, Any]) -> Sequence[tuple[str, Any]]:
    """The entries of a state without their PerRank marks."""
    return [(name, entry.value if isinstance(entry, PerRank) else entry) for name, entry in state.items()]


def checked_state(state: dict[str, Any]) -> dict[str, Any]:
    """Raises InputError for names that no object can have, and values that cannot change."""
    wrong = [name for name in state if not name or "/" in name or name.startswith("__")]
    if wrong or not state:
        raise InputError(
            "state has an entry name that cannot be stored" if wrong else "state is empty",
            got=repr(wrong[:3]),
            allowed="at least one entry, with a name without '/' that does not begin with '__'",
            fix='for example {"model": model, "optimizer": optimizer}',
        )
    for name, value in targets(state):
        if isinstance(value, IMMUTABLE) or type(value).__module__ == "numpy":
            raise _immutable(name, value)
    return state


def _immutable(name: str, value: object) -> InputError:
    # Nothing that the caller does to a variable reaches what was passed here: each save would store the
    # value of the start, and a resume would begin with it.
    return InputError(
        f"state entry {name} cannot change: every save would store what it is now",
        got=f"{value!r:.80} (a {type(value).__name__})",
        allowed="objects with a state_dict(), tensors, and dicts and lists that the loop changes in place",
        fix=f'progress = {{"{name}": {value!r:.80}}}, then {{"progress": progress}} in the state; '
        f'progress["{name}"] = ... in the loop, where it changes',
    )
