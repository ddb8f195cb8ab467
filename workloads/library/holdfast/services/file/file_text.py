"""Reads and writes the text of a service file.

A written file has a comment for each field; reading it raises an error for each wrong field.
"""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from holdfast.jobs.file.documents import FileKind, read_option
from holdfast.services.file.service_file import SCHEMA, ServiceSpec
from holdfast.support.errors import InputError

SCHEMA_FILE = str(Path(__file__).with_name("service.schema.json"))
_HEAD = f"""\
# `holdfast submit FILE` shows the price of this service and starts it, or rolls out what changed.
schema: {SCHEMA}
"""
KIND = FileKind(
    entry=ServiceSpec,
    schema=SCHEMA,
    schema_file=SCHEMA_FILE,
    command="holdfast new-service",
)


def is_service(document: Any) -> bool:
    return KIND.describes(document)


def find_service(documents: Sequence[Any], path: Path) -> dict[str, Any] | None:
    """Return the service of a file, or None. Raises InputError if it is not the only document."""
    return KIND.find(documents, path)


def dump(service: ServiceSpec) -> str:
    """Return a file with the fields that differ from their default, and the others as comments."""
    return KIND.dump(service, _HEAD)


def parse(document: dict[str, Any], source: str) -> ServiceSpec:
    """Return the service of a document. Raises InputError, which names the file and the field."""
    return KIND.parse(document, source)


def assign(assignments: Sequence[str], options: dict[str, Any]) -> ServiceSpec:
    """Return the service of option values and of each FIELD=VALUE."""
    kinds = {field.name: field.metadata["schema"]["type"] for field in fields(ServiceSpec)}
    values = dict(options)
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals or name in values:
            reason = "given twice" if name in values else "no FIELD=VALUE"
            raise InputError(
                "--set",
                got=f"{text} ({reason})",
                allowed="FIELD=VALUE of the service file, each once",
                fix="--set inflight=16 --set callers=batch,team-vision",
            )
        values[name] = read_option(value, kinds.get(name, "string"))
    return parse({"schema": SCHEMA} | values, "new-service")


def write(path: Path, text: str) -> None:
    """Write a file, and its folder. Raises InputError if it has another content."""
    if path.exists() and path.read_text(encoding="utf-8", errors="replace") != text:
        raise InputError(
            "a file with something else in it",
            got=path,
            allowed="a new file",
            fix="remove it, or choose another with --out FILE",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def make_schema() -> dict[str, Any]:
    """Return the JSON schema of service files, for editors."""
    properties: dict[str, Any] = {"schema": {"const": SCHEMA}}
    for field in fields(ServiceSpec):
        description = {"description": field.metadata["about"]}
        properties[field.name] = description | field.metadata["schema"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A service of Holdfast",
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "required": ["schema", *KIND.names_without_default],
    }
