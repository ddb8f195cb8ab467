"""Limits on single arguments, as data: what Google's APIs refuse in the middle of an apply."""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from infra.rules.model import Facts, Finding, PlannedResource, rule

FILE = Path(__file__).with_name("limits.toml")
_ZONE = re.compile(r"(.+)-(?:[a-f]|ai\d+[a-z])")
_TERRAFORM = "${"


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """Describes the values that an API takes for one argument of one kind of resource."""

    kind: str
    path: str
    """The dotted path; `*` stands for every item of a list."""
    allowed: str
    fix: str
    source: str
    pattern: str = ""
    values: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    max_items: int = 0

    def accepts(self, value: Any) -> bool:
        """Return whether the API takes the value. References of Terraform pass."""
        if self.max_items:
            return len(value) <= self.max_items if isinstance(value, list | tuple) else True
        text = str(value)
        if _TERRAFORM in text:
            return True
        if self.pattern:
            return re.fullmatch(self.pattern, text) is not None
        if self.values:
            return text in self.values
        number = _read_number(text)
        if number is None or self.minimum is None or self.maximum is None:
            return False
        return self.minimum <= number <= self.maximum


def _read_number(text: str) -> float | None:
    """Return a number, or the seconds of a duration such as `600s`."""
    try:
        return float(text.removesuffix("s"))
    except ValueError:
        return None


@cache
def _load() -> dict[str, Any]:
    return tomllib.loads(FILE.read_text())


@cache
def load_limits() -> tuple[Limit, ...]:
    limits = []
    for row in _load()["limit"]:
        values = tuple(row.pop("values", ()))
        limits.append(Limit(values=values, **row))
    return tuple(limits)


@rule(
    reason="the API refuses it in the middle of an apply",
    source="infra/rules/limits.toml, which names Google's page for each argument",
)
def arguments_are_in_limits(facts: Facts) -> Iterator[Finding]:
    """Single arguments have values that Google's APIs take."""
    for limit in load_limits():
        for resource in facts.of(limit.kind):
            for value in find_values(resource, limit.path):
                if not limit.accepts(value):
                    got = f"{len(value)} items" if limit.max_items else str(value)
                    yield resource.finding(limit.path, limit.allowed, limit.fix, got)


def find_values(resource: PlannedResource, path: str) -> Iterator[Any]:
    """Yield the values of a resource at a dotted path, in which `*` stands for each item."""
    yield from _find_values(dict(resource.values), path.split("."))


def _find_values(value: Any, path: list[str]) -> Iterator[Any]:
    """Yield the values at a path. A plan wraps each block in a list, specs do not."""
    if not path:
        if value is not None:
            yield value
        return
    step, *rest = path
    if step == "*":
        for item in value if isinstance(value, list | tuple) else [value]:
            yield from _find_values(item, rest)
        return
    if isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    if isinstance(value, dict) and step in value:
        yield from _find_values(value[step], rest)


@rule(
    reason="the API refuses it, minutes after the foundation was applied",
    source="https://docs.cloud.google.com/compute/docs/regions-zones",
)
def locations_exist(facts: Facts) -> Iterator[Finding]:
    """The region exists, and the cluster's zones are zones of it."""
    region = facts.environment.region
    if region not in _load()["regions"]:
        yield Finding(
            where="environment: region",
            got=region,
            allowed="a region of Google Cloud",
            fix="correct region; add a new one to infra/rules/limits.toml",
        )
    for cluster in facts.cluster():
        yield from _find_foreign_zones(cluster, region)


def _find_foreign_zones(resource: PlannedResource, region: str) -> Iterator[Finding]:
    for zone in resource.get("node_locations") or ():
        match = _ZONE.fullmatch(str(zone))
        if match is None or match[1] != region:
            yield resource.finding(
                "node_locations", f"zones of {region}", "correct the zones", str(zone)
            )
