"""Decides whether a caller may call: the permission that a method needs, and roles that hold it.

Names of methods and permissions differ by rule in most APIs; NAMED has the exceptions. The roles
are those of tests/infra/permissions.toml.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.infra import conditions
from tests.infra.conditions import Attributes
from tests.plan.stand_in.definitions import Call

ROLES: dict[str, list[str]] = tomllib.loads(
    (Path(__file__).parents[2] / "infra" / "permissions.toml").read_text()
)["roles"]
SERVICES = {
    "billingbudgets": "billing",
    "cloudresourcemanager": "resourcemanager",
    "sql": "cloudsql",
}
VERBS = {"insert": "create", "patch": "update"}
# Methods whose permission has another name, by the end of the method.
NAMED = {
    "binaryauthorization.projects.getPolicy": "binaryauthorization.policy.get",
    "binaryauthorization.projects.updatePolicy": "binaryauthorization.policy.update",
    "compute.globalAddresses.insert": "compute.globalAddresses.createInternal",
    "compute.globalAddresses.delete": "compute.globalAddresses.deleteInternal",
    "nodePools.create": "container.clusters.update",
    "nodePools.delete": "container.clusters.update",
    "nodePools.get": "container.clusters.get",
    "nodePools.list": "container.clusters.get",
    "nodePools.setManagement": "container.clusters.update",
    "nodePools.setSize": "container.clusters.update",
    "nodePools.update": "container.clusters.update",
    "servicenetworking.services.connections.create": "servicenetworking.services.addPeering",
    "servicenetworking.services.connections.list": "servicenetworking.services.get",
    "serviceusage.services.batchEnable": "serviceusage.services.enable",
}
IAM_POOLS = re.compile(r"iam\.projects\.locations\.workloadIdentityPools\.(providers\.)?(\w+)")
# Roles on a billing account are given by hand (infra/docs/how-to/upgrading.md), and an operation
# belongs to the caller who began it.
NOT_ASKED = ("billing.", "Operations.", ".operations.")


def find_permission(method: str) -> str:
    """Return the permission that a method asks for."""
    pools = IAM_POOLS.fullmatch(method)
    if pools:
        kind = "workloadIdentityPoolProviders" if pools[1] else "workloadIdentityPools"
        # Unverified for attestation rules: taken as a read of the pool.
        verb = VERBS.get(pools[2], pools[2])
        if pools[2] == "listAttestationRules":
            verb = "get"
        return f"iam.googleapis.com/{kind}.{verb}"
    for end, permission in NAMED.items():
        if method == end or method.endswith(f".{end}"):
            return permission
    service, *_, kind, verb = method.split(".")
    return f"{SERVICES.get(service, service)}.{kind}.{VERBS.get(verb, verb)}"


def describe(call: Call) -> Attributes:
    """Return the attributes of the call's resource, as conditions of bindings name them."""
    if call.api == "storage":
        service = "storage.googleapis.com"
        bucket = "projects/_/buckets/" + "".join(call.path.split("/")[1:2])
        name = find_object(call)
        if name:
            return Attributes(
                name=f"{bucket}/objects/{name}", type=f"{service}/Object", service=service
            )
        return Attributes(name=bucket, type=f"{service}/Bucket", service=service)
    if call.id.startswith("sql.instances."):
        service = "sqladmin.googleapis.com"
        return Attributes(name=call.target, type=f"{service}/Instance", service=service)
    return Attributes(name=call.target)


def find_object(call: Call) -> str:
    """Return the name of the object that a call creates or works on; empty for any other call, as a
    listing, which is asked of the bucket.
    """
    if call.id == "storage.objects.insert":
        return (call.query.get("name") or [str(call.body.get("name", ""))])[0]
    match = re.fullmatch(r"b/[^/]+/o/(.+)", call.path)
    return match[1] if match else ""


def list_targets(call: Call, project: str) -> list[str]:
    """Return the resources whose policies count for the call."""
    targets = [call.target, f"projects/{project}"]
    if call.api == "storage":
        targets.append("/".join(call.path.split("/")[:2]))
    return targets


def holds(
    policies: Mapping[str, Mapping[str, Any]],
    targets: Iterable[str],
    member: str,
    permission: str,
    attributes: Attributes,
) -> bool:
    """Tell whether a role of `member` on one of the targets holds the permission, under the
    condition of its binding.
    """
    if any(part in f"{permission}." for part in NOT_ASKED):
        return True
    for target in targets:
        for binding in policies.get(target, {}).get("bindings") or ():
            expression = binding.get("condition", {}).get("expression", "")
            is_granted = permission in ROLES.get(binding["role"], ())
            if (
                is_granted
                and member in binding["members"]
                and conditions.holds(expression, attributes)
            ):
                return True
    return False
