"""Seeded defects of a plan, each one change of a sound set of facts."""

from typing import Any

from infra.rules.model import Facts
from tests.infra.rules.breaking import (
    ABORT,
    ACCESS,
    ALERT,
    CHECKPOINTS,
    CLUSTER,
    DATA,
    DATABASE,
    DEFAULTS,
    LIMITS,
    SERVING,
    SPOT,
    SUBNET,
    SYSTEM,
    WORK,
)
from tests.infra.rules.edits import Edit, add, drop, put, without
from tests.infra.samples import hardened

ANYBODY = "serviceAccount:x@p.iam.gserviceaccount.com"
ALLOW = [{"protocol": "tcp", "ports": ["22"]}]
FAR = "projects/acme/locations/europe-west4/keyRings/r/cryptoKeys/k"


def deletes(**condition: Any) -> Edit:
    return put(CHECKPOINTS, "lifecycle_rule", [ABORT, {"action": {"type": "Delete"}, "condition": condition}])


def firewall(**values: Any) -> Edit:
    return add("google_compute_firewall.any", allow=ALLOW, **values)


def project(kind: str, **values: Any) -> Edit:
    return add(f"google_project_{kind}.any", **values)


def taint(address: str, effect: str) -> Edit:
    def edit(facts: Facts) -> Facts:
        (pool,) = [each for each in facts.resources if each.address == address]
        taints = [each | {"effect": effect} for each in pool.values["node_config"]["taint"]]
        return put(address, "node_config.taint", taints)(facts)

    return edit


def limit(index: int, most: int) -> Edit:
    return put(CLUSTER, f"{LIMITS}.{index}.maximum", most)


OUR_DATABASE = f'resource.name == "projects/{hardened().project}/instances/{hardened().database_name}"'
CLOUDSQL = {"role": "roles/cloudsql.client", "member": ANYBODY}
IMAGES = "google_artifact_registry_repository.images"
PLAN: dict[str, Edit] = {
    "checkpoints deleted at age 0": deletes(age=0),
    "checkpoints deleted by date": deletes(created_before="2026-01-01"),
    "checkpoints deleted by name": deletes(matches_prefix=["runs/"]),
    "checkpoints deleted by newer versions": deletes(num_newer_versions=1),
    "checkpoints deleted without a condition": deletes(),
    "checkpoints soft-deleted for a week": put(CHECKPOINTS, "soft_delete_policy.retention_duration_seconds", 604_800),
    "firewall without sources": firewall(direction="INGRESS"),
    "firewall with empty sources": firewall(source_ranges=[]),
    "firewall for IPv6": firewall(source_ranges=["::/0"]),
    "firewall for two halves": firewall(source_ranges=["0.0.0.0/1", "128.0.0.0/1"]),
    "firewall for quarters": firewall(source_ranges=["0.0.0.0/2", "64.0.0.0/2", "128.0.0.0/2", "192.0.0.0/2"]),
    "control plane for two halves": put(CLUSTER, f"{ACCESS}.cidr_blocks", [{"cidr_block": "0.0.0.0/1"}, {"cidr_block": "128.0.0.0/1"}]),
    "Spot taint only preferred": taint(SPOT, "PREFER_NO_SCHEDULE"),
    "system taint only preferred": taint(SYSTEM, "PREFER_NO_SCHEDULE"),
    "project binding": project("iam_binding", role="roles/storage.admin", members=[ANYBODY]),
    "project policy": project("iam_policy", policy_data="{}"),
    "project owner by member": project("iam_member", role="roles/owner", member=ANYBODY),
    "bucket binding to the public": add("google_storage_bucket_iam_binding.any", role="roles/storage.objectViewer", members=["allUsers"]),
    "bucket policy": add("google_storage_bucket_iam_policy.any", bucket="b", policy_data='{"bindings":[{"role":"roles/storage.admin","members":["allUsers"]}]}'),
    "bucket binding that writes every run": add("google_storage_bucket_iam_binding.any", bucket=hardened().bucket("checkpoints"), role="roles/storage.objectUser", members=[ANYBODY]),
    "bucket binding of an administrator": add("google_storage_bucket_iam_binding.any", bucket="b", role="roles/storage.admin", members=[ANYBODY]),
    "account policy": add("google_service_account_iam_policy.any", service_account_id="a", policy_data="{}"),
    "account binding to two": add("google_service_account_iam_binding.any", role="roles/iam.workloadIdentityUser", service_account_id="a", members=[ANYBODY, "user:a@b"]),
    "project role under a condition that is true": project("iam_member", **CLOUDSQL, condition={"title": "x", "expression": "true"}),
    "project role under a condition that is opened again": project("iam_member", **CLOUDSQL, condition={"title": "x", "expression": f"{OUR_DATABASE} || true"}),
    "project role under no condition": project("iam_member", **CLOUDSQL),
    "token creator of the whole project": project("iam_member", role="roles/iam.serviceAccountTokenCreator", member=ANYBODY),
    "metric writer for another account": project("iam_member", role="roles/monitoring.metricWriter", member=ANYBODY),
    "object access to all buckets": project("iam_member", role="roles/storage.objectViewer", member=ANYBODY),
    "CPUs without end": limit(0, 999_999),
    "memory without end": limit(1, 999_999_999),
    "GPUs without end": limit(2, 999_999),
    "bucket's key of another region": put(DATA, "encryption.default_kms_key_name", FAR),
    "cluster's key of another region": put(CLUSTER, "database_encryption.key_name", FAR),
    "topic without a key": put("google_pubsub_topic.work", "kms_key_name", None),
    "node disks without a key": put(SPOT, "node_config.boot_disk_kms_key", None),
    "disks of auto-provisioned nodes without a key": put(CLUSTER, f"{DEFAULTS}.boot_disk_kms_key", None),
    "database without a key": put(DATABASE, "encryption_key_name", None),
    "images without a key": put("google_artifact_registry_repository.images", "kms_key_name", None),
    "nodes of the default account": put(SPOT, "node_config.service_account", None),
    "node with a public address": put(SERVING, "network_config.enable_private_nodes", False),
    "subnet without private access": put(SUBNET, "private_ip_google_access", False),
    "logs without the API server": put(CLUSTER, "logging_config.enable_components", ["SYSTEM_COMPONENTS", "WORKLOADS"]),
    "backlog for a minute": put(WORK, "message_retention_duration", "60s"),
    "database open to the world": put(DATABASE, "settings.ip_configuration.authorized_networks", [{"value": "0.0.0.0/0"}]),
    "database with one week of nothing": put(DATABASE, "settings.backup_configuration.enabled", False),
    "alert without a channel's alert": put(ALERT, "enabled", False),
    "no way out": drop("google_compute_router_nat"),
    "API left out": without("google_project_service.storage"),
    "database in another region": put(DATABASE, "region", "europe-west4"),
    "database in one zone": put(DATABASE, "settings.availability_type", "ZONAL"),
    "database with one backup": put(DATABASE, "settings.backup_configuration.backup_retention_settings.retained_backups", 1),
    "database that cannot grow": put(DATABASE, "settings.disk_autoresize", False),
    "workers that may drop tables": put("google_sql_user.batch", "database_roles", ["cloudsqlsuperuser"]),
    "messages kept anywhere": put("google_pubsub_topic.work", "message_storage_policy", None),
    "dead letters back into the queue": put(WORK, "dead_letter_policy.dead_letter_topic", "projects/acme-ai-platform/topics/holdfast-example-work"),
    "images in another region": put(IMAGES, "location", "europe-west4"),
    "tagged images cleaned up": put(IMAGES, "cleanup_policies", [{"id": "old", "action": "DELETE", "condition": {"tag_state": "ANY", "older_than": "604800s"}}]),
    "images admitted by pattern of a registry": put("google_binary_authorization_policy.images", "admission_whitelist_patterns", [{"name_pattern": "docker.io/**"}]),
    "DNS zone for the world": put("google_dns_managed_zone.google-apis", "visibility", "public"),
    "NAT for some subnets": put("google_compute_router_nat.nat", "source_subnetwork_ip_ranges_to_nat", "LIST_OF_SUBNETWORKS"),
    "scopes that refuse what IAM grants": put(SPOT, "node_config.oauth_scopes", ["https://www.googleapis.com/auth/devstorage.read_only"]),
    "legacy metadata endpoints": put(SPOT, "node_config.metadata", {"disable-legacy-endpoints": "false"}),
    "disks too small for the image": put(SPOT, "node_config.disk_size_gb", 10),
    "upgrade that takes the serving base": put(SERVING, "upgrade_settings.max_unavailable", 6),
    "pods that the range was not counted for": put(SPOT, "max_pods_per_node", 110),
    "pool in one zone": put(SPOT, "location", "us-central1-a"),
    "cluster that ends after 30 days": put(CLUSTER, "enable_kubernetes_alpha", True),
    "checkpoints under a retention policy": put(CHECKPOINTS, "retention_policy", {"retention_period": 2_592_000}),
    "checkpoints moved to ARCHIVE": put(CHECKPOINTS, "lifecycle_rule", [ABORT, {"action": {"type": "SetStorageClass", "storage_class": "ARCHIVE"}, "condition": {"age": 1}}]),
    "data deleted by age": put(DATA, "lifecycle_rule", [ABORT, {"action": {"type": "Delete"}, "condition": {"age": 30}}]),
    "key for a person": add("google_kms_crypto_key_iam_member.any", crypto_key_id="k", role="roles/cloudkms.cryptoKeyDecrypter", member="user:a@b.example"),
    "key bound to a person": add("google_kms_crypto_key_iam_binding.any", crypto_key_id="k", role="roles/cloudkms.cryptoKeyEncrypterDecrypter", members=["user:a@b.example"]),
    "workflows of any issuer": put("google_iam_workload_identity_pool_provider.github", "oidc.issuer_uri", "https://tokens.example.org"),
    "all logs in the view": put("google_logging_log_view.events", "filter", 'SOURCE("projects/acme-ai-platform")'),
}  # fmt: skip
