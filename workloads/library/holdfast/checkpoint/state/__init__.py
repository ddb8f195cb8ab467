"""A user's state as named tensors plus a JSON skeleton, which holds data and no code.

A value is restored with the type that it had. A value of a type that cannot be stored is refused
and never converted. JSON has fewer types than Python: the others are written as an object with one
key that begins with `$`. No class is looked up by a name from a checkpoint, so a checkpoint cannot
run code.
"""

import builtins
import math
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from itertools import zip_longest
from typing import Any, Protocol, runtime_checkable

import torch

from holdfast.checkpoint.format.validation import FACTORIES, MAX_DEPTH, NUMPY_DTYPES
from holdfast.checkpoint.state.parameter_names import add_names, parameter_names
from holdfast.checkpoint.state.random_streams import get_rng_state
from holdfast.checkpoint.state.tensors import Tensors, detach_storable
from holdfast.support.errors import InputError

State = dict[str, Any]
"""The entries of a user's state, by name."""
Skeleton = Any
Put = Callable[[str, torch.Tensor], None]
TensorLookup = Callable[[str], torch.Tensor | None]
"""Returns the tensor of a key."""

_MAPPINGS: dict[type, str] = {
    dict: "$map",
    OrderedDict: "$ordered",
    Counter: "$counter",
}
_MAPPING_TYPES = {mark: kind for kind, mark in _MAPPINGS.items()}
_FACTORIES: dict[str, Any] = {name: getattr(builtins, name, None) for name in FACTORIES}


def encode_value(
    value: Any,
    key: str,
    put: Put,
) -> Skeleton:
    """Return the skeleton of a value, and pass its tensors to `put` by key.

    Raises InputError for a value that could not be restored as it is.
    """
    if isinstance(value, torch.Tensor):
        put(key, value)
        return {"$tensor": key}
    # Not isinstance: an IntEnum is an int and a namedtuple a tuple, and neither would be restored.
    kind: type = type(value)
    if value is None or kind in (bool, int, str):
        return value
    # JSON has no infinities; those of the standard module are rejected by other readers.
    if kind is float:
        return value if math.isfinite(value) else {"$float": str(value)}
    if kind is bytes:
        return {"$bytes": value.hex()}
    if kind in _MAPPINGS:
        return {_MAPPINGS[kind]: _encode_pairs(value, key, put)}
    if kind is defaultdict:
        factory = _factory_name(value)
        if factory is not None:
            return {
                "$default": [
                    factory,
                    _encode_pairs(value, key, put),
                ]
            }
    if kind is torch.Size:
        return {"$size": list(value)}
    if kind in (list, tuple):
        _check_depth(key)
        items: list[Skeleton] = []
        for index, item in enumerate(value):
            items.append(encode_value(item, f"{key}/{index}", put))
        return items if kind is list else {"$tuple": items}
    dtype = _numpy_dtype(value)
    if dtype in NUMPY_DTYPES:
        return {"$numpy": [dtype, value.tobytes().hex()]}
    raise _type_error(value, key)


def _encode_pairs(
    value: Mapping[Any, Any],
    key: str,
    put: Put,
) -> list[Skeleton]:
    _check_depth(key)
    for name in value:
        # True equals 1 as a key, and JSON would give back either.
        is_key = type(name) in (str, int)
        if not is_key or "/" in str(name):
            raise _key_error(key, name, "str keys without '/', or int keys")
        if isinstance(name, int) and str(name) in value:
            raise _key_error(
                key, name, f"not both {name} and {str(name)!r}, whose tensors would have one name"
            )
    pairs: list[Skeleton] = []
    for name, item in value.items():
        skeleton = encode_value(item, f"{key}/{name}", put)
        pairs.append([name, skeleton])
    return pairs


def _key_error(
    key: str,
    name: object,
    allowed: str,
) -> InputError:
    return InputError(
        f"state entry {key} has a key that cannot be stored",
        got=repr(name)[:80],
        allowed=allowed,
        fix="convert the keys in state_dict()",
    )


def _check_depth(key: str) -> None:
    """Raise InputError before Python's own stack overflows."""
    if key.count("/") >= MAX_DEPTH - 1:
        raise InputError(
            "a state entry contains itself, or is nested too deeply",
            got=f"{key[:60]}...",
            allowed=f"at most {MAX_DEPTH} dicts, lists and tuples inside each other",
            fix="store the values without the references back to their containers",
        )


def _factory_name(value: defaultdict[Any, Any]) -> str | None:
    """Return the name of the factory; None for one that cannot be restored."""
    for name, factory in _FACTORIES.items():
        if value.default_factory is factory:
            return name
    return None


def _numpy_dtype(value: Any) -> str:
    """Return the dtype of a NumPy scalar; empty for other values. NumPy is not imported for it."""
    # A scalar only: an array of any size would be stored as text.
    is_scalar = getattr(value, "shape", None) == ()
    if is_scalar and type(value).__module__ == "numpy":
        return value.dtype.str
    return ""


def _type_error(value: Any, key: str) -> InputError:
    return InputError(
        f"state entry {key} can be neither stored as a tensor nor as JSON",
        got=f"a {type(value).__module__}.{type(value).__qualname__}",
        allowed=(
            "tensors, None, bool, int, float, str, bytes, NumPy scalars, and dicts (OrderedDict,"
            " defaultdict, Counter), lists, tuples of these"
        ),
        fix=_fix(value),
    )


def _fix(value: Any) -> str:
    if isinstance(value, Enum):
        return "store its .value and make the member again in load_state_dict()"
    if isinstance(value, tuple):
        return "store its _asdict(), and make the named tuple again in load_state_dict()"
    if hasattr(value, "state_dict"):
        return "make it an entry of its own in the state: state_dict() is called on entries only"
    if type(value).__module__ == "numpy":
        return "store torch.from_numpy(...) of it"
    if isinstance(value, set | frozenset):
        return "store sorted(...) of it, and make the set again in load_state_dict()"
    return "give the object a state_dict() that returns such values, or leave it out of the state"


def decode(skeleton: Skeleton, tensor_of: TensorLookup) -> Any:
    """Return the value of a skeleton. `tensor_of` returns the tensor of a key."""
    if isinstance(skeleton, list):
        return [decode(item, tensor_of) for item in skeleton]
    if not isinstance(skeleton, dict):
        return skeleton
    # One mark: check_values has made sure of that before anything is decoded.
    ((mark, content),) = skeleton.items()
    if mark == "$tensor":
        return tensor_of(content)
    if mark in _MAPPING_TYPES:
        # Through a plain dict: Counter would count the items of an iterable.
        return _MAPPING_TYPES[mark](_decode_pairs(content, tensor_of))
    if mark == "$default":
        factory, pairs = content
        return defaultdict(_FACTORIES[factory], _decode_pairs(pairs, tensor_of))
    if mark == "$tuple":
        return tuple(decode(item, tensor_of) for item in content)
    return _SCALARS[mark](content)


def _decode_pairs(pairs: Iterable[tuple[Any, Skeleton]], tensor_of: TensorLookup) -> dict[Any, Any]:
    return {name: decode(item, tensor_of) for name, item in pairs}


def _decode_numpy(content: tuple[str, str]) -> Any:
    dtype, data = content
    array = import_module("numpy").frombuffer(bytes.fromhex(data), dtype=dtype)
    return array[0]


_SCALARS: dict[str, Callable[[Any], Any]] = {
    "$float": float,
    "$bytes": bytes.fromhex,
    "$size": torch.Size,
    "$numpy": _decode_numpy,
}


def tensor_keys(skeleton: Skeleton) -> list[str]:
    """Return the keys of the tensors in a skeleton, in its order."""
    keys: list[str] = []
    # The value is not used, so a lookup that returns None is enough.
    decode(skeleton, keys.append)
    return keys


def refill(live: Any, saved: Any) -> Any:
    """Put `saved` into the dicts and lists of `live` and return them; else return `saved`."""
    # The user's loop holds references to these containers: it would not see new ones.
    if isinstance(live, dict) and isinstance(saved, dict):
        filled: dict[Any, Any] = {}
        for name, value in saved.items():
            filled[name] = refill(live.get(name), value)
        live.clear()
        live.update(filled)
        return live
    if isinstance(live, list) and isinstance(saved, list):
        present = zip_longest(live[: len(saved)], saved)
        live[:] = [refill(item, value) for item, value in present]
        return live
    return saved


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
    """Marks an entry that differs between ranks: its tensors are saved by every rank, not once."""

    value: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Captured:
    """A state as it is saved: the skeleton, and the tensors that it names."""

    skeleton: Skeleton
    tensors: Tensors
    """Live tensors by key, not copies."""
    per_rank: frozenset[str]
    """Keys of tensors that belong to this rank alone."""


def capture(state: Mapping[str, Any]) -> Captured:
    """Encode a state and the random streams of the process. Nothing is copied.

    Raises InputError for a value that cannot be stored.
    """
    tensors: Tensors = {}
    per_rank: set[str] = set()
    skeleton: dict[str, Skeleton] = {}

    def put(key: str, tensor: torch.Tensor) -> None:
        tensors[key] = detach_storable(tensor, key)

    entries = targets(state)
    names = parameter_names(entries)
    for name, value in entries:
        first = len(tensors)
        entry_state = _get_state(name, value, names)
        skeleton[name] = encode_value(entry_state, name, put)
        if isinstance(state[name], PerRank):
            per_rank.update(list(tensors)[first:])
    first = len(tensors)
    skeleton[RNG_KEY] = encode_value(get_rng_state(), RNG_KEY, put)
    per_rank.update(list(tensors)[first:])
    return Captured(
        skeleton=skeleton,
        tensors=tensors,
        per_rank=frozenset(per_rank),
    )


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


def _get_state(
    name: str,
    value: Any,
    names: dict[int, str],
) -> Any:
    # Duck typing: schedulers, loaders and wrappers of other libraries have the methods, but no
    # common class.
    if not isinstance(value, Stateful):
        return value
    # Recognised by name: to import the class would cost every start a second.
    class_names = {kind.__name__ for kind in type(value).__mro__}
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
    if isinstance(value, torch.optim.Optimizer):
        return add_names(value, names)
    return value.state_dict()


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
