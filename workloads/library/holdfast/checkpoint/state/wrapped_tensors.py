"""Tensors that wrap other tensors, as quantized weights and 8-bit moments do.

PyTorch's contract for them is `__tensor_flatten__` and `__tensor_unflatten__`: names of the tensors
inside, and settings. A checkpoint holds the tensors, the settings and the name of the type. The
type is looked up among the types of tensors that the program has loaded, and never imported.
"""

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

import torch

from holdfast.support.errors import InputError

_ENUM = "$enum"


def type_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def flatten(tensor: torch.Tensor, key: str) -> tuple[dict[str, torch.Tensor], Any]:
    """Return the tensors inside by name, and the settings. Raises InputError."""
    kind = type(tensor)
    if _find_type(type_name(kind), torch.Tensor) is not kind:
        raise InputError(
            f"tensor {key} wraps other tensors and cannot be built again from them",
            got=f"a {type_name(kind)}",
            allowed="types of a module, with __tensor_flatten__ and __tensor_unflatten__",
            fix="save the tensors that it wraps, or a dense copy of it",
        )
    names, settings = tensor.__tensor_flatten__()  # pyright: ignore[reportAttributeAccessIssue]
    parts = {name: getattr(tensor, name) for name in names}
    return parts, _pack(settings)


def _pack(settings: Any) -> Any:
    """Return settings with every member of an Enum as its name."""
    if isinstance(settings, Enum):
        return {_ENUM: [type_name(type(settings)), settings.name]}
    if type(settings) in (list, tuple):
        return type(settings)(_pack(item) for item in settings)
    if type(settings) is dict:
        return {name: _pack(item) for name, item in settings.items()}
    return settings


def _unpack(settings: Any) -> Any:
    if type(settings) in (list, tuple):
        return type(settings)(_unpack(item) for item in settings)
    if type(settings) is not dict:
        return settings
    if settings.keys() != {_ENUM}:
        return {name: _unpack(item) for name, item in settings.items()}
    name, member = settings[_ENUM]
    kind = _find_type(name, Enum)
    if kind is None:
        raise _import_error(name)
    return kind[member]


def unflatten(
    name: str,
    parts: Mapping[str, torch.Tensor],
    settings: Any,
    size: torch.Size,
    stride: torch.Size,
) -> torch.Tensor:
    """Return a tensor of the type `name` around `parts`. Raises InputError."""
    kind = _find_type(name, torch.Tensor)
    if kind is None:
        raise _import_error(name)
    try:
        return kind.__tensor_unflatten__(dict(parts), _unpack(settings), size, tuple(stride))
    except (
        ArithmeticError,
        AssertionError,
        AttributeError,
        LookupError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        raise InputError(
            f"a tensor of type {name} cannot be built again",
            got=f"{error!r}"[:200],
            allowed="the version of the package that saved it, or a compatible one",
            fix=f"install the version of {name.partition('.')[0]} that wrote the checkpoint",
        ) from error


def _import_error(name: str) -> InputError:
    return InputError(
        "checkpoint has tensors of a type that this program has not imported",
        got=name,
        allowed="types that are loaded before the start",
        fix=f"import {name.rpartition('.')[0]} before the Checkpointer",
    )


def _find_type(name: str, base: type) -> Any:
    """Return the loaded type of a name, if it is below `base` and can be built again."""
    for kind in _walk_types(base):
        is_buildable = base is Enum or hasattr(kind, "__tensor_unflatten__")
        if is_buildable and type_name(kind) == name:
            return kind
    return None


def _walk_types(kind: type) -> Iterator[type]:
    for subtype in type.__subclasses__(kind):
        yield subtype
        yield from _walk_types(subtype)
