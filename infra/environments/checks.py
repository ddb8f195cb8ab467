"""Checks of single fields; each raises an InputError that names the field."""

import re
from collections import Counter
from collections.abc import Collection
from dataclasses import fields, is_dataclass
from datetime import date
from difflib import get_close_matches
from ipaddress import IPv4Network
from typing import Any, NamedTuple

from holdfast.contract.errors import InputError
from holdfast.contract.values import between as between

PLACEHOLDER = "CHANGE-ME"
_MAIL, _DAY = r"[^@\s]+@[^@\s]+\.[^@\s]+", "(MO|TU|WE|TH|FR|SA|SU)"


class Form(NamedTuple):
    pattern: str
    allowed: str
    fix: str


# Field -> its form. Of the items, where the field is a tuple.
FORMS = {
    "project_id": Form(r"[a-z][-a-z0-9]{4,28}[a-z0-9]", "6 to 30 of a-z, 0-9 and '-'", "write the project's id, not its name"),
    "project_number": Form(r"\d{6,14}", "digits only", "`gcloud projects describe PROJECT`"),
    "region": Form(r"[a-z]+-[a-z]+\d+", "a region such as us-central1", "`gcloud compute regions list`"),
    "state_bucket": Form(r"[a-z0-9][-_.a-z0-9]{1,61}[a-z0-9]", "a bucket name without gs://", "correct it"),
    "cluster.min_version": Form(r"1\.\d+(\.\d+(-gke\.\d+)?)?", "1.35 or 1.35.0-gke.1171000", "correct it"),
    "cluster.maintenance_days": Form(
        rf"FREQ=(DAILY|WEEKLY;BYDAY={_DAY}(,{_DAY})*)", "FREQ=WEEKLY;BYDAY=SA,SU", "correct it",
    ),
    "network.existing.network": Form(
        r"projects/[a-z][-a-z0-9]{4,28}[a-z0-9]/global/networks/[-a-z0-9]+", "projects/P/global/networks/NAME",
        "`gcloud compute networks list --uri` ends with it",
    ),
    "network.existing.subnet": Form(
        r"projects/[a-z][-a-z0-9]{4,28}[a-z0-9]/regions/[-a-z0-9]+/subnetworks/[-a-z0-9]+",
        "projects/P/regions/R/subnetworks/NAME", "`gcloud compute networks subnets list --uri` ends with it",
    ),
    "security.kms_key": Form(
        r"projects/[^/]+/locations/[^/]+/keyRings/[^/]+/cryptoKeys/[^/]+",
        "projects/P/locations/L/keyRings/R/cryptoKeys/K", "write the key's full resource name",
    ),
    "security.rbac_security_group": Form(
        r"gke-security-groups@[a-zA-Z0-9.-]+\.[a-z]{2,}", "gke-security-groups@your-domain", "GKE accepts this group name only",
    ),
    # Without a repository's name it would admit every image of a registry.
    "security.image_patterns": Form(
        r"[a-z0-9.-]+(/[a-zA-Z0-9._-]+){2,}(/\*\*?|\*|@sha256:[0-9a-f]{64})?",
        "REGISTRY/PROJECT/REPOSITORY/**, or one image", "name a repository of yours",
    ),
    "database.tier": Form(r"db-(custom-\d+-\d+|perf-optimized-N-\d+|f1-micro|g1-small)", "db-custom-<vCPUs>-<MiB>", "correct it"),
    "alerts.emails": Form(_MAIL, "an address such as oncall@example.org", "correct it"),
    "alerts.channels": Form(
        r"projects/[^/]+/notificationChannels/\d+", "projects/P/notificationChannels/N", "write the full name",
    ),
    "alerts.readers": Form(
        rf"(group|user|serviceAccount):{_MAIL}", "group:ml-platform@example.org", "add the kind before the address",
    ),
    "alerts.modules": Form(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", "a module such as acme.alerts", "write its dotted name"),
    "alerts.runbook_base_url": Form(r"https://\S+", "https://...", "correct it"),
    "groups[].reservation.project": Form(r"[a-z][-a-z0-9]{4,28}[a-z0-9]", "a project id", "write the owner's id"),
    "teams.members": Form(rf"(?!.*:){_MAIL}", "the address of a Google group", "write it without a kind before it"),
    "delivery.repository": Form(
        r"[A-Za-z0-9][A-Za-z0-9-]{0,38}/[A-Za-z0-9._-]{1,100}", "owner/name", "write it without https://",
    ),
    "delivery.environment": Form(r"[A-Za-z0-9_-]{1,64}", "a name", "correct it"),
    "budget.billing_account": Form(
        r"[0-9A-F]{6}-[0-9A-F]{6}-[0-9A-F]{6}", "a billing account of the form 0X0X0X-0X0X0X-0X0X0X",
        "`gcloud billing accounts list`",
    ),
    "budget.currency": Form(r"[A-Z]{3}", "three letters such as EUR", "write the account's currency"),
}  # fmt: skip


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


def numbers(at: str, of: Any, **ranges: tuple[float, float]) -> None:
    """Each named field of a section is in its range, and each field of type bool is True or False."""
    for field in fields(of):
        got, ok = getattr(of, field.name), field.type is not bool or isinstance(getattr(of, field.name), bool)
        require(ok, f"{at}{field.name}", repr(got), "True or False", "write True or False without quotes")
    for name, (low, high) in ranges.items():
        between(f"{at}{name}", getattr(of, name), low, high)


def forms(at: str, of: Any, *names: str) -> None:
    """Each named field has its form in FORMS, each item where it is a tuple; a field whose default is empty may be."""
    for name in names:
        got, default = getattr(of, name), next(field.default for field in fields(of) if field.name == name)
        if got or default:
            for item in got if isinstance(default, tuple) else (got,):
                matches(f"{at}{name}", item, *FORMS[f"{at}{name}"])


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
        return [hit for f in fields(value) for hit in placeholders(getattr(value, f.name), prefix + f.name)]
    return []
