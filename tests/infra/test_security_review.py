"""The page for security reviews says what the code deploys."""

import re
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from infra.specs import Resource, resources
from infra.specs.delivery import ISSUER
from tests.infra.security_review import PAGE, REGENERATE, make_environment, write

ENVIRONMENT = make_environment()
PLANNED = resources(ENVIRONMENT)
Judge = Callable[[dict[str, list[Any]]], Iterable[object]]


def test_tables_match_the_code() -> None:
    assert PAGE.read_text() == write(PAGE.read_text()), REGENERATE


def group_arguments(planned: Iterable[Resource]) -> dict[str, list[Any]]:
    """Return kind without `google_` -> arguments of each resource."""
    groups: dict[str, list[Any]] = {}
    for resource in planned:
        groups.setdefault(resource.kind.removeprefix("google_"), []).append(resource.arguments)
    return groups


def list_nodes(groups: dict[str, list[Any]]) -> list[Any]:
    """Return the node settings of the cluster and of each pool."""
    holders = [*groups["container_cluster"], *groups["container_node_pool"]]
    nodes = [holder["node_config"] for holder in holders]
    for cluster in groups["container_cluster"]:
        nodes.append(cluster["cluster_autoscaling"]["auto_provisioning_defaults"])
    return nodes


# Constraint -> values that are all true where it holds.
HOLDS: dict[str, Judge] = {
    "iam.disableServiceAccountKeyCreation": lambda g: ["service_account_key" not in g],
    "iam.automaticIamGrantsForDefaultServiceAccounts": lambda g: [
        node["service_account"] == ENVIRONMENT.service_account_email("nodes")
        for node in list_nodes(g)
    ],
    "compute.skipDefaultNetworkCreation": lambda g: [
        network["auto_create_subnetworks"] is False for network in g["compute_network"]
    ],
    "compute.vmExternalIpAccess": lambda g: [
        *(pool["network_config"]["enable_private_nodes"] for pool in g["container_node_pool"]),
        *(c["private_cluster_config"]["enable_private_nodes"] for c in g["container_cluster"]),
    ],
    "compute.requireShieldedVm": lambda g: [
        all(node["shielded_instance_config"].values()) for node in list_nodes(g)
    ],
    "storage.uniformBucketLevelAccess": lambda g: [
        bucket["uniform_bucket_level_access"] for bucket in g["storage_bucket"]
    ],
    "storage.publicAccessPrevention": lambda g: [
        bucket["public_access_prevention"] == "enforced" for bucket in g["storage_bucket"]
    ],
    "sql.restrictPublicIp": lambda g: [
        instance["settings"]["ip_configuration"]["ipv4_enabled"] is False
        for instance in g["sql_database_instance"]
    ],
    "sql.restrictAuthorizedNetworks": lambda g: [
        "authorized_networks" not in instance["settings"]["ip_configuration"]
        for instance in g["sql_database_instance"]
    ],
    "gcp.restrictNonCmekServices": lambda g: [
        ENVIRONMENT.security.kms_key in str(arguments)
        for kind in (
            "storage_bucket",
            "pubsub_topic",
            "artifact_registry_repository",
            "sql_database_instance",
            "container_cluster",
            "container_node_pool",
        )
        for arguments in g[kind]
    ],
}
# Constraint -> the resource that it would stop.
STOPS = {
    "gcp.restrictServiceUsage": "google_project_service",
    "gcp.resourceLocations": "google_storage_bucket",
    "iam.workloadIdentityPoolProviders": "google_iam_workload_identity_pool_provider",
    "iam.allowedPolicyMemberDomains": "google_project_iam_member",
    "compute.restrictVpcPeering": "google_service_networking_connection",
    "compute.restrictCloudNATUsage": "google_compute_router_nat",
    "compute.trustedImageProjects": "google_container_node_pool",
}
# These concern what the hardened environment lacks: a host project, load balancers.
ELSEWHERE = {
    "compute.restrictSharedVpcSubnetworks",
    "compute.restrictLoadBalancerCreationForTypes",
}


def list_constraints(heading: str) -> dict[str, str]:
    """Return constraint -> row of the table after a sentence of the page."""
    section = PAGE.read_text().partition(heading)[2]
    table = section.split("\n\n")[1]
    constraints: dict[str, str] = {}
    for row in table.splitlines():
        if "`" in row:
            constraints[row.split("`")[1]] = row
    return constraints


@pytest.mark.parametrize("constraint", HOLDS)
def test_constraints_that_may_be_enforced_hold(constraint: str) -> None:
    values = [*HOLDS[constraint](group_arguments(PLANNED))]
    assert values
    assert all(values)


def test_page_lists_the_constraints_that_were_judged() -> None:
    assert set(list_constraints("These may be enforced")) == set(HOLDS)
    allowed = list_constraints("These must allow something")
    assert set(allowed) == set(STOPS) | ELSEWHERE
    kinds = {resource.kind for resource in PLANNED}
    assert set(STOPS.values()) <= kinds
    assert ISSUER in allowed["iam.workloadIdentityPoolProviders"]
    assert "servicenetworking.googleapis.com" in allowed["compute.restrictVpcPeering"]


def test_named_fields_exist() -> None:
    names = re.findall(r"`(security|alerts|network)\.(\w+)`", PAGE.read_text())
    assert len(names) > 5
    for section, field in names:
        assert hasattr(getattr(ENVIRONMENT, section), field), f"{section}.{field}"
