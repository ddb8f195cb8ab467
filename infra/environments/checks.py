"""Checks of single fields; each raises an InputError that names the field."""

import re
import tomllib
from collections import Counter
from collections.abc import Collection
from dataclasses import fields, is_dataclass
from datetime import date
from difflib import get_close_matches
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.support.errors import InputError
from holdfast.support.values import between as between

PLACEHOLDER = "CHANGE-ME"


class Form(NamedTuple):
    pattern: str
    allowed: str
    fix: str


FORMS = {
    field: Form(**form)
    for field, form in tomllib.loads(
        Path(__file__).with_name("forms.toml").read_text(encoding="utf-8")
    ).items()
}


def require(ok: bool, field: str, got: object, allowed: str, fix: str) -> None:
    if not ok:
        raise InputError(field, got=got, allowed=allowed, fix=fix)


def one_of(field: str, got: str, allowed: Collection[str]) -> None:
    """`got` is one of `allowed`; the fix names the nearest."""
    if got in allowed:
        return
    near = get_close_matches(str(got), list(allowed), n=1, cutoff=0.4)
    fix = f"write {near[0]!r}" if near else "choose one of the allowed values"
    raise InputError(
        field,
        got=repr(got),
        allowed=", ".join(sorted(allowed)),
        fix=fix,
    )


def numbers(at: str, of: Any, **ranges: tuple[float, float]) -> None:
    """Each named field of a section is in its range, and each field of type bool is True or False."""
    for field in fields(of):
        got = getattr(of, field.name)
        ok = field.type is not bool or isinstance(getattr(of, field.name), bool)
        require(
            ok,
            f"{at}{field.name}",
            repr(got),
            "True or False",
            "write True or False without quotes",
        )
    for name, (low, high) in ranges.items():
        between(f"{at}{name}", getattr(of, name), low, high)


def forms(at: str, of: Any, *names: str) -> None:
    """Each named field has its form in FORMS, each item where it is a tuple; a field whose default
    is empty may be.
    """
    for name in names:
        got = getattr(of, name)
        default = next(field.default for field in fields(of) if field.name == name)
        if got or default:
            for item in got if isinstance(default, tuple) else (got,):
                matches(f"{at}{name}", item, *FORMS[f"{at}{name}"])


def matches(
    field: str,
    got: object,
    pattern: str,
    allowed: str,
    fix: str,
) -> None:
    """`got` has the form `pattern`, or is still the placeholder, which only a deployment refuses."""
    ok = isinstance(got, str) and (got == PLACEHOLDER or re.fullmatch(pattern, got) is not None)
    require(ok, field, repr(got), allowed, fix)


def dns_name(field: str, got: object, limit: int) -> None:
    matches(
        field,
        got,
        rf"[a-z]([-a-z0-9]{{0,{limit - 2}}}[a-z0-9])?",
        f"1 to {limit} of a-z, 0-9 and '-', beginning with a letter, not ending with '-'",
        "choose another name",
    )


def ipv4_range(field: str, got: str, widest: int, narrowest: int) -> IPv4Network:
    """A CIDR without host bits, with a prefix from /widest to /narrowest."""
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


def day(field: str, got: str) -> None:
    """`got` is a day of the calendar, as 2026-12-01, or empty."""
    try:
        ok = not got or date.fromisoformat(got).isoformat() == got
    except (TypeError, ValueError):
        ok = False
    require(ok, field, repr(got), "a day such as 2026-12-01", "write year-month-day")


def unique(field: str, got: Collection[str]) -> None:
    twice = sorted(value for value, count in Counter(got).items() if count > 1)
    require(not twice, field, ", ".join(twice), "each once", "remove or rename the duplicate")


def placeholders(value: object, path: str = "") -> list[str]:
    """Fields that still say CHANGE-ME, as `budget.billing_account`. A deployment refuses them."""
    if isinstance(value, str):
        return [path] if PLACEHOLDER in value else []
    if isinstance(value, tuple):
        return [hit for i, item in enumerate(value) for hit in placeholders(item, f"{path}[{i}]")]
    if is_dataclass(value):
        prefix = f"{path}." if path else ""
        return [
            hit
            for f in fields(value)
            for hit in placeholders(getattr(value, f.name), prefix + f.name)
        ]
    return []
