"""Fills in what Google's APIs answer for fields that a request leaves out (defaults.toml)."""

import copy
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.plan.stand_in import definitions
from tests.plan.stand_in.definitions import Call, Json

DEFAULTS: dict[str, dict[str, Json]] = tomllib.loads(
    Path(__file__).with_name("defaults.toml").read_text()
)


def find_message(call: Call) -> str:
    """Return the message of the resource that a call creates or changes: that of the answer, else
    that of the body, or the one inside it, as the Cluster of a CreateClusterRequest.
    """
    if call.answers != "Operation":
        return call.answers
    return call.takes.removeprefix("Create").removesuffix("Request")


def fill(api: str, message: str, resource: Json) -> None:
    """Fill in the defaults of a message and of the messages in it. What the request has stays."""
    schema = definitions.document(api)["schemas"].get(message, {})
    _fill(api, message, schema, resource)


def _fill(api: str, name: str, schema: Json, value: Json) -> None:
    for field, default in DEFAULTS.get(api, {}).get(name, {}).items():
        value.setdefault(field, copy.deepcopy(default))
    for field, field_schema in schema.get("properties", {}).items():
        inner_schema = field_schema.get("items", field_schema)
        inner_name = inner_schema.get("$ref", f"{name}.{field}")
        if "$ref" in inner_schema:
            inner_schema = definitions.document(api)["schemas"][inner_name]
        for inner in _list_objects(value.get(field)):
            _fill(api, inner_name, inner_schema, inner)


def _list_objects(value: Any) -> Iterator[Json]:
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, dict):
            yield item
