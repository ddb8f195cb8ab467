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
from typing import Any, get_args, get_origin

import yaml
from kubernetes import client
from kubernetes.client import api as apis
from pydantic import BaseModel

from holdfast.lint.api_fields import FILE

UPSTREAM = Path(__file__).parents[3] / "operators" / "upstream"
OWN_TYPES = {"containers": "V1PodSpec", "completionMode": "V1JobSpec"}
"""Field -> the type of Kubernetes that a schema of a CRD repeats if it has this field."""
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
    waiting = sorted(set(kinds.values()))
    while waiting:
        name = waiting.pop()
        if name in types:
            continue
        types[name] = _list_fields(name)
        waiting += [shape.lstrip("[{") for shape in types[name].values() if shape]
    for file in sorted(UPSTREAM.glob("*.yaml")):
        for api_version, schema in _list_schemas(file.read_text()):
            kinds[api_version] = _add_schema(types, api_version, schema)
    return {
        "kinds": dict(sorted(kinds.items())),
        "types": dict(sorted(types.items())),
    }


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
        fields[json_name] = _read_shape(field.annotation)
    return fields


def _read_shape(annotation: Any) -> str:
    """Returns the shape of an annotation such as `list[V1Container] | None`."""
    if inspect.isclass(annotation) and get_origin(annotation) is None:
        return annotation.__name__ if issubclass(annotation, BaseModel) else ""
    prefix = {list: "[", dict: "{"}.get(get_origin(annotation), "")
    for argument in get_args(annotation):
        shape = _read_shape(argument)
        if shape:
            return f"{prefix}{shape}"
    return ""


def _list_schemas(manifests: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields apiVersion/kind and schema of each version that a CRD serves."""
    for body in yaml.load_all(manifests, yaml.CSafeLoader):
        if body and body["kind"] == "CustomResourceDefinition":
            spec = body["spec"]
            for version in spec["versions"]:
                if version["served"]:
                    name = f"{spec['group']}/{version['name']}/{spec['names']['kind']}"
                    yield name, version["schema"]["openAPIV3Schema"]


def _add_schema(types: dict[str, dict[str, str]], name: str, schema: dict[str, Any]) -> str:
    """Adds the types of a schema, each by its path. Returns the name of the outermost one."""
    properties = schema["properties"]
    for field, own_type in OWN_TYPES.items():
        if field in properties:
            return own_type
    fields = {}
    for field, child in properties.items():
        fields[field] = _add_child(types, f"{name}.{field}", child)
    if "kind" in fields and "spec" in fields:
        fields["metadata"] = "V1ObjectMeta"
    types[name] = fields
    return name


def _add_child(types: dict[str, dict[str, str]], name: str, schema: dict[str, Any]) -> str:
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return ""
    if schema.get("properties"):
        return _add_schema(types, name, schema)
    for key, prefix in (("items", "["), ("additionalProperties", "{")):
        child = schema.get(key)
        if isinstance(child, dict) and child.get("properties"):
            return f"{prefix}{_add_schema(types, name, child)}"
    return ""


if __name__ == "__main__":
    FILE.write_text(format_table())
