"""`[tool.holdfast.lint]` of a pyproject.toml.

[tool.holdfast.lint]
platform = "platform.json"   # relative to this file; or a list
[[tool.holdfast.lint.ignore]]
id = "HF402"
path = "vendor/*"          # or object = "Job/training/*"
reason = "made upstream"
until = 2027-01-31
"""

import tomllib
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from holdfast.contract.errors import InputError
from holdfast.lint.document import Mark
from holdfast.lint.ignores import Ignore

_KEYS = {"platform", "ignore"}
_IGNORE_KEYS = {"id", "path", "object", "reason", "until"}


@dataclass(frozen=True, kw_only=True)
class Config:
    platforms: tuple[Path, ...] = ()
    ignores: tuple[Ignore, ...] = ()


def find(start: Path) -> Path | None:
    """The nearest pyproject.toml at or above `start`."""
    return next((p for folder in (start, *start.parents) if (p := folder / "pyproject.toml").is_file()), None)


def read(path: Path | None) -> Config:
    if path is None:
        return Config()
    try:
        text = path.read_text(encoding="utf-8")
        table = tomllib.loads(text).get("tool", {}).get("holdfast", {}).get("lint", {})
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path} cannot be read", got=error, allowed="TOML", fix="correct it") from error
    _only(table, _KEYS, f"{path}: [tool.holdfast.lint]")
    entries = table.get("ignore", [])
    ignores = tuple(_ignore(entry, path, text) for entry in entries)
    named = table.get("platform", [])
    platforms = tuple(path.parent / str(each) for each in (named if isinstance(named, list) else [named]))
    return Config(platforms=platforms, ignores=ignores)


def _only(table: dict[str, Any], known: set[str], where: str) -> None:
    wrong = sorted(set(table) - known)
    if wrong:
        raise InputError(where, got=", ".join(wrong), allowed=", ".join(sorted(known)), fix="remove or rename the key")


def _ignore(entry: dict[str, Any], path: Path, text: str) -> Ignore:
    _only(entry, _IGNORE_KEYS, f"{path}: [[tool.holdfast.lint.ignore]]")
    rule, until = str(entry.get("id", "")), entry.get("until")
    if until is not None and not isinstance(until, date):
        raise InputError(f"{path}: until of {rule}", got=until, allowed="a date as 2027-01-31", fix="write it unquoted")
    lines = text.splitlines()
    line = next((n for n, words in enumerate(lines, 1) if words.lstrip().startswith("id") and rule in words), 1)
    mark = Mark(line, 1, len(lines[line - 1]) + 1 if lines else 2)
    return Ignore(
        rule,
        str(entry.get("reason", "")),
        path.name,
        mark,
        until,
        object_name=str(entry.get("object", "*")),
        path=str(entry.get("path", "*")),
    )
