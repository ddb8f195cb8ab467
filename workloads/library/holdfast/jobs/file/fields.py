"""Describes and checks a field of a job file, and of a service file.

The metadata of a field is its documentation, its line in the file, its JSON schema and its check.
"""

import re
from collections.abc import Iterable
from dataclasses import Field, field
from difflib import get_close_matches
from itertools import chain
from typing import Any

from holdfast.jobs.file import sweep_points
from holdfast.jobs.file.formats import TEXT, Form
from holdfast.support import node_range
from holdfast.support.errors import InputError
from holdfast.support.values import between, duration_s

MAX_NODES = 1000
DURATION = "^[0-9]{1,12}([.][0-9]{1,9})?[smhd]$"


def make_metadata(text: str, form: Form = TEXT, **schema: Any) -> dict[str, Any]:
    """Return the metadata of a field: its documentation, its form and its JSON schema."""
    return {
        "about": text,
        "form": form,
        "schema": schema,
    }


def about(
    text: str,
    default: Any = None,
    /,
    *,
    form: Form = TEXT,
    unit_s: float = 0.0,
    **schema: Any,
) -> Any:
    """Return a field with its documentation and its JSON schema.

    The field has the type of its default; with `None` it has no default and must be given.
    unit_s: the seconds of a number of this field, if it is a duration; a file may write `2d` too.
    """
    if isinstance(default, tuple):
        schema["items"] = {"type": "string", "pattern": form.pattern}
    elif form is not TEXT:
        fits = default is None or re.fullmatch(form.pattern, default)
        schema["pattern"] = form.pattern if fits else f"{default}|{form.pattern}"
    kind = _TYPES.get(type(default), "string")
    if unit_s:
        schema = {"type": [kind, "string"], "pattern": DURATION} | schema
    schema = {"type": kind} | schema
    metadata = make_metadata(text, form, **schema) | {"unit_s": unit_s}
    if default is None:
        return field(metadata=metadata)
    return field(default=default, metadata=metadata)


_TYPES: dict[type, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    tuple: "array",
}
TEXTS: dict[str, Any] = {
    "type": "object",
    "additionalProperties": {"type": "string"},
}
WORDS: dict[str, Any] = {
    "type": "array",
    "items": {"type": "string"},
    "minItems": 1,
}


def check(
    name: str,
    value: Any,
    schema: dict[str, Any],
    form: Form,
    default: Any,
) -> None:
    """Check a value alone. Raises InputError, which names the field."""
    if name == "nodes":
        node_range.parse(value, MAX_NODES)
        return
    if name == "sweep":
        if value != {}:
            sweep_points.parse(value)
        return
    if name == "speeds":
        _require_numbers(name, value)
        return
    kind = schema["type"]
    _require_type(name, value, kind if isinstance(kind, str) else kind[0])
    if value == default:
        return
    if isinstance(value, str):
        form.match(name, value)
    elif isinstance(value, tuple):
        for text in value:
            form.match(name, text)
    if "enum" in schema and value not in schema["enum"]:
        matches = get_close_matches(value, schema["enum"], 1, 0.4)
        raise InputError(
            name,
            got=repr(value),
            allowed=", ".join(schema["enum"]),
            fix=f"write {matches[0]}" if matches else "choose one of these",
        )
    if "minimum" in schema:
        between(name, value, schema["minimum"], schema["maximum"])


def read_durations(entry_fields: Iterable[Field[Any]], values: dict[str, Any]) -> None:
    """Replace texts such as `2d` by the numbers that their fields hold.

    Raises InputError, which names the field.
    """
    for each_field in entry_fields:
        value = values.get(each_field.name)
        unit_s = each_field.metadata.get("unit_s")
        if not unit_s or not isinstance(value, str):
            continue
        seconds = duration_s(value)
        if seconds is None:
            raise InputError(
                each_field.name,
                got=repr(value)[:120],
                allowed="a number, or one with s, m, h or d",
                fix="write 40, 40h or 2d",
            )
        values[each_field.name] = seconds / unit_s


def _require_numbers(name: str, value: Any) -> None:
    if isinstance(value, dict):
        numbers = [_has_type(number, "number") for number in value.values()]
        if all(numbers) and all(isinstance(key, str) for key in value):
            return
    raise InputError(
        name,
        got=f"{value!r}"[:120],
        allowed="numbers by name",
        fix="write it as {l4: 2.1, a100: 8}",
    )


def _require_type(name: str, value: Any, kind: str) -> None:
    """Raise InputError for another type.

    Python takes a text for a list of letters, and YAML reads 3 without quotes as a number.
    """
    if _has_type(value, kind):
        return
    allowed, fix = _TYPE_WORDS[kind]
    raise InputError(
        name,
        got=f"{value!r}"[:120],
        allowed=allowed,
        fix=fix,
    )


_TYPE_WORDS = {
    "string": ("a text", "put it in quotes: numbers, dates and words like yes are no texts"),
    "boolean": ("true or false", "write true or false, without quotes"),
    "integer": ("a whole number", "write the number alone, without quotes and unit"),
    "number": ("a number", "write the number alone, without quotes and unit"),
    "array": ("a list of texts", "write each text on a line of its own that begins with `- `"),
    "object": ("texts by name", "write NAME: TEXT on a line of its own for each, indented"),
}
"""JSON type -> what is allowed, and how to write it."""


def _has_type(value: Any, kind: str) -> bool:
    match kind:
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "array":
            return isinstance(value, tuple) and all(isinstance(item, str) for item in value)
        case _:
            if not isinstance(value, dict):
                return False
            texts = chain(value.keys(), value.values())
            return all(isinstance(text, str) for text in texts)
