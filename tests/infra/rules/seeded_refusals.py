"""Values that Google's APIs refuse. Each is one edit of sound facts, with its finder and the page
that documents the refusal.

The finder is the id of a rule, or words of the schema's error.
"""

from holdfast.vocabulary.capacity import Capacity
from infra.rules import pools
from tests.infra.rules.broken import CLUSTER, DATABASE, DEFAULTS, GANG, SPOT, SUBNET
from tests.infra.rules.edits import (
    Edit,
    both,
    caps,
    cluster,
    database,
    group,
    network,
    put,
    security,
    state,
    storage,
)

TOOLKIT = "https://github.com/GoogleCloudPlatform/cluster-toolkit/pull/4027"
DOCS = "https://docs.cloud.google.com/"
GKE = f"{DOCS}kubernetes-engine/docs/"
WINDOWS = f"{GKE}concepts/maintenance-windows-and-exclusions"
DISK_DOC = f"{DOCS}compute/docs/disks/persistent-disks"


def labels(**pairs: str) -> Edit:
    return state(labels=tuple(pairs.items()))


DISK = "node_config.disk_type"

REFUSED: dict[str, tuple[Edit, str, str]] = {
    # Capacity
    "queued and Spot": (
        put(GANG, "node_config.spot", True),
        "spot-xor-flex pools-are-tainted",
        TOOLKIT,
    ),
    "queued without flex-start": (
        put(GANG, "node_config.flex_start", False),
        "pools-have-jobs",
        f"{GKE}how-to/provisioningrequest",
    ),
    "one H100 of eight on demand": (
        group(
            "spot-a100",
            machine_types=("a3-highgpu-1g",),
            accelerator="nvidia-h100-80gb",
            capacity=Capacity.ON_DEMAND,
        ),
        "capacity",
        f"{DOCS}compute/docs/accelerator-optimized-machines",
    ),
    # Machines
    "three local SSDs on a G2": (
        group("spot-l4", local_ssds=3),
        "local_ssds",
        f"{DOCS}compute/docs/disks/local-ssd#choose_number_local_ssds",
    ),
    "a local SSD on an E2": (
        group("system", local_ssds=1),
        "local_ssds",
        f"{DOCS}compute/docs/disks/local-ssd#choose_number_local_ssds",
    ),
    "Hyperdisk on an A2": (
        group("spot-a100", disk_type="hyperdisk-balanced"),
        "disks-fit",
        pools.DISKS_DOC,
    ),
    "Hyperdisk on an E2": (
        group("system", disk_type="hyperdisk-balanced"),
        "disks-fit",
        pools.DISKS_DOC,
    ),
    "pd-extreme on a G2": (
        put("google_container_node_pool.pool-serving", DISK, "pd-extreme"),
        "disks-fit",
        DISK_DOC,
    ),
    "a disk type with a typo": (put(SPOT, DISK, "pd-balnced"), "disks-fit", DISK_DOC),
    "caps for GPUs of other zones": (
        put(CLUSTER, "cluster_autoscaling.auto_provisioning_locations", ["us-central1-f"]),
        "nap-zones-sell-the-gpus",
        f"{DOCS}compute/docs/gpus/gpu-regions-zones",
    ),
    "Hyperdisk from auto-provisioning": (
        caps(disk_type="hyperdisk-balanced"),
        "disks-fit",
        pools.DISKS_DOC,
    ),
    "a disk of 5 GiB": (group("spot-l4", disk_gib=5), "disk_gib", DISK_DOC),
    "5,000 nodes in a pool": (
        group("spot-l4", max_nodes=5_000),
        "max_nodes",
        f"{DOCS}kubernetes-engine/quotas",
    ),
    # Cluster
    "a control plane of long ago": (
        cluster(min_version="1.24"),
        "version-is-offered settings-have-their-version",
        f"{GKE}release-schedule",
    ),
    "signed kernel modules on an old control plane": (
        both(state(spot_grace_s=30), cluster(min_version="1.33")),
        "settings-have-their-version",
        f"{DOCS}kubernetes-engine/security/secure-modules-cos",
    ),
    "a range that the subnet lacks": (
        put(CLUSTER, "ip_allocation_policy.cluster_secondary_range_name", "pods-2"),
        "ranges-are-in-the-subnet",
        f"{GKE}concepts/alias-ips",
    ),
    "a control plane of some day": (
        cluster(min_version="1.99"),
        "version-is-offered",
        f"{GKE}release-schedule",
    ),
    "an hour of maintenance": (
        cluster(maintenance_end="2026-01-01T03:00:00Z"),
        "maintenance",
        WINDOWS,
    ),
    "maintenance once a week": (
        cluster(maintenance_days="FREQ=WEEKLY;BYDAY=SU"),
        "maintenance-is-possible",
        WINDOWS,
    ),
    "another group for role bindings": (
        security(rbac_security_group="gke-admins@acme.example"),
        "rbac_security_group",
        f"{GKE}how-to/google-groups-rbac",
    ),
    "a key of another region": (
        security(kms_key="projects/p/locations/europe-west4/keyRings/r/cryptoKeys/k"),
        "keys-are-near",
        f"{GKE}how-to/using-cmek",
    ),
    # Labels, ranges, database
    "a label in capitals": (
        put(SPOT, "node_config.resource_labels", {"Team": "ML"}),
        "label-grammar",
        GKE,
    ),
    "a value in capitals": (put(CLUSTER, "resource_labels", {"team": "ML"}), "label-grammar", GKE),
    "65 labels": (
        labels(**{f"l{n}": "x" for n in range(65)}),
        "label-grammar",
        f"{DOCS}resource-manager/docs/labels-overview",
    ),
    "a label of Google": (
        labels(**{"goog-x": "y"}),
        "label-grammar",
        f"{DOCS}resource-manager/docs/labels-overview",
    ),
    "pods on public addresses": (
        network(pods_cidr="8.8.0.0/16"),
        "ranges-are-private",
        f"{DOCS}vpc/docs/subnets#valid-ranges",
    ),
    "nodes on Docker's range": (
        network(nodes_cidr="172.17.0.0/20"),
        "ranges-are-private",
        f"{DOCS}sql/docs/postgres/private-ip",
    ),
    "a database on public addresses": (
        network(database_cidr="9.0.0.0/20"),
        "ranges-are-private",
        f"{DOCS}vpc/docs/subnets#valid-ranges",
    ),
    "a database on Docker's range": (
        network(database_cidr="172.17.16.0/20"),
        "ranges-are-private",
        f"{DOCS}sql/docs/postgres/private-ip",
    ),
    "a range with host bits": (
        network(nodes_cidr="10.10.0.1/22"),
        "nodes_cidr",
        f"{DOCS}vpc/docs/subnets",
    ),
    "three CPUs": (
        database(tier="db-custom-3-11520"),
        "database-tier-exists",
        f"{DOCS}sql/docs/postgres/create-instance",
    ),
    "a gigabyte for two CPUs": (
        database(tier="db-custom-2-1024"),
        "database-tier-exists",
        f"{DOCS}sql/docs/postgres/create-instance",
    ),
    "memory that is no multiple": (
        database(tier="db-custom-2-7700"),
        "database-tier-exists",
        f"{DOCS}sql/docs/postgres/create-instance",
    ),
    "a tier of another edition": (
        database(tier="db-perf-optimized-N-4"),
        "database-tier-exists",
        f"{DOCS}sql/docs/editions-intro",
    ),
    "a tier that is gone": (
        put(DATABASE, "settings.tier", "db-n1-standard-1"),
        "database-tier-exists",
        f"{DOCS}sql/docs/postgres/create-instance",
    ),
    "soft delete of three days": (
        storage(checkpoint_soft_delete_days=3),
        "checkpoint_soft_delete_days",
        f"{DOCS}storage/docs/soft-delete",
    ),
    "an account of 31 characters": (
        state(name_prefix="a-prefix-that-is-long"),
        "name_prefix",
        f"{DOCS}iam/docs/service-accounts-create",
    ),
    "a node range in the plan only": (
        both(
            put(SUBNET, "ip_cidr_range", "11.0.0.0/22"),
            put(CLUSTER, f"{DEFAULTS}.disk_type", "pd-ssd"),
        ),
        "ranges-are-private",
        f"{DOCS}vpc/docs/subnets#valid-ranges",
    ),
}
