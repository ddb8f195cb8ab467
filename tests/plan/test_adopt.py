"""A cluster that is there becomes part of an environment: the real provider reads its record and
says what changes.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.support.errors import InputError, Stopped
from infra import cdk, environments, main
from infra.contract.names import stack
from infra.environments import Environment
from infra.environments.schema import ExistingNetwork
from infra.ops import adopt
from tests.infra.samples import EXAMPLE

pytestmark = [pytest.mark.plan, pytest.mark.timeout(600)]
RECORD = Path(__file__).with_name("recorded_cluster.json")
ENVIRONMENT = replace(EXAMPLE, cluster=replace(EXAMPLE.cluster, name="ml-platform"))
Edit = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def stack_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthesize_stack(ENVIRONMENT, tmp_path_factory.mktemp("synth"))


def synthesize_stack(environment: Environment, out: Path) -> Path:
    """Synthesizes the stack of the cluster, and returns its folder."""
    app = cdk.App(outdir=str(out))
    main.build(app, environment, local_state=True)
    app.synth()
    return out / "stacks" / stack("cluster", environment.name)


def pool(record: dict[str, Any], name: str) -> dict[str, Any]:
    return next(block for block in record["nodePools"] if block["name"] == name)


def test_the_plan_shows_what_is_adopted(
    stack_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = adopt.read(RECORD)
    record["resourceLabels"] = {"team": "ml"}
    pool(record, "system")["autoscaling"]["totalMaxNodeCount"] = 9
    adoption = adopt.adopt(ENVIRONMENT, record, stack_folder, tmp_path / "plan")
    assert {block["to"] for block in adoption.blocks} == {
        "google_container_cluster.cluster",
        "google_container_node_pool.pool-system",
        "google_container_node_pool.pool-spot-a100",
    }
    assert "resource_labels" in adoption.changes["google_container_cluster.cluster"]
    assert "autoscaling" in adoption.changes["google_container_node_pool.pool-system"]
    assert (
        "google_container_node_pool.pool-flex-a100" in adoption.created
        and adoption.unmanaged == ["old-pool"]
    )
    monkeypatch.setattr(environments, "_FOLDER", tmp_path)
    adopt.write(ENVIRONMENT, adoption)
    stack_with_imports = json.loads(
        (synthesize_stack(ENVIRONMENT, tmp_path / "again") / "cdk.tf.json").read_text()
    )
    assert stack_with_imports["import"] == adoption.blocks
    assert (
        stack_with_imports["import"][0]["id"]
        == "projects/acme-ai-platform/locations/us-central1/clusters/ml-platform"
    )
    assert "old-pool" in "\n".join(adopt.report(adoption))


def in_another_network(record: dict[str, Any]) -> None:
    other = "projects/acme-ai-platform/global/networks/other"
    record |= {"network": "other", "networkConfig": record["networkConfig"] | {"network": other}}


def on_demand(record: dict[str, Any]) -> None:
    del pool(record, "spot-a100")["config"]["spot"]


@pytest.mark.parametrize(
    ("edit", "word"),
    [
        (in_another_network, "cluster.cluster: network"),
        (on_demand, "pool-spot-a100: node_config.spot"),
    ],
)
def test_resources_to_replace_are_not_adopted(
    stack_folder: Path,
    tmp_path: Path,
    edit: Edit,
    word: str,
) -> None:
    record = adopt.read(RECORD)
    edit(record)
    with pytest.raises(Stopped, match="would replace adopted resources") as caught:
        adopt.adopt(ENVIRONMENT, record, stack_folder, tmp_path / "plan")
    assert word in caught.value.lines()


DEFAULT_NETWORK = "projects/acme-ai-platform/global/networks/default"
DEFAULT_SUBNET = "projects/acme-ai-platform/regions/us-central1/subnetworks/default"
PODS_RANGE = "gke-ml-platform-pods-1a2b3c4d"
SERVICES_RANGE = "gke-ml-platform-services-1a2b3c4d"
# What `gcloud container clusters create` chooses and no apply can change in place.
OF_GCLOUD = replace(
    ENVIRONMENT,
    network=replace(
        ENVIRONMENT.network,
        existing=ExistingNetwork(
            network=DEFAULT_NETWORK,
            subnet=DEFAULT_SUBNET,
            pods_range=PODS_RANGE,
            services_range=SERVICES_RANGE,
        ),
        pods_cidr="10.20.0.0/14",
        max_pods_per_node=110,
        load_balancers_cidr="",
    ),
)


def read_gcloud_cluster(*, dataplane_v2: bool) -> dict[str, Any]:
    """The recorded cluster with the defaults of `gcloud container clusters create`."""
    record = adopt.read(RECORD)
    network = {"network": DEFAULT_NETWORK, "subnetwork": DEFAULT_SUBNET}
    if dataplane_v2:
        network["datapathProvider"] = "ADVANCED_DATAPATH"
    record |= {"network": "default", "subnetwork": "default", "networkConfig": network}
    record["ipAllocationPolicy"] |= {
        "clusterSecondaryRangeName": PODS_RANGE,
        "servicesSecondaryRangeName": SERVICES_RANGE,
    }
    record["defaultMaxPodsConstraint"] = {"maxPodsPerNode": "110"}
    record["autoscaling"] = {}
    del record["workloadIdentityConfig"]
    node = {
        "machineType": "e2-medium",
        "diskSizeGb": 100,
        "imageType": "COS_CONTAINERD",
        "serviceAccount": "default",
        "oauthScopes": ["https://www.googleapis.com/auth/devstorage.read_only"],
    }
    record["nodePools"] = [{"name": "default-pool", "initialNodeCount": 3, "config": node}]
    return record


def test_gcloud_cluster_keeps_its_pool_and_gets_new_ones(tmp_path: Path) -> None:
    folder = tmp_path / "synth"
    stack_folder = synthesize_stack(OF_GCLOUD, folder)
    record = read_gcloud_cluster(dataplane_v2=True)
    adoption = adopt.adopt(OF_GCLOUD, record, stack_folder, tmp_path / "plan")
    assert [block["to"] for block in adoption.blocks] == ["google_container_cluster.cluster"]
    assert adoption.unmanaged == ["default-pool"]
    assert "google_container_node_pool.pool-system" in adoption.created
    changed = adoption.changes["google_container_cluster.cluster"]
    assert "workload_identity_config" in changed and "private_cluster_config" in changed
    record = read_gcloud_cluster(dataplane_v2=False)
    with pytest.raises(Stopped) as stopped:
        adopt.adopt(OF_GCLOUD, record, stack_folder, tmp_path / "plan")
    lines = stopped.value.lines()
    assert "got:     google_container_cluster.cluster: datapath_provider\n" in lines
    assert "network.existing" in lines


def test_another_cluster_or_file_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="another cluster"):
        adopt.adopt(EXAMPLE, adopt.read(RECORD), tmp_path, tmp_path)
    for text in ("", "[]", '{"name": "a"}'):
        (tmp_path / "record.json").write_text(text)
        with pytest.raises(InputError, match="--adopt"):
            adopt.read(tmp_path / "record.json")
