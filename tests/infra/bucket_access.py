"""The permissions that a bucket's policy grants on its objects, evaluated as Cloud Storage does.

It follows Google's documentation of roles and conditions, and not the specs that it judges.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.infra import conditions

TABLE = tomllib.loads(Path(__file__).with_name("permissions.toml").read_text())
OBJECTS = ("create", "delete", "get", "update")
LIST = "list"
PREFIX = "storage.objects."
# The permissions on storage.objects of each role.
ROLES: dict[str, set[str]] = {}
for _role, _permissions in TABLE["roles"].items():
    ROLES[_role] = {name.removeprefix(PREFIX) for name in _permissions if name.startswith(PREFIX)}


def may(
    policy: Iterable[Mapping[str, Any]],
    identity: str,
    permission: str,
    bucket: str,
    name: str = "",
) -> bool:
    """Tells whether the policy (bindings of role, members and condition) grants the permission.

    `name` is that of the object; permission to list is judged for the bucket.
    """
    resource = f"projects/_/buckets/{bucket}" + (f"/objects/{name}" if permission != LIST else "")
    attributes = conditions.Attributes(name=resource)
    for binding in policy:
        if permission not in ROLES[binding["role"]]:
            continue
        members = binding.get("members") or [binding["member"]]
        if not any(_is(identity, member) for member in members):
            continue
        if conditions.holds(_expression(binding.get("condition")), attributes):
            return True
    return False


def principal(number: str, pool: str, namespace: str, account: str) -> str:
    """Return the principal of a Kubernetes account without a Google account."""
    base = f"principal://iam.googleapis.com/projects/{number}/locations/global/workloadIdentityPools/{pool}"
    return f"{base}/subject/ns/{namespace}/sa/{account}"


def _is(identity: str, member: str) -> bool:
    everyone = re.fullmatch(r"principalSet://(.+)/namespace/([^/]+)", member)
    if everyone:
        return identity.startswith(f"principal://{everyone[1]}/subject/ns/{everyone[2]}/sa/")
    return identity == member


def _expression(condition: Any) -> str:
    """Returns the expression of a condition block, which a plan shows as a list of one."""
    if isinstance(condition, list):
        (condition,) = condition or [None]
    return condition["expression"] if condition else ""
