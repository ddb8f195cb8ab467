"""Checks of single fields; each raises an InputError that names the field."""

import re
import tomllib
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import fields, is_dataclass
from datetime import date
from difflib import get_close_matches
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any, NamedTuple, cast

from holdfast.support.errors import InputError
from holdfast.support.values import between as between

PLACEHOLDER = "CHANGE-ME"
MAX_RECIPIENTS = 16
"""The limit of Cloud Monitoring for the channels of an alert policy."""


class Form(NamedTuple):
    pattern: str
    allowed: str
    fix: str


_TABLES = tomllib.loads(Path(__file__).with_name("forms.toml").read_text(encoding="utf-8"))
FORMS = {field: Form(**table) for field, table in _TABLES.items()}


def require(
    ok: bool,
    field: str,
    got: object,
    allowed: str,
    fix: str,
) -> None:
    """Raise InputError unless `ok`."""
    if not ok:
        raise InputError(field, got=got, allowed=allowed, fix=fix)


def require_choice(field: str, got: str, allowed: Collection[str]) -> None:
    """Require that `got` is one of `allowed`; the fix names the nearest."""
    if got in allowed:
        return
    matches = get_close_matches(str(got), list(allowed), n=1, cutoff=0.4)
    fix = f"write {matches[0]!r}" if matches else "choose one of the allowed values"
    raise InputError(
        field,
        got=repr(got),
        allowed=", ".join(sorted(allowed)),
        fix=fix,
    )


def require_recipients(field: str, emails: Sequence[str], channels: Sequence[str]) -> None:
    """Require that one alert can notify all of them; each address gets a channel of its own."""
    recipients = len(emails) + len(channels)
    require(
        recipients <= MAX_RECIPIENTS,
        field,
        f"{recipients} addresses and channels",
        f"at most {MAX_RECIPIENTS}",
        "use one address or channel of a group",
    )


def numbers(prefix: str, section: Any, **ranges: tuple[float, float]) -> None:
    """Require that each named field of a section is in its range, and that each field of type bool
    is True or False.
    """
    for field in fields(section):
        value = getattr(section, field.name)
        require(
            field.type is not bool or isinstance(value, bool),
            f"{prefix}{field.name}",
            repr(value),
            "True or False",
            "write True or False without quotes",
        )
    for name, (low, high) in ranges.items():
        between(f"{prefix}{name}", getattr(section, name), low, high)


def forms(prefix: str, section: Any, *names: str) -> None:
    """Require that each named field, or each item of a tuple, has its form in FORMS. A field whose
    default is empty may be empty.
    """
    defaults = {field.name: field.default for field in fields(section)}
    for name in names:
        value = getattr(section, name)
        if not value and not defaults[name]:
            continue
        items = value if isinstance(defaults[name], tuple) else (value,)
        field = f"{prefix}{name}"
        for item in items:
            matches(field, item, *FORMS[field])


def matches(
    field: str,
    got: object,
    pattern: str,
    allowed: str,
    fix: str,
) -> None:
    """Require that `got` has the form `pattern`, or is the placeholder, which a deployment
    refuses.
    """
    if got == PLACEHOLDER:
        return
    ok = isinstance(got, str) and re.fullmatch(pattern, got) is not None
    require(ok, field, repr(got), allowed, fix)


def dns_name(field: str, got: object, limit: int) -> None:
    """Require a DNS label of at most `limit` characters."""
    matches(
        field,
        got,
        rf"[a-z]([-a-z0-9]{{0,{limit - 2}}}[a-z0-9])?",
        f"1 to {limit} of a-z, 0-9 and '-', beginning with a letter, not ending with '-'",
        "choose another name",
    )


def ipv4_range(
    field: str,
    got: str,
    widest: int,
    narrowest: int,
) -> IPv4Network:
    """Parse a CIDR without host bits, with a prefix from /widest to /narrowest."""
    try:
        network = IPv4Network(got if type(got) is str else "")  # a number is an address to Python
    except ValueError as error:
        fix = "clear the host bits" if "host bits" in str(error) else "use the form 10.0.0.0/20"
        raise InputError(
            field,
            got=got,
            allowed=f"an IPv4 range, /{widest} to /{narrowest}",
            fix=fix,
        ) from None
    require(
        widest <= network.prefixlen <= narrowest,
        field,
        got,
        f"a prefix from /{widest} to /{narrowest}",
        "choose a range of an allowed size",
    )
    return network


def egress_targets(field: str, got: Collection[str]) -> None:
    """Require host names, with `*.` before at most, and ranges that are not the whole internet."""
    unique(field, got)
    for target in got:
        if re.fullmatch(r"[\d.]+/\d+", str(target)):
            ipv4_range(f"{field}[{target}]", target, 8, 32)
            continue
        matches(
            f"{field}[{target}]",
            target,
            r"(\*\.)?([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\.)+[a-z]{2,63}",
            "a host such as huggingface.co or *.wandb.ai, or a range such as 203.0.113.0/24",
            "write the name without https://, in lower case, with a star at its beginning only",
        )


def day(field: str, got: str) -> None:
    """Require a day of the calendar, as 2026-12-01, or nothing."""
    try:
        ok = not got or date.fromisoformat(got).isoformat() == got
    except (TypeError, ValueError):
        ok = False
    require(ok, field, repr(got), "a day such as 2026-12-01", "write year-month-day")


def unique(field: str, got: Collection[str]) -> None:
    """Require that no item occurs more than once."""
    duplicates = [value for value, count in Counter(got).items() if count > 1]
    require(
        not duplicates,
        field,
        ", ".join(sorted(duplicates)),
        "each once",
        "remove or rename the duplicate",
    )


def placeholders(value: object, path: str = "") -> list[str]:
    """Return the paths of fields that still contain CHANGE-ME, as `budget.billing_account`. A
    deployment refuses them.
    """
    if isinstance(value, str):
        return [path] if PLACEHOLDER in value else []
    paths: list[str] = []
    if isinstance(value, tuple):
        for index, item in enumerate(cast("tuple[object, ...]", value)):
            paths += placeholders(item, f"{path}[{index}]")
    elif is_dataclass(value):
        prefix = f"{path}." if path else ""
        for field in fields(value):
            paths += placeholders(getattr(value, field.name), prefix + field.name)
    return paths
