"""Reads and writes a platform document: frozen dataclasses to JSON and back, by their type hints.

A document that cannot be read raises an error that names the path of the field; nothing is guessed.

Decision: infra/decisions/0177.
"""

import json
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cache, lru_cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, cast, get_args, get_origin, get_type_hints

from holdfast.platform.document import SCHEMA, Platform
from holdfast.support.distribution import DISTRIBUTION
from holdfast.support.errors import InputError

FILE = "platform.json"
MAX_BYTES = 1_000_000  # the bound of a ConfigMap
_WRITE = "leave --platform out: commands read the document of the cluster"
_REWRITE = "do not edit it by hand: take the document that your platform team wrote"
NAMES: dict[type, str] = {
    str: "a string",
    int: "a whole number",
    bool: "true or false",
}


def text(platform: Platform) -> str:
    """Returns the text of a platform's document."""
    return json.dumps({"schema": SCHEMA, **encode(platform)}, indent=1) + "\n"


def read(path: Path) -> Platform:
    """Reads the platform of a file. Raises InputError."""
    try:
        document = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _reject(str(path), str(error), "a file that can be read") from error
    return parse(document, str(path))


@lru_cache(maxsize=4)
def parse(document: str, source: str) -> Platform:
    """Reads the platform of a document; `source` names it in errors. Raises InputError.

    The linter reads the same document for each file.
    """
    if len(document) > MAX_BYTES:
        raise _reject(source, f"{len(document):,} characters", f"at most {MAX_BYTES:,}")
    try:
        body: Any = json.loads(document)
    except (ValueError, RecursionError) as error:
        raise _reject(source, f"no JSON: {error}", "one JSON object") from error
    if not isinstance(body, dict):
        raise _reject(source, type(body).__name__, "one JSON object")
    schema = body.pop("schema", None)
    if schema != SCHEMA:
        raise _reject_schema(source, schema)
    try:
        return decode(Platform, body, "")
    except InputError as error:
        raise InputError(
            f"{source}: {error.what}",
            got=error.got,
            allowed=error.allowed,
            fix=error.fix,
        ) from error


def _reject_schema(source: str, schema: object) -> InputError:
    family, _, number = str(schema).partition("/")
    own_family, _, own_number = SCHEMA.partition("/")
    if family != own_family or not number.isdecimal():
        return _reject(source, f"schema {schema!r:.100}", SCHEMA)
    if int(number) > int(own_number):
        fix = f"pip install -U {DISTRIBUTION}, or the wheel that the platform pins"
    else:
        fix = f"ask the platform team to write it again with this release of {DISTRIBUTION}"
    return InputError(
        f"{source}: schema",
        got=schema,
        allowed=f"{SCHEMA}, which this release reads",
        fix=fix,
    )


def _reject(source: str, got: str, allowed: str) -> InputError:
    return InputError(
        f"{source} is no platform document",
        got=got[:300],
        allowed=allowed,
        fix=_WRITE,
    )


def encode(value: Any) -> Any:
    """Returns a value of a document as lists, objects, strings, numbers, booleans and null."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return list(map(encode, cast("tuple[Any, ...]", value)))
    body: dict[str, Any] = {}
    if isinstance(value, Mapping):
        for key, item in cast("Mapping[str, Any]", value).items():
            body[key] = encode(item)
        return body
    if is_dataclass(value):
        for field in fields(value):
            body[field.name] = encode(getattr(value, field.name))
        return body
    return value


def decode(kind: Any, value: Any, path: str) -> Any:
    """Returns an instance of `kind`.

    Raises InputError for a missing or unknown field and for a value of another type.
    """
    if isinstance(kind, UnionType):
        return None if value is None else decode(get_optional_type(kind), value, path)
    if get_origin(kind) is tuple:
        return _decode_tuple(get_args(kind), value, path)
    if get_origin(kind) is Mapping:
        return _decode_map(get_args(kind)[1], value, path)
    if is_dataclass(kind):
        return _decode_object(cast("type[Any]", kind), value, path)
    if issubclass(kind, Enum):
        members = [member.value for member in kind]
        allowed = ", ".join(map(str, members))
        _require(value in members, path, value, allowed)
        return kind(value)
    _require(type(value) is kind, path, value, NAMES[kind])
    return value


def get_optional_type(union: UnionType) -> Any:
    """Returns the one type of a union that is not None."""
    (inner,) = set(get_args(union)) - {NoneType}
    return inner


def _decode_map(item_type: Any, value: Any, path: str) -> dict[str, Any]:
    _require(isinstance(value, dict), path, value, "an object")
    items: dict[str, Any] = {}
    for key, item in value.items():
        items[str(key)] = decode(item_type, item, f"{path}.{key}")
    return items


def _decode_tuple(types: tuple[Any, ...], value: Any, path: str) -> tuple[Any, ...]:
    _require(isinstance(value, list), path, value, "a list")
    if types[-1] is Ellipsis:
        types = (types[0],) * len(value)
    _require(len(value) == len(types), path, value, f"a list of {len(types)}")
    items: list[Any] = []
    for index, (item_type, item) in enumerate(zip(types, value, strict=True)):
        items.append(decode(item_type, item, f"{path}[{index}]"))
    return tuple(items)


def _decode_object(kind: type[Any], value: Any, path: str) -> Any:
    _require(isinstance(value, dict), path, value, "an object")
    name = path or "the document"
    prefix = f"{path}." if path else ""
    hints = _find_hints(kind)
    known_fields = {field.name: field for field in fields(kind)}
    unknown_names = sorted(set(value) - set(known_fields))
    _require(
        not unknown_names, name, f"unknown {', '.join(unknown_names)}", ", ".join(known_fields)
    )
    missing_names: list[str] = []
    for field_name, field in known_fields.items():
        if field_name not in value and is_required(field):
            missing_names.append(field_name)
    missing = f"no {', '.join(missing_names)}"
    _require(not missing_names, name, missing, "every field without a default")
    arguments: dict[str, Any] = {}
    for field_name in known_fields:
        if field_name in value:
            path = prefix + field_name
            arguments[field_name] = decode(hints[field_name], value[field_name], path)
    return kind(**arguments)


@cache
def _find_hints(kind: type[Any]) -> dict[str, Any]:
    """Returns the types of a dataclass's fields, which Python would evaluate for each object."""
    return get_type_hints(kind)


def is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _require(ok: bool, path: str, got: object, allowed: str) -> None:
    if not ok:
        raise InputError(
            f"platform document: {path}",
            got=f"{got!r:.200}",
            allowed=allowed,
            fix=_REWRITE,
        )
