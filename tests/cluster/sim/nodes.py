"""Simulated nodes of an environment's pools, with the labels, taints and GPUs that GKE gives."""

from typing import Any

from holdfast.clients.api import Api, Object
from holdfast.vocabulary.kubernetes import LABEL_MACHINE_TYPE
from holdfast.vocabulary.machines import MACHINE_TYPES
from holdfast.vocabulary.pools import GPU_RESOURCE, LABEL_ZONE, Pool
from tests.cluster.sim import pods
from tests.cluster.sim.stages import MANAGED

NODES = "/api/v1/nodes"
POOL = "sim.holdfast.dev/pool"


def node(
    pool: Pool,
    name: str,
    *,
    zone: str = "",
    labels: dict[str, str] | None = None,
) -> Object:
    """`labels` let a test keep its nodes to itself."""
    machine = MACHINE_TYPES[pool.machine_type]
    capacity = {
        "cpu": str(machine.vcpus),
        "memory": f"{machine.memory_gib}Gi",
        "pods": "110",
    }
    capacity["ephemeral-storage"] = f"{pool.disk_gib}Gi"
    if pool.gpus_per_node:
        capacity[GPU_RESOURCE] = str(pool.gpus_per_node)
    zones = {LABEL_ZONE: zone} if zone else {}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": (
                {
                    "kubernetes.io/hostname": name,
                    POOL: pool.name,
                    LABEL_MACHINE_TYPE: pool.machine_type,
                }
                | pool.node_labels()
                | zones
                | (labels or {})
            ),
            "annotations": {MANAGED: "fake"},
        },
        "spec": {"taints": taints(pool)},
        "status": {"capacity": capacity, "allocatable": capacity},
    }


def taints(pool: Pool) -> list[dict[str, str]]:
    taints_of_nodes: list[dict[str, str]] = []
    for t in pool.taints:
        taints_of_nodes.append(
            {
                "key": t.key,
                "value": t.value,
                "effect": t.effect.value,
            }
        )
    return taints_of_nodes


def add(api: Api, wanted: list[Object]) -> list[str]:
    """Creates the nodes, and returns their names. Use `ready` to wait until kwok manages them."""
    for each in wanted:
        api.create(NODES, each)
    return [each["metadata"]["name"] for each in wanted]


def is_ready(each: dict[str, Any]) -> bool:
    return any(
        c["type"] == "Ready" and c["status"] == "True" for c in each["status"].get("conditions", ())
    )


def ready(api: Api, names: list[str]) -> bool:
    """Ready, and free of the taint that a new node has until its controller has seen it."""
    missing = set(names)
    for node in api.items(NODES):
        fresh = any(
            t["key"].startswith("node.kubernetes.io/") for t in node["spec"].get("taints", ())
        )
        if is_ready(node) and not fresh:
            missing.discard(node["metadata"]["name"])
    return not missing


def remove(api: Api, names: list[str]) -> None:
    for name in names:
        with pods.if_there():
            api.delete(f"{NODES}/{name}")
