"""What names of cloud objects are made of; `Environment` computes them, so that stacks never refer
to each other.
"""

import re
from hashlib import sha256

from holdfast.support.errors import InputError
from holdfast.vocabulary.roles import team_role

PROVISIONING_PREFIX = "holdfast"
MAX_ACCOUNT_ID = 30
"""Characters of a service account id, as Google limits it."""
DIGEST_LENGTH = 6

# Stacks by blast radius, each after those before it.
AREAS = ("foundation", "cluster", "monitoring")
BUCKETS = ("checkpoints", "data")

# On everything that a proof makes and that takes labels: what `leftovers --remove` may remove.
LABEL_RUN = "holdfast-run"


def checked(name: str, *, limit: int, what: str) -> str:
    """A DNS-like name within `limit` characters, or an InputError that says by how much it is too
    long.
    """
    if len(name) > limit or not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name):
        allowed = (
            f"at most {limit} of a-z, 0-9 and '-', beginning with a letter, not ending with '-'"
        )
        fix = "choose a shorter environment name or name_prefix"
        raise InputError(
            f"{what} is no valid name",
            got=f"{name} ({len(name)} characters)",
            allowed=allowed,
            fix=fix,
        )
    return name


def account_id(stem: str, role: str) -> str:
    """Of a role's Google service account. A team's name that is too long is replaced by a digest."""
    name = f"{stem}-{role}"
    if role.startswith(team_role("")) and len(name) > MAX_ACCOUNT_ID:
        name = f"{stem}-t{sha256(role.encode()).hexdigest()[:DIGEST_LENGTH]}"
    return checked(name, limit=MAX_ACCOUNT_ID, what=f"service account id of {role}")


def stack(area: str, env: str) -> str:
    """`foundation-dev`, `cluster-dev`, `monitoring-dev`: what `cdktf deploy` is given."""
    assert area in AREAS, area
    return f"{area}-{env}"


def stacks(env: str) -> list[str]:
    """In the order in which they are deployed; destroyed in the other."""
    return [stack(area, env) for area in AREAS]
