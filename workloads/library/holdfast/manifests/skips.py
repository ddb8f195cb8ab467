"""Reads skips.toml: the checks of Checkov that an object fails on purpose, with the reason.

A test ensures that nothing else fails, and that every entry is needed.
"""

import tomllib
from pathlib import Path

SKIPS: dict[str, dict[str, str]] = {}
"""Object -> check -> reason."""
for _row in tomllib.loads(Path(__file__).with_name("skips.toml").read_text())["skip"]:
    for _object in _row["objects"]:
        SKIPS.setdefault(_object, {}).update(dict.fromkeys(_row["checks"].split(), _row["reason"]))


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
    for number, (check, reason) in enumerate(find(kind, namespace, name).items(), start=1):
        annotations[f"checkov.io/skip{number}"] = f"{check}={reason}"
    return annotations


def _matches(pattern: str, title: str) -> bool:
    return title.startswith(pattern[:-1]) if pattern.endswith("*") else title == pattern
