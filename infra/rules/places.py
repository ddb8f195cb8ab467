"""Where things lie and how they are reached: what the provider lets stand anywhere."""

from collections.abc import Iterator

from infra.environments.capacity import MIN_DISK_GIB
from infra.rules.model import BUCKET, Facts, PlannedResource, Violation, each, rule

INSTANCE = "google_sql_database_instance"
# Where a kind states its region. Buckets have a rule of their own: they spell it in capitals.
REGIONS = {
    "google_artifact_registry_repository": "location",
    "google_compute_router": "region",
    "google_compute_router_nat": "region",
    "google_compute_subnetwork": "region",
    "google_container_node_pool": "location",
    INSTANCE: "region",
}
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
BASE_ROLES = ("system", "serving")


@rule(
    reason="results, images and the way out cross regions: slow, billed as egress, and perhaps not allowed",
    source="Google Cloud documentation on locations",
)
def all_in_one_region(facts: Facts) -> Iterator[Violation]:
    """Database, images, network and pools lie in the cluster's region, and topics keep messages there."""
    region = facts.environment.region
    for kind, path in REGIONS.items():
        yield from each(facts.of(kind), path, region, "use the cluster's region")
    for topic in facts.of("google_pubsub_topic"):
        path = "message_storage_policy.allowed_persistence_regions"
        if topic.get(path) != [region]:
            yield topic.violation(path, f"[{region}]", "state the cluster's region", topic.get(path, "any"))


@rule(reason="the whole internet could ask for the addresses inside", source="Cloud DNS documentation")
def zones_are_private(facts: Facts) -> Iterator[Violation]:
    """DNS zones answer inside the network only."""
    yield from each(facts.of("google_dns_managed_zone"), "visibility", "private", "keep it private")


@rule(reason="nodes of the other subnets and pods have no way out", source="Cloud NAT documentation")
def way_out_for_all(facts: Facts) -> Iterator[Violation]:
    """The NAT serves every range of every subnet."""
    path, wanted = "source_subnetwork_ip_ranges_to_nat", "ALL_SUBNETWORKS_ALL_IP_RANGES"
    yield from each(facts.of("google_compute_router_nat"), path, wanted, "state it")


@rule(
    reason="narrower scopes refuse what IAM grants, with a 403 that no policy explains",
    source="GKE documentation on access scopes; CIS GKE 5.4.1",
)
def identity_decides(facts: Facts) -> Iterator[Violation]:
    """Nodes have the one scope that leaves the decision to IAM, and no legacy metadata endpoints."""
    for pool in facts.pools():
        if pool.get("node_config.oauth_scopes") != [SCOPE]:
            yield pool.violation("node_config.oauth_scopes", SCOPE, "state this one scope")
        endpoints = (pool.get("node_config.metadata") or {}).get("disable-legacy-endpoints")
        if str(endpoints).lower() != "true":
            yield pool.violation("node_config.metadata", "disable-legacy-endpoints: true", "state it")


@rule(
    reason="images of this kind are 10 to 20 GB: the node is under disk pressure at once, and evicts", source="GKE docs"
)
def disks_hold_images(facts: Facts) -> Iterator[Violation]:
    """Node disks hold the images that run there."""
    for pool in facts.pools():
        if not (pool.get("node_config.disk_size_gb") or 0) >= MIN_DISK_GIB:
            yield pool.violation("node_config.disk_size_gb", f"{MIN_DISK_GIB} or more", "set disk_gib")


@rule(reason="an upgrade then takes the base away, all at once", source="GKE documentation on surge upgrades")
def upgrades_leave_the_base(facts: Facts) -> Iterator[Violation]:
    """Upgrades of system and serving pools take one node at a time."""
    for pool in facts.pools():
        role = str((pool.get("node_config.labels") or {}).get("holdfast.dev/role"))
        if role in BASE_ROLES and (pool.get("upgrade_settings.max_unavailable") or 0) > 1:
            yield pool.violation("upgrade_settings.max_unavailable", "0 or 1", "leave one at a time")


@rule(
    reason="pods then take more addresses than the range was counted for, and pools stop growing",
    source="GKE documentation on pods per node",
)
def pods_per_node_as_counted(facts: Facts) -> Iterator[Violation]:
    """Cluster and pools bear the number of pods that the ranges were counted with."""
    wanted = facts.environment.network.max_pods_per_node
    yield from each(facts.pools(), "max_pods_per_node", wanted, "set network.max_pods_per_node")
    yield from each(facts.cluster(), "default_max_pods_per_node", wanted, "set network.max_pods_per_node")


@rule(reason="GKE deletes an alpha cluster after 30 days", source="GKE documentation on alpha clusters")
def no_alpha_cluster(facts: Facts) -> Iterator[Violation]:
    """The cluster is none of those that end by themselves."""
    for cluster in facts.cluster():
        if cluster.get("enable_kubernetes_alpha"):
            yield cluster.violation("enable_kubernetes_alpha", "unset", "try alpha features elsewhere")


@rule(
    reason="flex-start has no pools of its own then, and its jobs wait without end", source="GKE documentation on NAP"
)
def nap_is_on(facts: Facts) -> Iterator[Violation]:
    """Auto-provisioning is on where the environment lends it accelerators."""
    if facts.environment.auto_provisioning.accelerators:
        yield from each(facts.cluster(), "cluster_autoscaling.enabled", True, "turn it on")


def _lifecycle(bucket: PlannedResource) -> Iterator[tuple[str, PlannedResource]]:
    for i, block in enumerate(bucket.blocks("lifecycle_rule")):
        yield f"lifecycle_rule[{i}]", PlannedResource(kind="", address=bucket.address, values=block)


@rule(
    reason="writers prune by deleting: a lock keeps all of it, another class bills 30 days of each, versions double it",
    source="Cloud Storage documentation on retention, classes and requester pays",
)
def checkpoints_can_be_pruned(facts: Facts) -> Iterator[Violation]:
    """Checkpoints are plain STANDARD objects: no retention, no holds, no versions, no other class, no payer."""
    for bucket in facts.of(BUCKET):
        if bucket.get("name") != facts.environment.bucket("checkpoints"):
            continue
        for path in ("retention_policy", "default_event_based_hold", "requester_pays", "versioning.enabled"):
            if bucket.get(path):
                yield bucket.violation(path, "unset", "leave it out")
        if bucket.get("storage_class") != "STANDARD":
            yield bucket.violation("storage_class", "STANDARD", "state STANDARD")
        for path, part in _lifecycle(bucket):
            if part.get("action.type") == "SetStorageClass":
                yield bucket.violation(path, "no change of class", "remove it", part.get("action.storage_class"))


@rule(reason="a data set in use is gone by its age", source="Cloud Storage documentation on lifecycle")
def data_does_not_age(facts: Facts) -> Iterator[Violation]:
    """Lifecycle rules of data and exports delete old versions only."""
    ours = {facts.environment.bucket(purpose) for purpose in ("data", "exports")}
    for bucket in (b for b in facts.of(BUCKET) if b.get("name") in ours):
        for path, part in _lifecycle(bucket):
            old = part.get("condition.with_state") == "ARCHIVED" or part.get("condition.num_newer_versions")
            if part.get("action.type") == "Delete" and not old:
                allowed = "with_state ARCHIVED, or num_newer_versions"
                yield bucket.violation(path, allowed, "delete old versions only", part.get("condition"))


@rule(
    reason="a job that is a month old, or restarts after a drought, no longer finds its image",
    source="Artifact Registry",
)
def images_outlive_jobs(facts: Facts) -> Iterator[Violation]:
    """Clean-up of images deletes untagged ones only."""
    for repository in facts.of("google_artifact_registry_repository"):
        for block in repository.blocks("cleanup_policies"):
            policy = PlannedResource(kind="", address=repository.address, values=block)
            if policy.get("action") == "DELETE" and policy.get("condition.tag_state") != "UNTAGGED":
                got = policy.get("condition.tag_state", "any")
                yield repository.violation("cleanup_policies", "tag_state UNTAGGED", "keep tagged images", got)
