"""Values as named tensors plus a JSON skeleton, which holds data and no code.

A value is restored with the type that it had. A value of a type that cannot be stored is refused
and never converted. JSON has fewer types than Python: the others are written as an object with one
key that begins with `$`. No class is looked up by a name from a checkpoint, so a checkpoint cannot
run code.
"""

import builtins
import math
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from importlib import import_module
from itertools import zip_longest
from typing import Any

import torch

from holdfast.checkpoint.format.dtypes import dtype_of
from holdfast.checkpoint.format.validation import (
    FACTORIES,
    MAX_DEPTH,
    MAX_INT_BITS,
    NUMPY_DTYPES,
    walk_nodes,
)
from holdfast.checkpoint.state import wrapped_tensors
from holdfast.checkpoint.state.tensors import dtype_name, is_wrapper
from holdfast.support.errors import InputError

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
        if is_wrapper(value):
            return _encode_wrapper(value, key, put)
        put(key, value)
        return {"$tensor": key}
    # Not isinstance: an IntEnum is an int and a namedtuple a tuple, and neither would be restored.
    kind: type = type(value)
    if kind in _SCALAR_SKELETONS:
        return _SCALAR_SKELETONS[kind](value, key)
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


def _encode_wrapper(
    tensor: torch.Tensor,
    key: str,
    put: Put,
) -> Skeleton:
    """Encode a tensor that wraps others as its type, its settings and the tensors inside."""
    parts, settings = wrapped_tensors.flatten(tensor, key)
    pairs: list[Skeleton] = []
    for name, part in parts.items():
        skeleton = encode_value(part, f"{key}/{name}", put)
        pairs.append([name, skeleton])
    return {
        "$wrapped": [
            wrapped_tensors.type_name(type(tensor)),
            _encode_settings(settings, key, put),
            {"$size": list(tensor.shape)},
            {"$size": list(tensor.stride())},
            pairs,
        ]
    }


def _encode_settings(
    settings: Any,
    key: str,
    put: Put,
) -> Skeleton:
    try:
        return encode_value(settings, f"{key}/settings", put)
    except InputError as error:
        raise InputError(
            f"tensor {key} wraps other tensors, with settings that cannot be stored",
            got=error.got,
            allowed="settings of plain values, dtypes and members of an Enum",
            fix=(
                "leave it out of the state: put only trained modules there, and quantize the"
                " frozen weights again at each start"
            ),
        ) from error


def _encode_int(value: int, key: str) -> Skeleton:
    # Python refuses to write a number of more than 4,300 digits as text.
    if value.bit_length() > MAX_INT_BITS:
        raise InputError(
            f"state entry {key} is an int that cannot be stored",
            got=f"an int of {value.bit_length()} bits",
            allowed=f"at most {MAX_INT_BITS} bits",
            fix="store hex(...) of it, and int(..., 16) in load_state_dict()",
        )
    return value


def _encode_float(value: float, _: str) -> Skeleton:
    # JSON has no infinities; those of the standard module are rejected by other readers.
    return value if math.isfinite(value) else {"$float": str(value)}


_SCALAR_SKELETONS: dict[type, Callable[[Any, str], Skeleton]] = {
    type(None): lambda value, _: value,
    bool: lambda value, _: value,
    str: lambda value, _: value,
    int: _encode_int,
    float: _encode_float,
    bytes: lambda value, _: {"$bytes": value.hex()},
    torch.Size: lambda value, _: {"$size": list(value)},
    torch.dtype: lambda value, _: {"$dtype": dtype_name(value)},
}


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
    # A scalar only: an array, even one of no axes, would be restored as another type.
    class_names = {kind.__name__ for kind in type(value).__mro__}
    is_scalar = type(value).__module__ == "numpy" and "generic" in class_names
    return value.dtype.str if is_scalar else ""


def _type_error(value: Any, key: str) -> InputError:
    return InputError(
        f"state entry {key} can be neither stored as a tensor nor as JSON",
        got=f"a {type(value).__module__}.{type(value).__qualname__}",
        allowed=(
            "tensors, None, bool, int, float, str, bytes, torch.dtype, NumPy scalars, and dicts"
            " (OrderedDict, defaultdict, Counter), lists, tuples of these"
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
    if isinstance(value, complex):
        return "store [value.real, value.imag], and complex(*...) in load_state_dict()"
    if isinstance(value, torch.device):
        return "store str(...) of it, and torch.device(...) in load_state_dict()"
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
    if mark == "$wrapped":
        return _decode_wrapper(content, tensor_of)
    return _SCALARS[mark](content)


def _decode_pairs(pairs: Iterable[tuple[Any, Skeleton]], tensor_of: TensorLookup) -> dict[Any, Any]:
    return {name: decode(item, tensor_of) for name, item in pairs}


def _decode_wrapper(content: list[Any], tensor_of: TensorLookup) -> Any:
    name, settings, size, stride, pairs = content
    parts = _decode_pairs(pairs, tensor_of)
    # A lookup that has no tensors asks for the structure only.
    if any(part is None for part in parts.values()):
        return None
    return wrapped_tensors.unflatten(
        name,
        parts,
        decode(settings, tensor_of),
        decode(size, tensor_of),
        decode(stride, tensor_of),
    )


def _decode_numpy(content: tuple[str, str]) -> Any:
    dtype, data = content
    array = import_module("numpy").frombuffer(bytes.fromhex(data), dtype=dtype)
    return array[0]


def _decode_dtype(name: str) -> torch.dtype:
    dtype = dtype_of(name)
    if dtype is None:
        raise InputError(
            "checkpoint has a dtype that this PyTorch does not know",
            got=name,
            allowed="the PyTorch version that wrote it, or a newer one",
            fix="install it",
        )
    return dtype


_SCALARS: dict[str, Callable[[Any], Any]] = {
    "$float": float,
    "$bytes": bytes.fromhex,
    "$size": torch.Size,
    "$numpy": _decode_numpy,
    "$dtype": _decode_dtype,
}


def tensor_keys(skeleton: Skeleton) -> list[str]:
    """Return the keys of the tensors in a skeleton, in its order."""
    keys: list[str] = []
    # The value is not used, so a lookup that returns None is enough.
    decode(skeleton, keys.append)
    return keys


def list_wrapper_types(skeleton: Skeleton) -> dict[str, Skeleton]:
    """Return type, settings, size and strides of wrapped tensors by the key of their first part."""
    types: dict[str, Skeleton] = {}
    for mark, content in walk_nodes([skeleton]):
        if mark == "$wrapped":
            keys = tensor_keys({mark: content})
            types[keys[0] if keys else ""] = content[:-1]
    return types


def refill(live: Any, saved: Any) -> Any:
    """Put `saved` into the dicts and lists of `live` and return them; else return `saved`.

    A container of another type than the saved one is replaced.
    """
    # The user's loop holds references to these containers: it would not see new ones.
    if isinstance(live, dict) and same_container(live, saved):
        filled: dict[Any, Any] = {}
        for name, value in saved.items():
            filled[name] = refill(live.get(name), value)
        live.clear()
        live.update(filled)
        return live
    if isinstance(live, list) and same_container(live, saved):
        present = zip_longest(live[: len(saved)], saved)
        live[:] = [refill(item, value) for item, value in present]
        return live
    return saved


def same_container(live: Any, saved: Any) -> bool:
    """Return whether two containers have one type, and so the same behavior."""
    same_factory = getattr(live, "default_factory", None) is getattr(saved, "default_factory", None)
    return type(live) is type(saved) and same_factory
