"""An environment in another team's network uses that network, and creates only those parts of it
that it names.
"""

from dataclasses import replace
from typing import Any

from infra.environments import Environment
from infra.specs import resources
from tests.infra.samples import EXAMPLE, make_shared_network

OF_A_NETWORK = ("google_compute_", "google_dns_", "google_service_networking_")


def plan_resources(environment: Environment) -> dict[str, Any]:
    return {resource.address: resource.arguments for resource in resources(environment)}


def test_a_shared_vpc_is_used_and_only_its_grants_are_written() -> None:
    planned = plan_resources(make_shared_network())
    network = "projects/acme-host/global/networks/shared"
    cluster = planned["google_container_cluster.cluster"]
    database = planned["google_sql_database_instance.results"]
    assert cluster["network"] == network
    assert cluster["subnetwork"].rpartition("/")[2] == "gpu"
    assert database["settings"]["ip_configuration"]["private_network"] == network
    addresses = [address for address in planned if address.startswith(OF_A_NETWORK)]
    assert addresses == [
        "google_compute_subnetwork_iam_member.host-gke",
        "google_compute_subnetwork_iam_member.host-instances",
    ]
    for address in (
        "google_compute_subnetwork_iam_member.host-gke",
        "google_project_iam_member.host-gke",
    ):
        assert planned[address]["project"] == "acme-host"
    assert (
        planned["google_project_iam_member.host-gke"]["role"]
        == "roles/container.hostServiceAgentUser"
    )


def test_missing_parts_are_created_in_a_network_in_the_same_project() -> None:
    shared = make_shared_network()
    assert shared.network.existing
    text = f"projects/{EXAMPLE.project}"
    existing = replace(
        shared.network.existing,
        grants=False,
        network=f"{text}/global/networks/company",
        creates=("nat", "managed-services"),
        subnet=f"{text}/regions/{EXAMPLE.region}/subnetworks/gpu",
    )
    planned = plan_resources(replace(shared, network=replace(shared.network, existing=existing)))
    assert planned["google_compute_router.nat"]["network"] == "company"
    assert planned["google_service_networking_connection.managed-services"]["network"].endswith(
        "/company"
    )
    company_kinds = ("google_dns", "google_compute_network.", "google_compute_firewall")
    for address in planned:
        assert not address.startswith(company_kinds)
