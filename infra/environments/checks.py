"""Checks of single fields; each raises an InputError that names the field."""

import re
from collections import Counter
from collections.abc import Collection
from difflib import get_close_matches
from ipaddress import IPv4Network

from holdfast.contract.errors import InputError
from holdfast.contract.values import between

__all__ = ["PLACEHOLDER", "between", "dns_name", "ipv4_range", "matches", "one_of", "require", "switch", "unique"]

PLACEHOLDER = "CHANGE-ME"


def require(ok: bool, field: str, got: object, allowed: str, fix: str) -> None:
    if not ok:
        raise InputError(field, got=got, allowed=allowed, fix=fix)


def one_of(field: str, got: str, allowed: Collection[str]) -> None:
    """`got` is one of `allowed`; the fix names the nearest."""
    if got in allowed:
        return
    near = get_close_matches(str(got), list(allowed), n=1, cutoff=0.4)
    fix = f"write {near[0]!r}" if near else "choose one of the allowed values"
    raise InputError(field, got=repr(got), allowed=", ".join(sorted(allowed)), fix=fix)


def switch(field: str, got: object) -> None:
    require(isinstance(got, bool), field, repr(got), "True or False", "write True or False without quotes")


def matches(field: str, got: object, pattern: str, allowed: str, fix: str) -> None:
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
        raise InputError(field, got=got, allowed=f"an IPv4 range, /{widest} to /{narrowest}", fix=fix) from None
    require(
        widest <= network.prefixlen <= narrowest,
        field,
        got,
        f"a prefix from /{widest} to /{narrowest}",
        "choose a range of an allowed size",
    )
    return network


def unique(field: str, got: Collection[str]) -> None:
    twice = sorted(value for value, count in Counter(got).items() if count > 1)
    require(not twice, field, ", ".join(twice), "each once", "remove or rename the duplicate")
