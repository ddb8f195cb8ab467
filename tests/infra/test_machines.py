"""Fields of node groups and of the cluster that reach Google: networks of accelerators, placement,
local SSDs, times without upgrades.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.machines import ACCELERATORS, MACHINE_TYPES, REFUSED_MACHINES
from holdfast.vocabulary.pools import Role
from infra.environments.schema import Environment, Freeze, NodeGroup
from infra.rules.notes import list_notes
from infra.specs import cluster, pools
from tests.infra.samples import EXAMPLE

PAGE = Path("infra/docs/reference/machines.md")


def list_rows() -> Iterator[str]:
    """Yield the rows of the page's tables, of machines with GPUs and of refused ones."""
    for machine in MACHINE_TYPES.values():
        if machine.accelerator:
            gpu = ACCELERATORS[machine.accelerator]
            cells = (
                machine.name,
                f"{machine.gpus} x {gpu.name}, {gpu.memory_gib} GiB",
                f"{machine.vcpus}, {machine.memory_gib} GiB",
                ", ".join(map(str, machine.local_ssds)) or "none",
                describe_sales(machine.sold_as),
            )
            yield f"| {' | '.join(cells)} |"
    for refused in REFUSED_MACHINES.values():
        vcpus, memory_gib, gpus = refused.shape
        cells = (
            refused.name,
            f"{gpus} x {refused.accelerator}, {refused.gpu_memory_gib} GiB",
            f"{vcpus}, {memory_gib} GiB",
            str(refused.local_ssds),
            describe_sales(refused.sold_as),
            refused.price,
            f"{refused.reason}: use {refused.instead}",
        )
        yield f"| {' | '.join(cells)} |"


def describe_sales(sold_as: Any) -> str:
    words = []
    for capacity in Capacity:
        if capacity in sold_as:
            words.append(capacity.value)
    return ", ".join(words)


@pytest.mark.parametrize("row", list(list_rows()))
def test_page_has_each_machine(row: str) -> None:
    assert row in PAGE.read_text().splitlines()


def test_t4_and_rtx_pro_6000_pools_have_their_gpus() -> None:
    small = NodeGroup(
        name="big",
        role=Role.TRAINING,
        capacity=Capacity.SPOT,
        machine_types=("n1-standard-16",),
        accelerator="nvidia-tesla-t4",
        gpus_per_node=2,
        max_nodes=4,
    )
    large = make_group("g4-standard-384", "nvidia-rtx-pro-6000", local_ssds=32)
    for group, count in ((small, 2), (large, 8)):
        config = plan_pool(group)["node_config"]
        (gpu,) = config["guest_accelerator"]
        assert (gpu["type"], gpu["count"]) == (group.accelerator, count)
        assert config["machine_type"] == group.machine_types[0]


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
