"""Parts of the names of cloud objects. `Environment` computes names from them, so that stacks never
refer to each other.
"""

import re
from hashlib import sha256

from holdfast.support.errors import InputError
from holdfast.vocabulary.roles import team_role

PROVISIONING_PREFIX = "holdfast"
MAX_ACCOUNT_ID = 30
"""Characters of a service account id, as Google limits it."""
DIGEST_LENGTH = 6

# Stacks by blast radius, in the order in which they are deployed.
AREAS = ("foundation", "cluster", "monitoring")
BUCKETS = ("checkpoints", "data", "receipts")

# The label of all resources of a proof that take labels: `leftovers --remove` may remove them.
LABEL_RUN = "holdfast-run"


def check_name(name: str, *, limit: int, kind: str) -> str:
    """Return `name` if it is DNS-like and within `limit` characters, else raise InputError."""
    if len(name) > limit or not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name):
        allowed = (
            f"at most {limit} of a-z, 0-9 and '-', beginning with a letter, not ending with '-'"
        )
        fix = "choose a shorter environment name or name_prefix"
        raise InputError(
            f"{kind} is no valid name",
            got=f"{name} ({len(name)} characters)",
            allowed=allowed,
            fix=fix,
        )
    return name


def account_id(stem: str, role: str) -> str:
    """Return the id of a role's Google account. A digest replaces a team name that is too long."""
    name = f"{stem}-{role}"
    if role.startswith(team_role("")) and len(name) > MAX_ACCOUNT_ID:
        name = f"{stem}-t{sha256(role.encode()).hexdigest()[:DIGEST_LENGTH]}"
    return check_name(name, limit=MAX_ACCOUNT_ID, kind=f"service account id of {role}")


def stack(area: str, env: str) -> str:
    """Return the name of a stack for `cdktf deploy`, as `foundation-dev`."""
    assert area in AREAS, area
    return f"{area}-{env}"


def stacks(env: str) -> list[str]:
    """Return all stacks in the order in which they are deployed. Destroy them in reverse."""
    return [stack(area, env) for area in AREAS]
