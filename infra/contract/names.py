"""Names of cloud and storage objects, computed from an environment so that stacks never refer to each other.

A name here is in use in deployed projects: changing how it is computed replaces what carries it.
"""

import re

from holdfast.contract.errors import InputError

PROVISIONING_PREFIX = "holdfast"

# Stacks by blast radius, each after those before it.
AREAS = ("foundation", "cluster", "monitoring")
BUCKETS = ("checkpoints", "data")

# On everything that a proof makes and that takes labels: what `leftovers --remove` may remove.
LABEL_RUN = "holdfast-run"

# Google's limits.
MAX_CLUSTER_NAME = 40
MAX_SERVICE_ACCOUNT_ID = 30
MAX_BUCKET_NAME = 63


def checked(name: str, *, limit: int, what: str) -> str:
    """A DNS-like name within `limit` characters, or an InputError that says by how much it is too long."""
    if len(name) > limit or not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name):
        raise InputError(
            f"{what} is no valid name",
            got=f"{name} ({len(name)} characters)",
            allowed=f"at most {limit} of a-z, 0-9 and '-', beginning with a letter, not ending with '-'",
            fix="choose a shorter environment name or name_prefix",
        )
    return name


def stack(area: str, env: str) -> str:
    """`foundation-dev`, `cluster-dev`, `monitoring-dev`: what `cdktf deploy` is given."""
    assert area in AREAS, area
    return f"{area}-{env}"


def stacks(env: str) -> list[str]:
    """In the order in which they are deployed; destroyed in the other."""
    return [stack(area, env) for area in AREAS]


def cluster(prefix: str, env: str) -> str:
    return checked(f"{prefix}-{env}", limit=MAX_CLUSTER_NAME, what="cluster name")


def network(prefix: str, env: str) -> str:
    return checked(f"{prefix}-{env}", limit=63, what="network name")


def bucket(project_id: str, prefix: str, env: str, purpose: str) -> str:
    """Bucket names are global, so the project is part of them. `purpose`: of BUCKETS."""
    return checked(f"{project_id}-{prefix}-{env}-{purpose}", limit=MAX_BUCKET_NAME, what="bucket name")


def service_account(prefix: str, env: str, role: str) -> str:
    return checked(f"{prefix}-{env}-{role}", limit=MAX_SERVICE_ACCOUNT_ID, what=f"service account id of {role}")


def service_account_email(project_id: str, prefix: str, env: str, role: str) -> str:
    return f"{service_account(prefix, env, role)}@{project_id}.iam.gserviceaccount.com"


def identity_pool(prefix: str, env: str) -> str:
    """Of the workflows that deploy. 4 to 32 characters; a deleted one keeps its name for 30 days."""
    return checked(f"{prefix}-{env}-ci", limit=32, what="workload identity pool id")


def topic(prefix: str, env: str, purpose: str) -> str:
    """`purpose`: work, work-2, ..., dead."""
    return f"{prefix}-{env}-{purpose}"
