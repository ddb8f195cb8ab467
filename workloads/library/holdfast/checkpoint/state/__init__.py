"""A user's state as named tensors plus a JSON skeleton. Nothing else can be saved, so nothing can
run.

A value comes back as the very type that it had; one of any other type is refused, never changed.
JSON has fewer types than Python, so what it lacks is written as an object with one key that begins
with `$`. No class is looked up by a name from a checkpoint: what could run code cannot be spelled.
"""

import builtins
import math
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from typing import Any, Protocol, runtime_checkable

import torch

from holdfast.checkpoint.format.soundness import FACTORIES, MAX_DEPTH, NUMPY_DTYPES
from holdfast.checkpoint.state.parameter_names import named, parameter_names
from holdfast.checkpoint.state.random_streams import rng_state
from holdfast.checkpoint.state.tensors import storable
from holdfast.support.errors import InputError

Skeleton = Any
Put = Callable[[str, torch.Tensor], None]

_MAPPINGS: dict[type, str] = {
    dict: "$map",
    OrderedDict: "$ordered",
    Counter: "$counter",
}
_MAPPING_OF = {mark: kind for kind, mark in _MAPPINGS.items()}
_FACTORIES: dict[str, Any] = {name: getattr(builtins, name) if name else None for name in FACTORIES}


def encode_value(value: Any, key: str, put: Put) -> Skeleton:
    """`put` takes the tensors, by key. Raises InputError for what would come back as something
    else.
    """
    if isinstance(value, torch.Tensor):
        put(key, value)
        return {"$tensor": key}
    # and not isinstance: an IntEnum is an int, a namedtuple a tuple, and neither comes back
    kind: type = type(value)
    if value is None or kind in (bool, int, str):
        return value
    # JSON has no infinities; the standard module writes ones that no other reader takes.
    if kind is float:
        return value if math.isfinite(value) else {"$float": str(value)}
    if kind is bytes:
        return {"$bytes": value.hex()}
    if kind in _MAPPINGS:
        return {_MAPPINGS[kind]: _pairs(value, key, put)}
    if kind is defaultdict and (factory := _factory_name(value)) is not None:
        return {"$default": [factory, _pairs(value, key, put)]}
    if kind is torch.Size:
        return {"$size": list(value)}
    if kind in (list, tuple):
        _check_depth(key)
        items = [encode_value(item, f"{key}/{i}", put) for i, item in enumerate(value)]
        return items if kind is list else {"$tuple": items}
    dtype = _numpy_dtype(value)
    if dtype in NUMPY_DTYPES:
        return {"$numpy": [dtype, value.tobytes().hex()]}
    raise _refused(value, key)


def _pairs(value: Mapping[Any, Any], key: str, put: Put) -> list[Skeleton]:
    _check_depth(key)
    for name in value:
        # True equals 1 as a key, and JSON would give back either.
        if type(name) not in (str, int) or "/" in str(name):
            raise _wrong_key(key, name, "str keys without '/', or int keys")
        if isinstance(name, int) and str(name) in value:
            raise _wrong_key(
                key, name, f"not both {name} and {str(name)!r}, whose tensors would have one name"
            )
    return [[name, encode_value(item, f"{key}/{name}", put)] for name, item in value.items()]


def _wrong_key(key: str, name: object, allowed: str) -> InputError:
    return InputError(
        f"state entry {key} has a key that cannot be stored",
        got=repr(name)[:80],
        allowed=allowed,
        fix="convert the keys in state_dict()",
    )


def _check_depth(key: str) -> None:
    """Before Python's own stack ends. Raises InputError."""
    if key.count("/") >= MAX_DEPTH - 1:
        raise InputError(
            "a state entry contains itself, or is nested too deeply",
            got=f"{key[:60]}...",
            allowed=f"at most {MAX_DEPTH} dicts, lists and tuples inside each other",
            fix="store the values without what refers back to them",
        )


def _factory_name(value: defaultdict[Any, Any]) -> str | None:
    return next((name for name, kind in _FACTORIES.items() if value.default_factory is kind), None)


def _numpy_dtype(value: Any) -> str:
    """Of a NumPy scalar; empty for all else. NumPy is not imported for it."""
    # A scalar only: an array of any size would be stored as text.
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        return value.dtype.str
    return ""


def _refused(value: Any, key: str) -> InputError:
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


def decode(skeleton: Skeleton, tensor_of: Callable[[str], torch.Tensor | None]) -> Any:
    if isinstance(skeleton, list):
        return [decode(item, tensor_of) for item in skeleton]
    if not isinstance(skeleton, dict):
        return skeleton
    # One mark, as check_values has seen before anything is decoded.
    ((kind, value),) = skeleton.items()
    if kind == "$tensor":
        return tensor_of(value)
    if kind in _MAPPING_OF:
        # Counter takes an iterable for things to count, so a plain dict comes between.
        return _MAPPING_OF[kind](_named(value, tensor_of))
    if kind == "$default":
        return defaultdict(_FACTORIES[value[0]], _named(value[1], tensor_of))
    if kind == "$tuple":
        return tuple(decode(item, tensor_of) for item in value)
    return _SCALARS[kind](value)


def _named(
    pairs: Iterable[tuple[Any, Skeleton]], tensor_of: Callable[[str], torch.Tensor | None]
) -> dict[Any, Any]:
    return {name: decode(item, tensor_of) for name, item in pairs}


_SCALARS: dict[str, Callable[[Any], Any]] = {
    "$float": float,
    "$bytes": bytes.fromhex,
    "$size": torch.Size,
    "$numpy": (
        lambda value: import_module("numpy").frombuffer(bytes.fromhex(value[1]), dtype=value[0])[0]
    ),
}


def tensor_keys(skeleton: Skeleton) -> list[str]:
    found: list[str] = []
    decode(skeleton, lambda key: found.append(key) or torch.empty(0))
    return found


def refill(live: Any, saved: Any) -> Any:
    """`saved` in the very containers of `live`, which the user's code goes on changing; else
    `saved` itself.
    """
    # The loop holds references to these very containers: new ones would never reach it.
    if isinstance(live, dict) and isinstance(saved, dict):
        filled = {name: refill(live.get(name), value) for name, value in saved.items()}
        live.clear()
        live.update(filled)
        return live
    if isinstance(live, list) and isinstance(saved, list):
        live[:] = [
            refill(live[at] if at < len(live) else None, value) for at, value in enumerate(saved)
        ]
        return live
    return saved


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

    entries = targets(state)
    names = parameter_names(entries)
    for name, value in entries:
        before = len(tensors)
        skeleton[name] = encode_value(_state_of(name, value, names), name, put)
        if isinstance(state[name], PerRank):
            per_rank.update(list(tensors)[before:])
    before = len(tensors)
    skeleton[RNG_KEY] = encode_value(rng_state(), RNG_KEY, put)
    per_rank.update(list(tensors)[before:])
    return Captured(
        skeleton=skeleton,
        tensors=tensors,
        per_rank=frozenset(per_rank),
    )


def without_streams(captured: Captured) -> Captured:
    tensors = {
        key: found for key, found in captured.tensors.items() if not key.startswith(f"{RNG_KEY}/")
    }
    skeleton = {name: found for name, found in captured.skeleton.items() if name != RNG_KEY}
    return Captured(
        skeleton=skeleton,
        tensors=tensors,
        per_rank=frozenset(),
    )


def _state_of(name: str, value: Any, names: dict[int, str]) -> Any:
    # By duck typing: schedulers, loaders and wrappers of other libraries have the methods and no
    # common class.
    if not isinstance(value, Stateful):
        return value
    # By name: to import it would cost every start a second.
    if any(kind.__name__ == "ZeroRedundancyOptimizer" for kind in type(value).__mro__):
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
        return named(value, names)
    return value.state_dict()


def targets(state: Mapping[str, Any]) -> Sequence[tuple[str, Any]]:
    """The entries of a state without their PerRank marks."""
    return [
        (name, entry.value if isinstance(entry, PerRank) else entry)
        for name, entry in state.items()
    ]


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
        # Nothing that the caller does to a variable reaches what was passed here: each save would
        # store the value of the start, and a resume would begin with it.
        if isinstance(value, IMMUTABLE) or type(value).__module__ == "numpy":
            raise InputError(
                f"state entry {name} cannot change: every save would store what it is now",
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
