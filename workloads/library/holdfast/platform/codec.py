"""Frozen dataclasses to JSON and back, by their type hints. Errors name the path of the field."""

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, cast, get_args, get_origin, get_type_hints

from holdfast.support.errors import InputError

NAMES: dict[type, str] = {
    str: "a string",
    int: "a whole number",
    bool: "true or false",
}


def encode(value: Any) -> Any:
    """Lists, objects, strings, numbers, booleans and null."""
    if is_dataclass(value):
        return {each.name: encode(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: encode(item) for key, item in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, tuple):
        return [encode(item) for item in cast("tuple[Any, ...]", value)]
    return value


def decode(kind: Any, value: Any, path: str) -> Any:
    """An instance of `kind`. Raises InputError for a missing or unknown field and for a value of
    another type.
    """
    if isinstance(kind, UnionType):
        (inner,) = (each for each in get_args(kind) if each is not NoneType)
        return None if value is None else decode(inner, value, path)
    if get_origin(kind) is tuple:
        return _tuple(get_args(kind), value, path)
    if get_origin(kind) is Mapping:
        item = get_args(kind)[1]
        _require(isinstance(value, dict), path, value, "an object")
        return {str(key): decode(item, each, f"{path}.{key}") for key, each in value.items()}
    if is_dataclass(kind):
        return _instance(cast("type[Any]", kind), value, path)
    if issubclass(kind, Enum):
        allowed = [each.value for each in kind]
        _require(value in allowed, path, value, ", ".join(map(str, allowed)))
        return kind(value)
    _require(type(value) is kind, path, value, NAMES[kind])
    return value


def _tuple(kinds: tuple[Any, ...], value: Any, path: str) -> tuple[Any, ...]:
    _require(isinstance(value, list), path, value, "a list")
    if kinds[-1] is Ellipsis:
        return tuple(decode(kinds[0], each, f"{path}[{at}]") for at, each in enumerate(value))
    _require(len(value) == len(kinds), path, value, f"a list of {len(kinds)}")
    return tuple(
        decode(each, item, f"{path}[{at}]")
        for at, (each, item) in enumerate(zip(kinds, value, strict=True))
    )


def _instance(kind: type[Any], value: Any, path: str) -> Any:
    _require(isinstance(value, dict), path, value, "an object")
    known = {each.name: each for each in fields(kind)}
    hints = get_type_hints(kind)
    unknown = sorted(set(value) - set(known))
    _require(not unknown, path or "the document", f"unknown {', '.join(unknown)}", ", ".join(known))
    missing = [name for name, each in known.items() if name not in value and is_required(each)]
    _require(
        not missing,
        path or "the document",
        f"no {', '.join(missing)}",
        "every field without a default",
    )
    inside = f"{path}." if path else ""
    return kind(
        **{name: decode(hints[name], value[name], inside + name) for name in known if name in value}
    )


def is_required(each: Field[Any]) -> bool:
    return each.default is MISSING and each.default_factory is MISSING


def _require(ok: bool, path: str, got: object, allowed: str) -> None:
    if not ok:
        fix = "do not edit it by hand: python -m infra describe ENV writes it"
        raise InputError(
            f"platform document: {path}",
            got=f"{got!r:.200}",
            allowed=allowed,
            fix=fix,
        )
