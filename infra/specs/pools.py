"""One node pool resource for each contract Pool."""

from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.lifecycle import DEFAULT_WINDOW
from holdfast.vocabulary.pools import Pool
from infra.contract.versions import GPU_DRIVER
from infra.environments.schema import Environment, NodeGroup
from infra.specs.cluster import NODE_IMAGE, OAUTH_SCOPES, READ_ONLY_PORT_OFF, SHIELDED
from infra.specs.encryption import key_argument
from infra.specs.resource import Resource

RESERVATION_KEY = "compute.googleapis.com/reservation-name"
FLEX = (Capacity.FLEX_START, Capacity.QUEUED)
# Machines whose networks GKE makes by itself ("automated networking for accelerators").
RDMA_MACHINES = ("a3-ultragpu-8g", "a4-highgpu-8g")
NETWORK_DRIVER_LABEL = "cloud.google.com/gke-networking-dra-driver"
RESERVED_TAINTS = ("cloud.google.com/", "kubernetes.io/", "node.kubernetes.io/")
CLUSTER = "google_container_cluster.cluster"
# Taints are a set to the API and a list to the provider: drift compares them
# (infra/decisions/0016).
IGNORED = ("initial_node_count", "node_config[0].taint")
NO_AUTO_REPAIR = {
    "CKV_GCP_9": "GKE refuses auto-repair on flex-start: it would queue for another machine"
}


def resources(environment: Environment) -> list[Resource]:
    return [pool_resource(environment, pool) for pool in environment.pools()]


def pool_resource(environment: Environment, pool: Pool) -> Resource:
    flex = pool.capacity in FLEX
    arguments: dict[str, object] = {
        "name": pool.name,
        "cluster": environment.cluster_name,
        "location": environment.region,
        "node_locations": list(pool.zones or environment.zones),
        "initial_node_count": _initial_nodes(pool, len(pool.zones or environment.zones)),
        "max_pods_per_node": environment.network.max_pods_per_node,
        "autoscaling": {
            "total_min_node_count": pool.min_nodes,
            "total_max_node_count": pool.max_nodes,
            "location_policy": "ANY" if pool.interruptible else "BALANCED",
        },
        # Repairing a flex-start node would queue for a new one; GKE refuses the combination.
        "management": {"auto_repair": not flex, "auto_upgrade": True},
        "network_config": _network(pool),
        "node_config": _node_config(environment, pool),
    }
    if _group(environment, pool).compact:
        arguments["placement_policy"] = {"type": "COMPACT"}
    if not flex:
        # GKE sets SHORT_LIVED on flex-start pools, a value the provider does not know: any other
        # would be a permanent difference. GPU quota is usually full, so a GPU pool upgrades by
        # removing a node first, others by adding one.
        surge = 0 if pool.gpus_per_node else 1
        arguments["upgrade_settings"] = {
            "strategy": "SURGE",
            "max_surge": surge,
            "max_unavailable": 1 - surge,
        }
    if pool.capacity is Capacity.QUEUED:
        arguments["queued_provisioning"] = {"enabled": True}
    return Resource(
        kind="google_container_node_pool",
        id=f"pool-{pool.name}",
        arguments=arguments,
        after=(CLUSTER,),
        ignore_changes=IGNORED,
        skips=NO_AUTO_REPAIR if flex else {},
    )


def _group(environment: Environment, pool: Pool) -> NodeGroup:
    return {group.name: group for group in environment.groups}[pool.pool_class]


def _network(pool: Pool) -> dict[str, object]:
    config: dict[str, object] = {"enable_private_nodes": True}
    if pool.machine_type in RDMA_MACHINES:
        # GKE makes the networks of the other eight cards; without them a gang has one card.
        config["accelerator_network_profile"] = "auto"
    return config


def _initial_nodes(pool: Pool, zones: int) -> int:
    """Return the nodes of each zone at the start: the autoscaler does not raise a pool to its
    minimum before a pod needs a node.
    """
    nodes = -(-pool.min_nodes // zones)
    return nodes if nodes * zones <= pool.max_nodes else pool.min_nodes // zones


def _node_config(environment: Environment, pool: Pool) -> dict[str, object]:
    config: dict[str, object] = {
        "machine_type": pool.machine_type,
        "image_type": NODE_IMAGE,
        "disk_size_gb": pool.disk_gib,
        "disk_type": pool.disk_type,
        "service_account": environment.service_account_email("nodes"),
        "oauth_scopes": OAUTH_SCOPES,
        "labels": pool.labels() | _driver_labels(pool),
        "resource_labels": environment.all_labels() | {"pool": pool.name},
        "taint": _taints(pool),
        "metadata": {"disable-legacy-endpoints": "true"},
        "gcfs_config": {"enabled": True},
        "gvnic": {"enabled": True},
        "shielded_instance_config": SHIELDED,
        "workload_metadata_config": {"mode": "GKE_METADATA"},
        "kubelet_config": _kubelet(pool),
    }
    config |= _lifespan(environment, pool) | _gpu(environment, pool)
    local_ssds = _group(environment, pool).local_ssds
    if local_ssds:
        config["ephemeral_storage_local_ssd_config"] = {"local_ssd_count": local_ssds}
    return config | key_argument(environment, "boot_disk_kms_key")


def _driver_labels(pool: Pool) -> dict[str, str]:
    """Return the label by which GKE offers the network cards of the pool to pods."""
    return {NETWORK_DRIVER_LABEL: "true"} if pool.machine_type in RDMA_MACHINES else {}


def _taints(pool: Pool) -> list[dict[str, str]]:
    taints = []
    for taint in sorted(pool.taints, key=lambda taint: taint.key):
        # GKE sets the reserved ones on nodes itself, and refuses a pool that states one.
        if not taint.key.startswith(RESERVED_TAINTS):
            block = {
                "key": taint.key,
                "value": taint.value,
                "effect": taint.effect.provider_value,
            }
            taints.append(block)
    return taints


def _kubelet(pool: Pool) -> dict[str, object]:
    kubelet: dict[str, object] = dict(READ_ONLY_PORT_OFF)
    if pool.capacity is Capacity.SPOT and pool.window != DEFAULT_WINDOW:
        kubelet["shutdown_grace_period_seconds"] = pool.window.total_s
        kubelet["shutdown_grace_period_critical_pods_seconds"] = pool.window.critical_s
    return kubelet


def _lifespan(environment: Environment, pool: Pool) -> dict[str, object]:
    no_reservation = {"consume_reservation_type": "NO_RESERVATION"}
    match pool.capacity:
        case Capacity.SPOT:
            return {"spot": True, "reservation_affinity": no_reservation}
        case Capacity.RESERVED:
            return {"reservation_affinity": _reservation(environment, pool)}
        case Capacity.FLEX_START:
            return {
                "flex_start": True,
                "reservation_affinity": no_reservation,
                "max_run_duration": f"{pool.max_run_s}s",
            }
        case Capacity.QUEUED:
            # Without flex_start the nodes lack the label that jobs select. Each
            # ProvisioningRequest limits their lifetime, which GKE refuses on the pool.
            return {"flex_start": True, "reservation_affinity": no_reservation}
        case _:
            return {}


def _reservation(environment: Environment, pool: Pool) -> dict[str, object]:
    reservation = _group(environment, pool).reservation
    assert reservation
    path = reservation.name
    if reservation.project:
        path = f"projects/{reservation.project}/reservations/{reservation.name}"
    return {
        "consume_reservation_type": "SPECIFIC_RESERVATION",
        "key": RESERVATION_KEY,
        "values": [path],
    }


def _gpu(environment: Environment, pool: Pool) -> dict[str, object]:
    if not pool.gpus_per_node:
        return {}
    config: dict[str, object] = {
        "guest_accelerator": [
            {
                "type": pool.accelerator,
                "count": pool.gpus_per_node,
                "gpu_driver_installation_config": {"gpu_driver_version": GPU_DRIVER},
            },
        ],
    }
    if environment.security.signed_kernel_modules:
        config["linux_node_config"] = {
            "node_kernel_module_loading": {"policy": "ENFORCE_SIGNED_MODULES"}
        }
    return config
