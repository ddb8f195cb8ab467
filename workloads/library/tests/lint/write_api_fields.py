"""Writes `api_fields.json` from the `kubernetes` package, and from the CRDs of JobSet and Kueue.

Usage: python -m workloads.library.tests.lint.write_api_fields. Of Kubernetes, kinds are those that
an API of the package creates; its beta and alpha versions are left out, since their fields change.
"""

import importlib
import inspect
import json
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import yaml
from kubernetes import client
from kubernetes.client import api as apis
from pydantic import BaseModel

from holdfast.lint.api_fields import FILE

UPSTREAM = Path(__file__).parents[3] / "operators" / "upstream"
OWN_TYPES = {"containers": "V1PodSpec", "completionMode": "V1JobSpec"}
"""Field -> the type of Kubernetes that a schema of a CRD repeats if it has this field."""
SCALARS = {
    str: "s",
    int: "i",
    bool: "b",
    float: "n",
}
SCHEMA_SCALARS = {
    "string": "s",
    "integer": "i",
    "boolean": "b",
    "number": "n",
}
QUANTITIES = [
    "V1EmptyDirVolumeSource.sizeLimit",
    "V1ResourceFieldSelector.divisor",
    "V2MetricTarget.averageValue",
    "V2MetricTarget.value",
]
"""Fields for an amount, which is a text or a number; the package has them as texts."""
AMOUNTS = [
    "allocatable",
    "capacity",
    "default",
    "defaultRequest",
    "hard",
    "limits",
    "max",
    "maxLimitRequestRatio",
    "min",
    "overhead",
    "podFixed",
    "requests",
    "used",
]
"""The same, of maps of any type."""
GIVEN_BY_WEBHOOKS = {"jobset.x-k8s.io/v1alpha2/JobSet.spec.failurePolicy.rules": {"name"}}
"""Fields that a schema requires and a webhook adds."""
Table = dict[str, dict[str, Any]]
_BODY = re.compile(
    r"\n    def (create_\w+)\((?:(?!\n    def ).)*?\n        body: (\w+),", flags=re.DOTALL
)
_PATH = re.compile(
    r"\n    def _(create_\w+)_serialize\((?:(?!\n    def ).)*?resource_path='([^']+)'",
    flags=re.DOTALL,
)
_STABLE = re.compile(r"v\d+$")
_MODEL = re.compile(r"^(?:[A-Z][a-z]+)?V\d+([A-Z]\w*)$")


def make_table() -> dict[str, Any]:
    """Returns the table that `api_fields.json` holds."""
    kinds = dict(_list_kinds())
    types: dict[str, dict[str, str]] = {}
    required: dict[str, list[str]] = {}
    waiting = sorted(set(kinds.values()))
    while waiting:
        name = waiting.pop()
        if name in types:
            continue
        types[name] = _list_fields(name)
        required[name] = _list_required(name)
        shapes = [shape.lstrip("[{") for shape in types[name].values()]
        waiting += [shape for shape in shapes if len(shape) > 1]
    table = {"kinds": kinds, "types": types, "required": required, "enums": {}}
    for file in sorted(UPSTREAM.glob("*.yaml")):
        for api_version, schema in _list_schemas(file.read_text()):
            kinds[api_version] = _add_schema(table, api_version, schema)
    rows: dict[str, Any] = {}
    for section, entries in table.items():
        rows[section] = {}
        for name, entry in sorted(entries.items()):
            if entry:
                rows[section][name] = entry
    return rows


def format_table() -> str:
    table = make_table()
    lines = []
    for section, entries in table.items():
        rows = [f"{json.dumps(key)}:{json.dumps(value)}" for key, value in entries.items()]
        lines.append(f'"{section}":{{\n' + ",\n".join(rows) + "\n}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _list_kinds() -> list[tuple[str, str]]:
    kinds = []
    for module in pkgutil.iter_modules(apis.__path__):
        source = inspect.getsource(importlib.import_module(f"{apis.__name__}.{module.name}"))
        paths = dict(_PATH.findall(source))
        for method, model in _BODY.findall(source):
            path = paths.get(method, "")
            match = _MODEL.match(model)
            version = _find_version(path)
            if match and version and "/{name}/" not in path:
                kinds.append((f"{version}/{match[1]}", model))
    return kinds


def _find_version(path: str) -> str:
    """Returns the apiVersion that a path serves; empty for paths of no stable version."""
    parts = path.strip("/").split("/")
    version = parts[1] if parts[0] == "api" else "/".join(parts[1:3])
    return version if _STABLE.search(version.rpartition("/")[2]) else ""


def _list_fields(model: str) -> dict[str, str]:
    """Returns field name in JSON -> shape of its value."""
    fields = {}
    for name, field in getattr(client, model).model_fields.items():
        json_name = field.serialization_alias or field.alias or name
        shape = _read_shape(field.annotation)
        if shape == "{s" and json_name in AMOUNTS:
            shape = "{"
        if f"{model}.{json_name}" in QUANTITIES:
            shape = ""
        fields[json_name] = shape
    return fields


def _list_required(model: str) -> list[str]:
    names = []
    for name, field in getattr(client, model).model_fields.items():
        if field.is_required() and not model.endswith("Status"):
            names.append(field.serialization_alias or field.alias or name)
    return sorted(names)


def _read_shape(annotation: Any) -> str:
    """Returns the shape of an annotation such as `list[V1Container] | None`."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _read_shape(get_args(annotation)[0])
    if inspect.isclass(annotation) and origin is None:
        if issubclass(annotation, BaseModel):
            return annotation.__name__
        return SCALARS.get(annotation, "")
    arguments = list(get_args(annotation))
    if type(None) in arguments:
        arguments.remove(type(None))
    if origin is list:
        return f"[{_read_shape(arguments[0])}"
    if origin is dict:
        return f"{{{_read_shape(arguments[1])}"
    # A union of two types takes both, as a port is a number or a name.
    if len(arguments) != 1:
        return ""
    return _read_shape(arguments[0])


def _list_schemas(manifests: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields apiVersion/kind and schema of each version that a CRD serves."""
    for body in yaml.load_all(manifests, yaml.CSafeLoader):
        if body and body["kind"] == "CustomResourceDefinition":
            spec = body["spec"]
            for version in spec["versions"]:
                if version["served"]:
                    name = f"{spec['group']}/{version['name']}/{spec['names']['kind']}"
                    yield name, version["schema"]["openAPIV3Schema"]


def _add_schema(table: Table, name: str, schema: dict[str, Any]) -> str:
    """Adds the types of a schema, each by its path. Returns the name of the outermost one."""
    properties = schema["properties"]
    for field, own_type in OWN_TYPES.items():
        if field in properties:
            return own_type
    fields = {}
    for field, child in properties.items():
        fields[field] = _add_child(table, f"{name}.{field}", child)
        if child.get("enum"):
            table["enums"].setdefault(name, {})[field] = child["enum"]
    if "kind" in fields and "spec" in fields:
        fields["metadata"] = "V1ObjectMeta"
    table["types"][name] = fields
    # A field with a default may be left out, although the schema requires it.
    defaulted = {field for field, child in properties.items() if "default" in child}
    optional = defaulted | GIVEN_BY_WEBHOOKS.get(name, set())
    required = schema.get("required", [])
    table["required"][name] = [field for field in required if field not in optional]
    return name


def _add_child(table: Table, name: str, schema: dict[str, Any]) -> str:
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return ""
    if schema.get("properties"):
        return _add_schema(table, name, schema)
    for key, prefix in (("items", "["), ("additionalProperties", "{")):
        child = schema.get(key)
        if isinstance(child, dict):
            return f"{prefix}{_add_child(table, name, child)}"
    return SCHEMA_SCALARS.get(schema.get("type", ""), "")


if __name__ == "__main__":
    FILE.write_text(format_table())
