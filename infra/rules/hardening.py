"""Rules on protections of cluster and nodes. Most hold everywhere; those that cost money or limit
access hold in production.
"""

from collections.abc import Iterator
from itertools import chain

from infra.rules.autoprovisioning import DEFAULTS
from infra.rules.model import (
    Facts,
    Finding,
    PlannedResource,
    check_value,
    environment_finding,
    rule,
)
from infra.rules.network import open_to_many

MIN_MAINTENANCE_H = 48
STATEFUL = (
    "google_artifact_registry_repository",
    "google_container_cluster",
    "google_pubsub_subscription",
    "google_pubsub_topic",
    "google_sql_database",
    "google_sql_database_instance",
    "google_storage_bucket",
)
DENIES = ("ALWAYS_DENY", "REQUIRE_ATTESTATION")
# Kind -> paths at which it states the key that it is encrypted with.
KEYS = {
    "google_artifact_registry_repository": ("kms_key_name",),
    "google_container_cluster": (
        "database_encryption.key_name",
        "cluster_autoscaling.auto_provisioning_defaults.boot_disk_kms_key",
    ),
    "google_container_node_pool": ("node_config.boot_disk_kms_key",),
    "google_pubsub_topic": ("kms_key_name",),
    "google_sql_database_instance": ("encryption_key_name",),
    "google_storage_bucket": ("encryption.default_kms_key_name",),
}


def _iter_keys(facts: Facts) -> Iterator[tuple[PlannedResource, str, str]]:
    """Yield resource, path and key; the key is empty where none is stated."""
    for kind, paths in KEYS.items():
        for resource in facts.of(kind):
            for path in paths:
                yield resource, path, str(resource.get(path) or "")


@rule(
    reason=(
        "otherwise only IAM protects the control plane, secrets are plain in etcd, any image and"
        " any kernel module runs, people are bound one by one, and nothing records data that leaves"
    ),
    source=(
        "CIS GKE 5.3.1, 5.6.1, 5.8.2, 5.10.5; CIS GKE Autopilot 5.4.2; GKE documentation, secure"
        " modules on COS"
    ),
)
def production_is_hardened(facts: Facts) -> Iterator[Finding]:
    """In production the DNS endpoint is inside the VPC, secrets are encrypted with a key of yours,
    the image policy is enforced, roles are bound to groups, GPU nodes load signed kernel modules
    only, who reads checkpoints is recorded, and the subnet logs its flows.
    """
    if not facts.environment.production:
        return
    clusters = facts.cluster()
    path = "control_plane_endpoints_config.dns_endpoint_config.allow_external_traffic"
    yield from check_value(clusters, path, False, "set cluster.dns_endpoint_public to False")
    path = "database_encryption.state"
    yield from check_value(clusters, path, "ENCRYPTED", "set security.kms_key")
    path = "binary_authorization.evaluation_mode"
    expected = "PROJECT_SINGLETON_POLICY_ENFORCE"
    yield from check_value(clusters, path, expected, "set security.binary_authorization")
    policy = "linux_node_config.node_kernel_module_loading.policy"
    expected = "ENFORCE_SIGNED_MODULES"
    fix = "set security.signed_kernel_modules"
    yield from check_value(facts.pools("gpu"), f"node_config.{policy}", expected, fix)
    yield from check_value(clusters, f"node_pool_auto_config.{policy}", expected, fix)
    path = "authenticator_groups_config.security_group"
    for cluster in clusters:
        if not cluster.get(path):
            fix = "set security.rbac_security_group"
            yield cluster.finding(path, "gke-security-groups@DOMAIN", fix, "none")
    yield from _find_missing_logs(facts)
    for subnet in facts.of("google_compute_subnetwork"):
        # Compute Engine refuses logs for a subnet of load balancers, in which no machine is.
        if not subnet.get("log_config") and not subnet.get("purpose"):
            fix = "set network.flow_logs to True"
            yield subnet.finding("log_config", "a block", fix, "none")


def _find_missing_logs(facts: Facts) -> Iterator[Finding]:
    """Find buckets whose readers nothing records: Google writes no such logs unless asked."""
    recorded: set[str] = set()
    for config in facts.of("google_project_iam_audit_config"):
        types = {str(block.get("log_type")) for block in config.blocks("audit_log_config")}
        if {"DATA_READ", "DATA_WRITE"} <= types:
            recorded.add(str(config.get("service")))
    if facts.of("google_storage_bucket") and "storage.googleapis.com" not in recorded:
        yield environment_finding(
            facts.environment,
            "security.data_access_logs",
            "no audit logs of data access to buckets",
            "DATA_READ and DATA_WRITE of storage.googleapis.com",
            "set security.data_access_logs to True",
        )


@rule(reason="Google's public ranges include every customer's machines", source="CIS GKE 5.6.3")
def authorized_networks(facts: Facts) -> Iterator[Finding]:
    """Only authorized ranges reach the control plane; Google's public ranges do not."""
    clusters = facts.cluster()
    path = "master_authorized_networks_config"
    public = f"{path}.gcp_public_cidrs_access_enabled"
    enforced = f"{path}.private_endpoint_enforcement_enabled"
    yield from check_value(clusters, public, False, "turn it off")
    yield from check_value(clusters, enforced, True, "turn it on")
    for cluster in clusters:
        ranges = []
        for block in cluster.blocks(f"{path}.cidr_blocks"):
            ranges.append(str(block.get("cidr_block")))
        if open_to_many(ranges):
            yield cluster.finding(
                f"{path}.cidr_blocks",
                "ranges of yours",
                "name narrower ranges",
                ", ".join(ranges),
            )


@rule(reason="RAPID gets bugs first; without a channel, patches come last", source="CIS GKE 5.5.4")
def release_channel(facts: Facts) -> Iterator[Finding]:
    """The cluster has a release channel; in production REGULAR or STABLE."""
    if facts.environment.production:
        allowed = ("REGULAR", "STABLE")
    else:
        allowed = ("RAPID", "REGULAR", "STABLE")
    path = "release_channel.channel"
    yield from check_value(facts.cluster(), path, allowed, "set cluster.release_channel")


@rule(
    reason=(
        "GKE rejects a policy with less time, and then upgrades at the end of support instead of in"
        " your window"
    ),
    source=(
        "GKE documentation on maintenance windows: 48 h in any 32 days, in pieces of at least 4 h"
    ),
)
def maintenance_is_possible(facts: Facts) -> Iterator[Finding]:
    """Maintenance has at least 48 hours in any 32 days."""
    hours = facts.environment.cluster.least_maintenance_h()
    if hours >= MIN_MAINTENANCE_H:
        return
    for cluster in facts.cluster():
        fix = "widen cluster.maintenance_days or the window"
        yield cluster.finding("maintenance_policy", "48 h in any 32 days", fix, f"{hours:g} h")


@rule(
    reason="otherwise pods can get the node's token from the metadata server",
    source="GKE hardening guide",
)
def metadata_server(facts: Facts) -> Iterator[Finding]:
    """Every pool uses the GKE metadata server for pod identities."""
    nodes = chain(facts.pools(), facts.cluster())
    path = "node_config.workload_metadata_config.mode"
    yield from check_value(nodes, path, "GKE_METADATA", "state GKE_METADATA")


@rule(reason="the default account has Editor-like rights", source="CIS GKE 5.2.1")
def node_service_account(facts: Facts) -> Iterator[Finding]:
    """Every pool runs as the node account, and auto-provisioned nodes too."""
    nodes = chain(facts.pools(), facts.cluster())
    account = facts.environment.service_account_email("nodes")
    fix = "set the node account"
    yield from check_value(nodes, "node_config.service_account", account, fix)
    yield from check_value(facts.cluster(), f"{DEFAULTS}.service_account", account, fix)


@rule(
    reason="buckets, disks and queues hold data that etcd does not",
    source="CIS Google Cloud 5.3, 6.8; CIS GKE 5.9.1",
)
def data_encrypted(facts: Facts) -> Iterator[Finding]:
    """In production, all stored data is encrypted with a customer-managed key."""
    if not facts.environment.production:
        return
    for resource, path, key in _iter_keys(facts):
        if not key:
            yield resource.finding(path, "a key", "set security.kms_key", "none")


@rule(
    reason="the API rejects a key of another region in the middle of an apply",
    source="Cloud KMS documentation",
)
def keys_are_near(facts: Facts) -> Iterator[Finding]:
    """Keys are in the region of the data that they encrypt."""
    for resource, path, key in _iter_keys(facts):
        if key and f"/locations/{facts.environment.region}/" not in key:
            yield resource.finding(
                path,
                f"a key in {facts.environment.region}",
                "set security.kms_key",
            )


@rule(
    reason="a policy that admits every image, or only logs, protects nothing",
    source="Binary Authorization documentation on policies",
)
def image_policy_denies(facts: Facts) -> Iterator[Finding]:
    """The image policy blocks images that it does not name, and names repositories, not
    registries.
    """
    policies = facts.of("google_binary_authorization_policy")
    path = "default_admission_rule.enforcement_mode"
    yield from check_value(policies, path, "ENFORCED_BLOCK_AND_AUDIT_LOG", "enforce it")
    path = "global_policy_evaluation_mode"
    yield from check_value(policies, path, "ENABLE", "admit GKE's system images")
    path = "default_admission_rule.evaluation_mode"
    yield from check_value(policies, path, DENIES, "deny images that are not named")
    for policy in policies:
        for block in policy.blocks("admission_whitelist_patterns"):
            pattern = str(block.get("name_pattern"))
            if pattern.partition("*")[0].count("/") < 3:
                path = "admission_whitelist_patterns"
                allowed = "REGISTRY/PROJECT/REPOSITORY/**"
                yield policy.finding(path, allowed, "name one repository", pattern)
        for block in policy.blocks("cluster_admission_rules"):
            mode = block.get("evaluation_mode")
            if mode not in DENIES:
                path = "cluster_admission_rules"
                yield policy.finding(path, ", ".join(DENIES), "remove the exception", mode)


@rule(reason="one wrong destroy", source="google provider documentation")
def deletion_protection(facts: Facts) -> Iterator[Finding]:
    """In production, the cluster and the database have deletion protection, and buckets cannot be
    emptied.
    """
    if not facts.environment.production:
        return
    stateful = facts.of("google_container_cluster", "google_sql_database_instance")
    yield from check_value(stateful, "deletion_protection", True, "turn it on")
    buckets = facts.of("google_storage_bucket")
    fix = "set storage.allow_destroy to False"
    yield from check_value(buckets, "force_destroy", False, fix)
    # This policy is in the state: it also holds when the resource leaves the configuration.
    stateful = facts.of(*STATEFUL)
    fix = "turn on the environment's protections"
    yield from check_value(stateful, "deletion_policy", "PREVENT", fix)
    # Terraform deletes users before the instance refuses, if they may be deleted at all.
    users = facts.of("google_sql_user")
    yield from check_value(users, "deletion_policy", "ABANDON", "state ABANDON")
