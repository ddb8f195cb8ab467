"""Fields of node groups and of the cluster that reach Google: networks of accelerators, placement,
local SSDs, times without upgrades.
"""

from dataclasses import replace
from typing import Any

from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.pools import Role
from infra.environments.schema import Environment, Freeze, NodeGroup
from infra.rules.notes import list_notes
from infra.specs import cluster, pools
from tests.infra.samples import EXAMPLE


def make_group(machine_type: str, accelerator: str, **fields: Any) -> NodeGroup:
    return NodeGroup(
        name="big",
        role=Role.TRAINING,
        capacity=Capacity.SPOT,
        machine_types=(machine_type,),
        accelerator=accelerator,
        gpus_per_node=8,
        max_nodes=4,
        disk_type="hyperdisk-balanced",
        **fields,
    )


def plan_pool(group: NodeGroup) -> dict[str, Any]:
    environment: Environment = replace(EXAMPLE, groups=(*EXAMPLE.groups, group))
    return dict(pools.pool_resource(environment, environment.pool("big")).arguments)


def test_h200_gangs_get_all_networks() -> None:
    planned = plan_pool(make_group("a3-ultragpu-8g", "nvidia-h200-141gb"))
    assert planned["network_config"]["accelerator_network_profile"] == "auto"
    labels = planned["node_config"]["labels"]
    assert labels["cloud.google.com/gke-networking-dra-driver"] == "true"


def test_other_machines_get_no_profile() -> None:
    for group in EXAMPLE.groups:
        for pool in group.pools(EXAMPLE.spot_window):
            planned = pools.pool_resource(EXAMPLE, pool).arguments
            assert planned["network_config"] == {"enable_private_nodes": True}
            assert "placement_policy" not in planned


def test_compact_nodes_and_local_ssds_are_asked_for() -> None:
    group = make_group(
        "a3-ultragpu-8g",
        "nvidia-h200-141gb",
        compact=True,
        zones=("us-central1-b",),
        local_ssds=32,
    )
    planned = plan_pool(group)
    assert planned["placement_policy"] == {"type": "COMPACT"}
    assert planned["node_config"]["ephemeral_storage_local_ssd_config"] == {"local_ssd_count": 32}


def test_check_notes_the_network_that_gangs_get() -> None:
    group = make_group("a3-highgpu-8g", "nvidia-h100-80gb")
    environment = replace(EXAMPLE, groups=(*EXAMPLE.groups, group))
    (note,) = list_notes(environment)
    assert note.startswith("groups[big]: a gang over several a3-highgpu-8g nodes shares one card")
    assert list_notes(EXAMPLE) == []


def test_a_freeze_keeps_nodes_for_a_training() -> None:
    freeze = Freeze(
        name="run-7",
        starts="2026-12-01T00:00:00Z",
        ends="2027-01-01T00:00:00Z",
    )
    environment = replace(EXAMPLE, cluster=replace(EXAMPLE.cluster, freezes=(freeze,)))
    arguments: Any = cluster.resource(environment).arguments
    assert arguments["maintenance_policy"]["maintenance_exclusion"] == [
        {
            "exclusion_name": "run-7",
            "start_time": "2026-12-01T00:00:00Z",
            "end_time": "2027-01-01T00:00:00Z",
            "exclusion_options": {"scope": "NO_MINOR_OR_NODE_UPGRADES"},
        }
    ]
    assert "maintenance_exclusion" not in str(cluster.resource(EXAMPLE).arguments)
