"""Reads skips.toml: the checks of Checkov that an object fails on purpose, with the reason.

A test ensures that nothing else fails, and that every entry is needed.
"""

import tomllib
from pathlib import Path

SKIPS: dict[str, dict[str, str]] = {}
"""Object -> check -> reason."""
_FILE = Path(__file__).with_name("skips.toml")
for _row in tomllib.loads(_FILE.read_text())["skip"]:
    _reasons = dict.fromkeys(_row["checks"].split(), _row["reason"])
    for _object in _row["objects"]:
        SKIPS.setdefault(_object, {}).update(_reasons)


def find(kind: str, namespace: str | None, name: str) -> dict[str, str]:
    """Returns the checks that an object may fail, with their reasons."""
    title = f"{kind}/{namespace or ''}/{name}"
    for pattern, checks in SKIPS.items():
        if _matches(pattern, title):
            return checks
    return {}


def annotations(kind: str, namespace: str | None, name: str) -> dict[str, str]:
    """Returns the skips of an object as annotations that Checkov reads."""
    annotations: dict[str, str] = {}
    checks = find(kind, namespace, name)
    for number, (check, reason) in enumerate(checks.items(), start=1):
        annotations[f"checkov.io/skip{number}"] = f"{check}={reason}"
    return annotations


def _matches(pattern: str, title: str) -> bool:
    if pattern.endswith("*"):
        return title.startswith(pattern[:-1])
    return title == pattern
