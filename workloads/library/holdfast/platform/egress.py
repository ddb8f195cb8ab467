"""Tells which hosts the pods of a namespace may reach, by the names of a platform document.

A name stands for itself. `*.example.org` stands for the names one level below, as in the network
policies of GKE: api.example.org, but neither example.org nor a.b.example.org. Ranges of addresses
name no host.
"""

import re
from collections.abc import Iterable

GOOGLE = ("googleapis.com", "pkg.dev")
"""Domains that are open to every pod: Google's APIs and Artifact Registry, on private addresses."""


def is_range(target: str) -> bool:
    return "/" in target


def admits(targets: Iterable[str], host: str) -> bool:
    """Returns whether a host is among the targets, or one of Google's."""
    name = host.lower().rstrip(".")
    for domain in GOOGLE:
        if name == domain or name.endswith(f".{domain}"):
            return True
    return any(_matches(target, name) for target in targets if not is_range(target))


def _matches(target: str, name: str) -> bool:
    pattern = re.escape(target.lower()).replace(r"\*", "[^.]+")
    return re.fullmatch(pattern, name) is not None
