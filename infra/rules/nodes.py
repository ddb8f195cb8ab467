"""Nodes of a pool: identity, disk, upgrades, addresses."""

from collections.abc import Iterator

from holdfast.contract.pools import LABEL_ROLE, Role
from infra.environments.capacity import MIN_DISK_GIB
from infra.rules.model import Facts, Finding, each, rule

SCOPE = "https://www.googleapis.com/auth/cloud-platform"


@rule(
    reason="narrower scopes deny access that IAM grants, with a 403 that no policy explains",
    source="GKE documentation on access scopes; CIS GKE 5.4.1",
)
def identity_decides(facts: Facts) -> Iterator[Finding]:
    """Nodes have only the cloud-platform scope, so that IAM decides, and no legacy metadata endpoints."""
    for pool in facts.pools():
        if pool.get("node_config.oauth_scopes") != [SCOPE]:
            yield pool.finding("node_config.oauth_scopes", SCOPE, "set only this scope")
        endpoints = (pool.get("node_config.metadata") or {}).get("disable-legacy-endpoints")
        if str(endpoints).lower() != "true":
            yield pool.finding("node_config.metadata", "disable-legacy-endpoints: true", "state it")


@rule(reason="these images are 10 to 20 GB: a small disk causes disk pressure and evictions", source="GKE docs")
def disks_hold_images(facts: Facts) -> Iterator[Finding]:
    """Node disks are large enough for the images."""
    for pool in facts.pools():
        if not (pool.get("node_config.disk_size_gb") or 0) >= MIN_DISK_GIB:
            yield pool.finding("node_config.disk_size_gb", f"{MIN_DISK_GIB} or more", "set disk_gib")


@rule(reason="otherwise an upgrade removes all base replicas at once", source="GKE documentation on surge upgrades")
def upgrades_leave_the_base(facts: Facts) -> Iterator[Finding]:
    """Upgrades of system and serving pools replace one node at a time."""
    for pool in facts.pools():
        role = (pool.get("node_config.labels") or {}).get(LABEL_ROLE)
        if role in (Role.SYSTEM, Role.SERVING) and (pool.get("upgrade_settings.max_unavailable") or 0) > 1:
            yield pool.finding("upgrade_settings.max_unavailable", "0 or 1", "upgrade one at a time")


@rule(
    reason="otherwise pods take more addresses than planned, and pools cannot grow",
    source="GKE documentation on pods per node",
)
def pods_per_node_as_counted(facts: Facts) -> Iterator[Finding]:
    """The cluster and its pools use the number of pods per node that the IP ranges were sized for."""
    wanted = facts.environment.network.max_pods_per_node
    yield from each(facts.pools(), "max_pods_per_node", wanted, "set network.max_pods_per_node")
    yield from each(facts.cluster(), "default_max_pods_per_node", wanted, "set network.max_pods_per_node")
