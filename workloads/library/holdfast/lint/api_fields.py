"""The field names of the kinds of Kubernetes, JobSet and Kueue.

`api_fields.json` is written by `python -m workloads.library.tests.lint.write_api_fields` from the
`kubernetes` package and the operators' CRDs, which the linter itself does not need. Kinds maps
apiVersion/kind to a type, and types maps a type to its fields. A field's shape is `T` for a type,
`[T` for a list of it and `{T` for a map to it, where T is a name of the table, or `s`, `i`, `b` and
`n` for texts, whole numbers, truth values and numbers. An empty T is any value. Required and enums
map a type to the fields that it cannot lack, and to the values of its fields.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path as FilePath
from typing import Any

from holdfast.lint.document import Path
from holdfast.lint.objects import Object, as_text

FILE = FilePath(__file__).with_name("api_fields.json")
POD_TEMPLATE = "V1PodTemplateSpec"
JOB_SPEC = "V1JobSpec"


@dataclass(frozen=True, slots=True)
class UnknownField:
    """A field that the API server does not know at this place."""

    path: Path
    name: str
    known_names: tuple[str, ...]
    """Fields that the same place has."""
    home: str
    """The nearest place that may have a field of this name, as a dotted path; empty if none has."""


@cache
def _load() -> dict[str, Any]:
    return json.loads(FILE.read_text())


def find_type(api_version: str, kind: str) -> str:
    """Returns the type of a kind; empty for kinds and versions that are not in the table."""
    return _load()["kinds"].get(f"{api_version}/{kind}", "")


def find_versions(kind: str) -> list[str]:
    """Returns the apiVersions in the table that have a kind."""
    names = [name.rpartition("/") for name in _load()["kinds"]]
    return [version for version, _, known_kind in names if known_kind == kind]


def list_kinds(api_version: str) -> list[str]:
    """Returns the kinds of an apiVersion."""
    names = [name.rpartition("/") for name in _load()["kinds"]]
    return [kind for version, _, kind in names if version == api_version]


def get_shapes(type_name: str) -> dict[str, str]:
    """Returns field -> shape of a type."""
    return _load()["types"][type_name]


def get_required(type_name: str) -> list[str]:
    """Returns the fields that a type cannot lack."""
    return _load()["required"].get(type_name, [])


def get_enums(type_name: str) -> dict[str, list[str]]:
    """Returns field -> values of a type, as far as the API states them in its schema."""
    return _load()["enums"].get(type_name, {})


def list_fields(type_name: str) -> list[str]:
    """Returns the names of a type's fields."""
    return sorted(_load()["types"][type_name])


@cache
def list_versions() -> frozenset[str]:
    """Returns the apiVersions that have any kind of the table."""
    return frozenset(name.rpartition("/")[0] for name in _load()["kinds"])


def find_typed(
    value: Any, type_name: str, path: Path = ()
) -> Iterator[tuple[Path, str, dict[str, Any]]]:
    """Yields the mappings at and below a value whose types are known, with path and type."""
    stack: list[tuple[Path, str, Any]] = [(path, type_name, value)]
    while stack:
        here, name, body = stack.pop()
        fields = _load()["types"].get(name)
        if fields is None or not isinstance(body, dict):
            continue
        yield here, name, body
        for field, item in body.items():
            shape = fields.get(field, "")
            item_path = (*here, field)
            if shape.startswith("[") and isinstance(item, list):
                for index, entry in enumerate(item):
                    stack.append(((*item_path, index), shape[1:], entry))
            elif shape.startswith("{") and isinstance(item, dict):
                for key, entry in item.items():
                    stack.append(((*item_path, key), shape[1:], entry))
            elif shape:
                stack.append((item_path, shape, item))


def walk_object(obj: Object) -> Iterator[tuple[Path, str, dict[str, Any]]]:
    """Yields the mappings of an object whose types are known, each with its path and type.

    An object of another API has templates of Kubernetes' own types.
    """
    type_name = find_type(as_text(obj.body.get("apiVersion")), obj.kind)
    if type_name:
        yield from find_typed(obj.body, type_name)
        return
    for job in obj.jobs:
        yield from find_typed(job.spec, JOB_SPEC, job.path)
    for pod in obj.pods:
        if pod.job is None:
            yield from find_typed(pod.template, POD_TEMPLATE, pod.path)


def find_unknown_fields(value: Any, type_name: str, path: Path = ()) -> Iterator[UnknownField]:
    """Yields the fields below a value that its type does not have.

    Values of the wrong type are left out, and so are directives of patches, which begin with `$`.
    """
    yield from _walk(value, type_name, path, ())


def _walk(
    value: Any,
    type_name: str,
    path: Path,
    ancestors: tuple[tuple[str, str], ...],
) -> Iterator[UnknownField]:
    fields = _load()["types"].get(type_name)
    if fields is None or not isinstance(value, dict):
        return
    here = (*ancestors, (_join(path), type_name))
    for name, item in value.items():
        if not isinstance(name, str) or name.startswith("$"):
            continue
        field_path = (*path, name)
        if name not in fields:
            yield UnknownField(field_path, name, tuple(fields), _find_home(name, here))
            continue
        yield from _walk_field(item, fields[name], field_path, here)


def _walk_field(
    item: Any,
    shape: str,
    path: Path,
    ancestors: tuple[tuple[str, str], ...],
) -> Iterator[UnknownField]:
    if shape.startswith("[") and isinstance(item, list):
        for index, entry in enumerate(item):
            yield from _walk(entry, shape[1:], (*path, index), ancestors)
    elif shape.startswith("{") and isinstance(item, dict):
        for key, entry in item.items():
            yield from _walk(entry, shape[1:], (*path, key), ancestors)
    elif shape:
        yield from _walk(item, shape, path, ancestors)


def _find_home(name: str, ancestors: tuple[tuple[str, str], ...]) -> str:
    """Returns the nearest place that has the field: a parent, or up to two levels below one."""
    for place, type_name in reversed(ancestors):
        level = [(place, type_name)]
        for _ in range(3):
            for home, home_type in level:
                if name in _load()["types"].get(home_type, ()):
                    return f"{home}.{name}".lstrip(".")
            level = [child for home, home_type in level for child in _children(home, home_type)]
    return ""


def _children(place: str, type_name: str) -> Iterator[tuple[str, str]]:
    """Yields the fields that have fields of their own; not maps, whose keys are free."""
    for field, shape in _load()["types"].get(type_name, {}).items():
        if shape and not shape.startswith("{"):
            suffix = "[]" if shape.startswith("[") else ""
            yield f"{place}.{field}{suffix}", shape.lstrip("[")


def _join(path: Path) -> str:
    return ".".join(str(step) for step in path)
