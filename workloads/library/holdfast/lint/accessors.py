"""Accessors to values of manifests of any type: one of a wrong type reads as absent."""

import re
from typing import Any

from holdfast.lint.document import Path

_LEFT_OPEN = re.compile(r"\$\{[A-Za-z_][^{}]{0,199}\}")
_LONGEST_LEFT_OPEN = 256
LocatedMap = tuple[Path, dict[str, Any]]
"""A mapping of an object, with its path in the object."""


def as_map(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def as_maps(value: Any) -> list[dict[str, Any]]:
    return [item for item in as_list(value) if isinstance(item, dict)]


def list_maps(path: Path, value: Any) -> list[LocatedMap]:
    """Returns the mappings of the list at a path."""
    maps: list[LocatedMap] = []
    for index, item in enumerate(as_list(value)):
        if isinstance(item, dict):
            maps.append(((*path, index), item))
    return maps


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def as_texts(value: Any) -> list[str]:
    """Returns the items of a list as texts; one that is no text is empty."""
    return list(map(as_text, as_list(value)))


def is_left_open(value: Any) -> bool:
    """Returns whether a value comes later, as of envsubst or Flux: ${NAME} and nothing else."""
    text = as_text(value)
    return bool(_LEFT_OPEN.fullmatch(text, 0, _LONGEST_LEFT_OPEN))


def list_names(value: Any) -> list[str]:
    """Returns the names of the items of a list."""
    names: list[str] = []
    for item in as_list(value):
        names.append(as_text(dig(item, "name")))
    return names


def as_int(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def dig(value: Any, *path: str | int) -> Any:
    """Returns the value under `path`; None where any step is missing."""
    for step in path:
        if isinstance(value, dict) and isinstance(step, str):
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int) and 0 <= step < len(value):
            value = value[step]
        else:
            return None
    return value
