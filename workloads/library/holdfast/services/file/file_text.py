"""Reads and writes the text of a service file.

A written file has a comment for each field; reading it raises an error for each wrong field.
"""

import io
import json
from collections.abc import Sequence
from dataclasses import MISSING, asdict, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from holdfast.services.file.service_file import SCHEMA, OwnService
from holdfast.support.errors import InputError

SCHEMA_FILE = "workloads/library/holdfast/services/file/service.schema.json"
_HEAD = f"""\
# yaml-language-server: $schema={SCHEMA_FILE}
# `holdfast submit FILE` shows the price of this service and starts it, or rolls out what changed.
schema: {SCHEMA}
"""
_REST = "\n# Other fields with their defaults:\n"


def is_service(document: Any) -> bool:
    if not isinstance(document, dict):
        return False
    family = SCHEMA.partition("/")[0]
    return str(document.get("schema", "")).startswith(f"{family}/")


def dump(service: OwnService) -> str:
    """Return a file with the fields that differ from their default, and the others as comments."""
    values = asdict(service)
    text = _HEAD
    comments = _REST
    for field in fields(OwnService):
        value = values[field.name]
        lines = _dump_field(field.name, value)
        about = f"# {field.metadata['about']}\n"
        if value != field.default:
            text += about + lines
        else:
            commented = "".join(f"#   {line}\n" for line in lines.splitlines())
            comments += about + commented
    return text + comments


def _dump_field(key: str, value: Any) -> str:
    yaml = YAML()
    stream = io.StringIO()
    yaml.width = 120
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.dump({key: list(value) if isinstance(value, tuple) else value}, stream)
    return stream.getvalue()


def parse(document: dict[str, Any], source: str) -> OwnService:
    """Return the service of a document. Raises InputError, which names the file and the field."""
    if document.get("schema") != SCHEMA:
        raise InputError(
            f"{source}: schema",
            got=document.get("schema"),
            allowed=SCHEMA,
            fix="write it again with `holdfast new-service`",
        )
    names = [field.name for field in fields(OwnService)]
    values: dict[str, Any] = {}
    for key, value in document.items():
        if key == "schema":
            continue
        if key not in names:
            matches = get_close_matches(str(key), names, n=1)
            raise InputError(
                f"{source}: unknown field",
                got=key,
                allowed=", ".join(names),
                fix=f"did you mean {matches[0]}?" if matches else f"see {SCHEMA_FILE}",
            )
        values[key] = tuple(value) if isinstance(value, list) else value
    missing = [name for name in _list_required() if name not in values]
    if missing:
        raise InputError(
            f"{source}: a field is missing",
            got=", ".join(values) or "nothing",
            allowed=", ".join(missing),
            fix="add it",
        )
    try:
        return OwnService(**values)
    except InputError as error:
        raise InputError(
            f"{source}: {error.what}",
            got=error.got,
            allowed=error.allowed,
            fix=error.fix,
        ) from error


def _list_required() -> list[str]:
    return [field.name for field in fields(OwnService) if field.default is MISSING]


def assign(assignments: Sequence[str], options: dict[str, Any]) -> OwnService:
    """Return the service of option values and of each FIELD=VALUE."""
    kinds = {field.name: field.metadata["schema"]["type"] for field in fields(OwnService)}
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
        values[name] = _read(value, kinds.get(name, "string"))
    return parse({"schema": SCHEMA} | values, "new-service")


def _read(value: str, kind: str) -> Any:
    """Convert a text of the command line as YAML would; the checks judge what does not convert."""
    if kind == "array":
        return value.split(",")
    if kind == "string":
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def write(path: Path, text: str) -> None:
    """Write a file. Raises InputError if it has another content."""
    if path.exists() and path.read_text(encoding="utf-8") != text:
        raise InputError(
            "a file with something else in it",
            got=path,
            allowed="a new file",
            fix="remove it, or choose another with --out FILE",
        )
    path.write_text(text, encoding="utf-8")


def make_schema() -> dict[str, Any]:
    """Return the JSON schema of service files, for editors."""
    properties: dict[str, Any] = {"schema": {"const": SCHEMA}}
    for field in fields(OwnService):
        properties[field.name] = {"description": field.metadata["about"]} | field.metadata["schema"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A service of Holdfast",
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "required": ["schema", *_list_required()],
    }
