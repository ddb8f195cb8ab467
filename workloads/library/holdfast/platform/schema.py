"""Makes the JSON Schema of the document from the dataclasses and the text below each field.

`python -m holdfast.platform.schema` prints it; schema.json in this folder is its output, for
editors and validators.
"""

import argparse
import ast
import inspect
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from itertools import pairwise
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from holdfast.platform.codec import get_optional_type, is_required
from holdfast.platform.document import SCHEMA, Platform

_TYPES = {
    str: "string",
    int: "integer",
    bool: "boolean",
}


def schema() -> dict[str, Any]:
    body = _describe_object(Platform)
    body["properties"] = {"schema": {"const": SCHEMA}} | body["properties"]
    body["required"] = ["schema", *body["required"]]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": SCHEMA,
        **body,
    }


def _describe_object(kind: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    notes = _read_notes(kind)
    properties: dict[str, Any] = {}
    required: list[str] = []
    for field in fields(kind):
        description = {"description": notes[field.name]} if field.name in notes else {}
        properties[field.name] = description | _describe(hints[field.name])
        if is_required(field):
            required.append(field.name)
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _describe(kind: Any) -> dict[str, Any]:
    if isinstance(kind, UnionType):
        return {"anyOf": [_describe(get_optional_type(kind)), {"type": "null"}]}
    if get_origin(kind) is tuple:
        return _describe_tuple(get_args(kind))
    if get_origin(kind) is Mapping:
        return {
            "type": "object",
            "additionalProperties": _describe(get_args(kind)[1]),
        }
    if is_dataclass(kind):
        return _describe_object(kind)  # pyright: ignore[reportArgumentType]
    if issubclass(kind, Enum):
        return {"enum": [member.value for member in kind]}
    return {"type": _TYPES[kind]}


def _describe_tuple(types: tuple[Any, ...]) -> dict[str, Any]:
    if types[-1] is Ellipsis:
        return {
            "type": "array",
            "items": _describe(types[0]),
        }
    return {
        "type": "array",
        "prefixItems": list(map(_describe, types)),
        "minItems": len(types),
        "maxItems": len(types),
    }


def _read_notes(kind: type[Any]) -> dict[str, str]:
    """Reads the string below each field, which Python throws away. Field -> text in one line."""
    definition = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(definition, ast.ClassDef)
    notes: dict[str, str] = {}
    for statement, successor in pairwise(definition.body):
        if isinstance(statement, ast.AnnAssign) and isinstance(successor, ast.Expr):
            target = statement.target
            note = successor.value
            if isinstance(target, ast.Name) and isinstance(note, ast.Constant):
                notes[target.id] = " ".join(str(note.value).split())
    return notes


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(json.dumps(schema(), indent=1))
