"""The JSON Schema of the document, made from the dataclasses and the text below each field.

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
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from holdfast.platform.codec import is_required
from holdfast.platform.document import SCHEMA, Platform

_TYPES = {
    str: "string",
    int: "integer",
    bool: "boolean",
}


def schema() -> dict[str, Any]:
    body = _object(Platform)
    body["properties"] = {"schema": {"const": SCHEMA}} | body["properties"]
    body["required"] = ["schema", *body["required"]]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": SCHEMA,
        **body,
    }


def _object(kind: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    texts = _texts(kind)
    properties = {each.name: _of(hints[each.name]) for each in fields(kind)}
    for name, text in texts.items():
        properties[name] = {"description": text} | properties[name]
    required = [each.name for each in fields(kind) if is_required(each)]
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _of(kind: Any) -> dict[str, Any]:
    if isinstance(kind, UnionType):
        (inner,) = (each for each in get_args(kind) if each is not NoneType)
        return {"anyOf": [_of(inner), {"type": "null"}]}
    if get_origin(kind) is tuple:
        kinds = get_args(kind)
        if kinds[-1] is Ellipsis:
            return {
                "type": "array",
                "items": _of(kinds[0]),
            }
        return {
            "type": "array",
            "prefixItems": [_of(each) for each in kinds],
            "minItems": len(kinds),
            "maxItems": len(kinds),
        }
    if get_origin(kind) is Mapping:
        return {
            "type": "object",
            "additionalProperties": _of(get_args(kind)[1]),
        }
    if is_dataclass(kind):
        return _object(kind)  # pyright: ignore[reportArgumentType]
    if issubclass(kind, Enum):
        return {"enum": [each.value for each in kind]}
    return {"type": _TYPES[kind]}


def _texts(kind: type[Any]) -> dict[str, str]:
    """Field -> the string below it, which Python throws away."""
    tree = ast.parse(inspect.getsource(kind))
    (body,) = (node.body for node in tree.body if isinstance(node, ast.ClassDef))
    return {
        field.target.id: " ".join(str(below.value.value).split())
        for field, below in pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
        and isinstance(below.value.value, str)
    }


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(json.dumps(schema(), indent=1))
