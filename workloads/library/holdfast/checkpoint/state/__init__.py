"""A user's state as named tensors plus a JSON skeleton; values.py encodes its values."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from holdfast.checkpoint.format.decoding import MAX_KEY_CHARACTERS
from holdfast.checkpoint.state.module_keys import strip_keys
from holdfast.checkpoint.state.parameter_names import ParameterNames, add_names
from holdfast.checkpoint.state.random_streams import get_rng_state
from holdfast.checkpoint.state.snapshots import check_no_snapshot
from holdfast.checkpoint.state.tensors import Tensors, detach_storable, storage_address
from holdfast.checkpoint.state.values import Put as Put
from holdfast.checkpoint.state.values import Skeleton as Skeleton
from holdfast.checkpoint.state.values import TensorLookup as TensorLookup
from holdfast.checkpoint.state.values import decode as decode
from holdfast.checkpoint.state.values import encode_value as encode_value
from holdfast.checkpoint.state.values import refill as refill
from holdfast.checkpoint.state.values import tensor_keys as tensor_keys
from holdfast.support.errors import InputError

State = dict[str, Any]
"""The entries of a user's state, by name."""
# The entry that capture adds to those of the user.
RNG_KEY = "__rng__"
IMMUTABLE = (type(None), bool, int, float, complex, str, bytes, tuple, Enum)


@runtime_checkable
class Stateful(Protocol):
    """An object that saves and loads its own state, as modules and optimizers do."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any: ...


@dataclass(frozen=True, slots=True)
class PerRank:
    """Marks an entry that differs between ranks: its tensors are saved by every rank, not once.

    It wraps the value in the state.

        state = {"model": model, "optimizer": optimizer, "buffer": PerRank(replay_buffer)}
    """

    value: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Captured:
    """A state as it is saved: the skeleton, and the tensors that it names."""

    skeleton: Skeleton
    tensors: Tensors
    """Live tensors by key, not copies."""
    per_rank: frozenset[str]
    """Keys of tensors that belong to this rank alone."""
    frozen: frozenset[str] = frozenset()
    """Keys of parameters that are not trained."""


def capture(state: Mapping[str, Any], *, leave_out: Collection[str] = ()) -> Captured:
    """Encode a state and the random streams of the process. Nothing is copied.

    Entries in `leave_out` are not touched. Raises InputError for a value that cannot be stored.
    """
    entries = [(name, value) for name, value in targets(state) if name not in leave_out]
    encoded: dict[str, _Encoded] = {}
    held_tensors: Tensors = {}
    for name, value in entries:
        if not isinstance(value, torch.optim.Optimizer):
            encoded[name] = _encode_entry(name, _get_state(name, value))
            held_tensors |= encoded[name].tensors
    # Last: the names of their parameters are the keys of the other entries' tensors.
    names = ParameterNames(entries, held_tensors)
    for name, value in entries:
        if isinstance(value, torch.optim.Optimizer):
            _check_whole(name, value)
            encoded[name] = _encode_entry(name, add_names(name, value, names))
    tensors: Tensors = {}
    per_rank: set[str] = set()
    skeleton: dict[str, Skeleton] = {}
    for name, _ in entries:
        skeleton[name] = encoded[name].skeleton
        tensors |= encoded[name].tensors
        if isinstance(state[name], PerRank):
            per_rank.update(encoded[name].tensors)
    streams = _encode_entry(RNG_KEY, get_rng_state())
    skeleton[RNG_KEY] = streams.skeleton
    tensors |= streams.tensors
    per_rank.update(streams.tensors)
    return Captured(
        skeleton=skeleton,
        tensors=tensors,
        per_rank=frozenset(per_rank),
        frozen=_find_frozen(entries, tensors),
    )


def _find_frozen(entries: Iterable[tuple[str, Any]], tensors: Tensors) -> frozenset[str]:
    frozen: set[int] = set()
    for _, value in entries:
        if isinstance(value, nn.Module):
            for parameter in value.parameters():
                if not parameter.requires_grad:
                    frozen.add(storage_address(parameter))
    if not frozen:
        return frozenset()
    return frozenset(key for key, value in tensors.items() if storage_address(value) in frozen)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Encoded:
    """One entry of a state as it is saved."""

    skeleton: Skeleton
    tensors: Tensors


def _encode_entry(name: str, value: Any) -> _Encoded:
    tensors: Tensors = {}

    def put(key: str, tensor: torch.Tensor) -> None:
        if len(key) > MAX_KEY_CHARACTERS:
            raise InputError(
                f"tensor {key[:80]}... has a key that cannot be stored",
                got=f"{len(key)} characters",
                allowed=f"at most {MAX_KEY_CHARACTERS}, with the keys of the dicts around it",
                fix="use shorter keys in state_dict()",
            )
        tensors[key] = detach_storable(tensor, key)

    return _Encoded(skeleton=encode_value(value, name, put), tensors=tensors)


def without_streams(captured: Captured) -> Captured:
    """Return a captured state without the random streams."""
    tensors = dict(captured.tensors)
    for key in captured.tensors:
        if key.startswith(f"{RNG_KEY}/"):
            del tensors[key]
    skeleton = dict(captured.skeleton)
    skeleton.pop(RNG_KEY, None)
    return Captured(
        skeleton=skeleton,
        tensors=tensors,
        per_rank=frozenset(),
    )


def _get_state(name: str, value: Any) -> Any:
    # Duck typing: schedulers, loaders and wrappers of other libraries have the methods, but no
    # common class.
    if not isinstance(value, Stateful):
        return value
    state = value.state_dict()
    return strip_keys(state) if isinstance(value, nn.Module) else state


def _check_whole(name: str, optimizer: torch.optim.Optimizer) -> None:
    # Recognized by name: to import the class would cost every start a second.
    class_names = {kind.__name__ for kind in type(optimizer).__mro__}
    if "ZeroRedundancyOptimizer" in class_names:
        raise InputError(
            f"optimizer {name} holds the moments of this rank's parameters only",
            got="a ZeroRedundancyOptimizer, whose state exists whole on no rank",
            allowed=(
                "an optimizer of torch.optim, or one over the parameters of fully_shard (FSDP2),"
                " which shards it too"
            ),
            fix=f'fully_shard(model), then "{name}": torch.optim.AdamW(model.parameters())',
        )


def targets(state: Mapping[str, Any]) -> Sequence[tuple[str, Any]]:
    """Return the entries of a state without their PerRank marks."""
    entries: list[tuple[str, Any]] = []
    for name, entry in state.items():
        value = entry.value if isinstance(entry, PerRank) else entry
        entries.append((name, value))
    return entries


def _is_entry_name(name: str) -> bool:
    return bool(name) and "/" not in name and not name.startswith("__")


def checked_state(state: State) -> State:
    """Return `state` if it can be saved.

    Raises InputError for a name that no object can have, and for a value that cannot change.
    """
    wrong_names = [name for name in state if not _is_entry_name(name)]
    if wrong_names or not state:
        raise InputError(
            "state has an entry name that cannot be stored" if wrong_names else "state is empty",
            got=repr(wrong_names[:3]),
            allowed="at least one entry, with a name without '/' that does not begin with '__'",
            fix='for example {"model": model, "optimizer": optimizer}',
        )
    for name, value in targets(state):
        check_no_snapshot(name, value)
        # A new value of the caller's variable does not change what was passed here: each save would
        # store the value of the start, and a resume would begin with it.
        if isinstance(value, IMMUTABLE) or type(value).__module__ == "numpy":
            raise InputError(
                f"state entry {name} cannot change: every save would store its present value",
                got=f"{value!r:.80} (a {type(value).__name__})",
                allowed=(
                    "objects with a state_dict(), tensors, and dicts and lists that the loop"
                    " changes in place"
                ),
                fix=(
                    f'progress = {{"{name}": {value!r:.80}}}, then {{"progress": progress}} in the'
                    f' state; progress["{name}"] = ... in the loop, where it changes'
                ),
            )
    return state
