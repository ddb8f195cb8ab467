"""Checks of Checkov that an object fails on purpose, and why, as skips.toml lists them. A test
holds that nothing else fails, and that no entry there is idle.
"""

import tomllib
from pathlib import Path

SKIPS: dict[str, dict[str, str]] = {}
"""Object -> check -> reason."""
for _row in tomllib.loads(Path(__file__).with_name("skips.toml").read_text())["skip"]:
    for _object in _row["objects"]:
        SKIPS.setdefault(_object, {}).update(dict.fromkeys(_row["checks"].split(), _row["reason"]))


def of(kind: str, namespace: str | None, name: str) -> dict[str, str]:
    """Check -> reason, for one object."""
    title = f"{kind}/{namespace or ''}/{name}"
    return next((checks for pattern, checks in SKIPS.items() if _fits(pattern, title)), {})


def annotations(kind: str, namespace: str | None, name: str) -> dict[str, str]:
    """As Checkov reads it."""
    checks = of(kind, namespace, name)
    return {
        f"checkov.io/skip{n}": f"{check}={reason}"
        for n, (check, reason) in enumerate(checks.items(), 1)
    }


def _fits(pattern: str, title: str) -> bool:
    return title.startswith(pattern[:-1]) if pattern.endswith("*") else title == pattern
