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
    SPOT,
    SYSTEM,
)
from tests.infra.rules.edits import Edit, add, put, without
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
PLAN: dict[str, Edit] = {
    "checkpoints deleted at age 0": deletes(age=0),
    "checkpoints deleted by date": deletes(created_before="2026-01-01"),
    "checkpoints deleted by name": deletes(matches_prefix=["runs/"]),
    "checkpoints deleted by newer versions": deletes(num_newer_versions=1),
    "checkpoints deleted without a condition": deletes(),
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
    "alert without a channel's alert": put(ALERT, "enabled", False),
    "API left out": without("google_project_service.storage"),
    "workers that may drop tables": put("google_sql_user.batch", "database_roles", ["cloudsqlsuperuser"]),
    "images admitted by pattern of a registry": put("google_binary_authorization_policy.images", "admission_whitelist_patterns", [{"name_pattern": "docker.io/**"}]),
    "key for a person": add("google_kms_crypto_key_iam_member.any", crypto_key_id="k", role="roles/cloudkms.cryptoKeyDecrypter", member="user:a@b.example"),
    "key bound to a person": add("google_kms_crypto_key_iam_binding.any", crypto_key_id="k", role="roles/cloudkms.cryptoKeyEncrypterDecrypter", members=["user:a@b.example"]),
    "workflows of any issuer": put("google_iam_workload_identity_pool_provider.github", "oidc.issuer_uri", "https://tokens.example.org"),
}  # fmt: skip
