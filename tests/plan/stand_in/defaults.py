"""Fills in what Google's APIs answer for fields that a request leaves out (defaults.toml)."""

import copy
import tomllib
from pathlib import Path
from typing import Any

from tests.plan.stand_in import definitions
from tests.plan.stand_in.definitions import Call, Json

DEFAULTS: dict[str, dict[str, Json]] = tomllib.loads(
    Path(__file__).with_name("defaults.toml").read_text()
)


def complete(call: Call, resource: Json) -> None:
    """Fill in the defaults of what a call creates or changes: of the answer's message, else of the
    body's, or of the one inside it, as the Cluster of a CreateClusterRequest.
    """
    message = call.answers
    if message == "Operation":
        message = call.takes.removeprefix("Create").removesuffix("Request")
    fill(call.api, message, resource)


def fill(api: str, name: str, value: Any, schema: Json | None = None) -> None:
    """Fill in the defaults of a message, or of each one of a list, and of the messages in it. What
    the request has stays. `schema`: that of a message that has no name of its own.
    """
    if isinstance(value, list):
        for item in value:
            fill(api, name, item, schema)
    if not isinstance(value, dict):
        return
    for field, default in DEFAULTS.get(api, {}).get(name, {}).items():
        value.setdefault(field, copy.deepcopy(default))
    schemas = definitions.document(api)["schemas"]
    message = schemas.get(name, schema or {})
    for field, field_schema in message.get("properties", {}).items():
        inner = field_schema.get("items", field_schema)
        fill(api, inner.get("$ref", f"{name}.{field}"), value.get(field), inner)
