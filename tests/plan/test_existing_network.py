"""An environment in a network of another team, planned by the real provider: it uses the network and makes nothing of it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infra import cdk, main
from infra.contract import names
from infra.environments import Environment
from infra.ops.plan import plan_stacks
from tests.infra.samples import EXAMPLE, shared_network

pytestmark = [pytest.mark.plan, pytest.mark.timeout(600)]
OF_A_NETWORK = (
    "google_compute_network",
    "google_compute_subnetwork",
    "google_compute_router",
    "google_compute_firewall",
)


def planned(environment: Environment, out: Path) -> dict[str, dict[str, Any]]:
    """Address -> planned values, of foundation and cluster."""
    app = cdk.App(outdir=str(out / "synth"))
    main.build(app, environment, local_state=True)
    app.synth()
    stacks = {name: out / "synth" / "stacks" / name for name in names.stacks(environment.name)[:2]}
    plans = [json.loads(file.read_text()) for file in plan_stacks(stacks, out).values()]
    return {r["address"]: r["values"] for plan in plans for r in plan["planned_values"]["root_module"]["resources"]}


def test_a_shared_vpc_is_used_and_only_its_grants_are_written(tmp_path: Path) -> None:
    found = planned(shared_network(), tmp_path)
    cluster, database = found["google_container_cluster.cluster"], found["google_sql_database_instance.results"]
    network = "projects/acme-host/global/networks/shared"
    assert (cluster["network"], cluster["subnetwork"].rpartition("/")[2]) == (network, "gpu")
    assert database["settings"][0]["ip_configuration"][0]["private_network"] == network
    assert [address for address in found if address.startswith(OF_A_NETWORK)] == [
        "google_compute_subnetwork_iam_member.host-gke", "google_compute_subnetwork_iam_member.host-instances",
    ]  # fmt: skip
    assert {found[f"google_compute_subnetwork_iam_member.host-{who}"]["project"] for who in ("gke", "instances")} == {
        "acme-host"
    }
    assert found["google_project_iam_member.host-gke"]["role"] == "roles/container.hostServiceAgentUser"
    assert not [a for a in found if a.startswith(("google_dns", "google_service_networking", "google_compute_global"))]


def test_what_a_network_of_the_same_project_lacks_is_made_in_it(tmp_path: Path) -> None:
    shared = shared_network()
    assert shared.network.existing
    text = f"projects/{EXAMPLE.project}"
    existing = replace(
        shared.network.existing, network=f"{text}/global/networks/company", grants=False,
        subnet=f"{text}/regions/{EXAMPLE.region}/subnetworks/gpu", creates=("nat", "managed-services"),
    )  # fmt: skip
    found = planned(replace(shared, network=replace(shared.network, existing=existing)), tmp_path)
    assert found["google_compute_router.nat"]["network"] == "company"
    assert found["google_service_networking_connection.managed-services"]["network"].endswith("/company")
    assert not [a for a in found if a.startswith(("google_dns", "google_compute_network.", "google_compute_firewall"))]
