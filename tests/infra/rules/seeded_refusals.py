"""What Google's APIs refuse, each one change of a sound set: the edit, who finds it, and who says so.

Found by the id of a rule, or by the schema: then by the words of its error.
"""

from infra.environments.schema import AcceleratorCap, AuthorizedRange
from infra.rules import machines
from infra.rules.model import Facts
from tests.infra.rules.breaking import CLUSTER, DATABASE, DEFAULTS, GANG, SPOT, SUBNET
from tests.infra.rules.edits import (
    Edit,
    alerts,
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


def labels(**found: str) -> Edit:
    return state(labels=tuple(found.items()))


DISK = "node_config.disk_type"

REFUSED: dict[str, tuple[Edit, str, str]] = {
    # Capacity
    "queued and Spot": (put(GANG, "node_config.spot", True), "spot-xor-flex", TOOLKIT),
    "queued without flex-start": (put(GANG, "node_config.flex_start", False), "pools-have-jobs", f"{GKE}how-to/provisioningrequest"),
    # Machines
    "Hyperdisk on an A2": (group("spot-a100", disk_type="hyperdisk-balanced"), "disks-fit", machines.DISKS_DOC),
    "Hyperdisk on an E2": (group("system", disk_type="hyperdisk-balanced"), "disks-fit", machines.DISKS_DOC),
    "pd-extreme on a G2": (put("google_container_node_pool.pool-serving", DISK, "pd-extreme"), "disks-fit", DISK_DOC),
    "a disk type with a typo": (put(SPOT, DISK, "pd-balnced"), "disks-fit", DISK_DOC),
    "Hyperdisk from auto-provisioning": (caps(disk_type="hyperdisk-balanced"), "disks-fit", machines.DISKS_DOC),
    "a disk of 5 GiB": (group("spot-l4", disk_gib=5), "disk_gib", DISK_DOC),
    "5,000 nodes in a pool": (group("spot-l4", max_nodes=5_000), "max_nodes", f"{DOCS}kubernetes-engine/quotas"),
    # Cluster
    "a control plane of long ago": (cluster(min_version="1.24"), "version-is-offered", f"{GKE}release-schedule"),
    "a control plane of some day": (cluster(min_version="1.99"), "version-is-offered", f"{GKE}release-schedule"),
    "an hour of maintenance": (cluster(maintenance_end="2026-01-01T03:00:00Z"), "maintenance", WINDOWS),
    "maintenance once a week": (cluster(maintenance_days="FREQ=WEEKLY;BYDAY=SU"), "maintenance-is-possible", WINDOWS),
    "another group for role bindings": (security(rbac_security_group="gke-admins@acme.example"), "rbac_security_group", f"{GKE}how-to/google-groups-rbac"),
    "a key of another region": (
        security(kms_key="projects/p/locations/europe-west4/keyRings/r/cryptoKeys/k"), "keys-are-near",
        f"{GKE}how-to/using-cmek",
    ),
    # Labels, ranges, database
    "a label in capitals": (put(SPOT, "node_config.resource_labels", {"Team": "ML"}), "label-grammar", GKE),
    "a value in capitals": (put(CLUSTER, "resource_labels", {"team": "ML"}), "label-grammar", GKE),
    "65 labels": (labels(**{f"l{n}": "x" for n in range(65)}), "label-grammar", f"{DOCS}resource-manager/docs/labels-overview"),
    "a label of Google": (labels(**{"goog-x": "y"}), "label-grammar", f"{DOCS}resource-manager/docs/labels-overview"),
    "pods on public addresses": (network(pods_cidr="8.8.0.0/16"), "ranges-are-private", f"{DOCS}vpc/docs/subnets#valid-ranges"),
    "nodes on Docker's range": (network(nodes_cidr="172.17.0.0/20"), "ranges-are-private", f"{DOCS}sql/docs/postgres/private-ip"),
    "a database on public addresses": (network(database_cidr="9.0.0.0/20"), "ranges-are-private", f"{DOCS}vpc/docs/subnets#valid-ranges"),
    "a database on Docker's range": (network(database_cidr="172.17.16.0/20"), "ranges-are-private", f"{DOCS}sql/docs/postgres/private-ip"),
    "a range with host bits": (network(nodes_cidr="10.10.0.1/22"), "nodes_cidr", f"{DOCS}vpc/docs/subnets"),
    "three CPUs": (database(tier="db-custom-3-11520"), "database-tier-exists", f"{DOCS}sql/docs/postgres/create-instance"),
    "a gigabyte for two CPUs": (database(tier="db-custom-2-1024"), "database-tier-exists", f"{DOCS}sql/docs/postgres/create-instance"),
    "memory that is no multiple": (database(tier="db-custom-2-7700"), "database-tier-exists", f"{DOCS}sql/docs/postgres/create-instance"),
    "a tier of another edition": (database(tier="db-perf-optimized-N-4"), "database-tier-exists", f"{DOCS}sql/docs/editions-intro"),
    "a tier that is gone": (put(DATABASE, "settings.tier", "db-n1-standard-1"), "database-tier-exists", f"{DOCS}sql/docs/postgres/create-instance"),
    "an account of 31 characters": (state(name_prefix="a-prefix-that-is-long"), "name_prefix", f"{DOCS}iam/docs/service-accounts-create"),
    "a node range in the plan only": (
        both(put(SUBNET, "ip_cidr_range", "11.0.0.0/22"), put(CLUSTER, f"{DEFAULTS}.disk_type", "pd-ssd")),
        "ranges-are-private", f"{DOCS}vpc/docs/subnets#valid-ranges",
    ),
}  # fmt: skip


def ranges(*cidrs: str) -> Edit:
    def edit(facts: Facts) -> Facts:
        named = tuple(AuthorizedRange(name=f"r{n}", cidr=cidr) for n, cidr in enumerate(cidrs))
        return network(authorized_ranges=named)(facts)

    return edit


# Defects of an environment that some rule finds, each one change of a sound one.
ENVIRONMENT: dict[str, Edit] = {
    "a public range of a continent": ranges("34.0.0.0/8"),
    "system at most 1": group("system", min_nodes=0, max_nodes=1),
    "no protection of the database": database(deletion_protection=False),
    "no protection of the cluster": cluster(deletion_protection=False),
    "endpoint open in production": cluster(dns_endpoint_public=True),
    "on demand pages after Spot": alerts(on_demand_pending_s=3_600),
    "nobody hears": alerts(emails=(), channels=()),
    "first with bugs": cluster(release_channel="RAPID"),
    # What follows are values that do not fit each other.
    "a zone that sells no such GPU": group("spot-a100", zones=("us-central1-z",)),
    "an address space for ten nodes": network(nodes_cidr="10.10.0.0/27"),
    "a pod range for one pool": network(pods_cidr="10.20.0.0/22"),
    "a service range for a few": network(services_cidr="10.30.0.0/26"),
    "caps below the pools": caps(max_vcpus=8),
    "caps without end": caps(max_vcpus=100_000),
    "auto-provisioning of nothing": caps(accelerators=()),
    "flex-start of a GPU that no job is offered": caps(accelerators=(AcceleratorCap(accelerator="nvidia-l4", max_gpus=64),)),
    "secrets under Google's key": security(kms_key=""),
    "any image": security(binary_authorization=False),
    "people bound one by one": security(rbac_security_group=""),
    "unsigned kernel modules": security(signed_kernel_modules=False),
    "buckets that may be emptied": storage(allow_destroy=True),
}  # fmt: skip
