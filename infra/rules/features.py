"""Rules on what a feature needs elsewhere: an API of the project, a role of an account."""

from collections.abc import Iterator

from infra.rules.model import (
    CLUSTER,
    POOL,
    Facts,
    Finding,
    PlannedResource,
    environment_finding,
    rule,
)

SERVICE = "google_project_service"
STREAMING = (
    "node_config.gcfs_config.enabled",
    "node_pool_defaults.node_config_defaults.gcfs_config.enabled",
)
# The API behind each kind of resource, and behind a feature of one: kind -> path of the feature,
# empty for the resource itself -> APIs.
APIS: dict[str, dict[str, tuple[str, ...]]] = {
    "google_artifact_registry_repository": {"": ("artifactregistry",)},
    "google_billing_budget": {"": ("billingbudgets",)},
    "google_binary_authorization_policy": {"": ("binaryauthorization",)},
    "google_compute_network": {"": ("compute",)},
    "google_compute_router": {"": ("compute",)},
    "google_dns_managed_zone": {"": ("dns",)},
    "google_iam_workload_identity_pool": {"": ("iam", "iamcredentials", "sts")},
    "google_kms_crypto_key_iam_member": {"": ("cloudkms",)},
    "google_logging_log_view": {"": ("logging",)},
    "google_logging_project_sink": {"": ("logging",)},
    "google_monitoring_alert_policy": {"": ("monitoring",)},
    "google_project_iam_member": {"": ("cloudresourcemanager",)},
    "google_pubsub_topic": {"": ("pubsub",)},
    "google_service_account": {"": ("iam",)},
    "google_service_networking_connection": {"": ("servicenetworking",)},
    "google_sql_database_instance": {"": ("sqladmin",)},
    "google_storage_bucket": {"": ("storage",)},
    CLUSTER: {
        "": ("container", "compute"),
        "binary_authorization.evaluation_mode": ("binaryauthorization",),
        "database_encryption.key_name": ("cloudkms",),
        "secret_manager_config.enabled": ("secretmanager",),
        STREAMING[1]: ("containerfilesystem",),
    },
    POOL: {STREAMING[0]: ("containerfilesystem",)},
}
# Path of a node's feature -> the role that nodes need for it on the project.
NODE_ROLES = {
    "node_config.service_account": "roles/container.defaultNodeServiceAccount",
    STREAMING[0]: "roles/serviceusage.serviceUsageConsumer",
}


@rule(
    reason=(
        "otherwise the apply fails, or the feature is on and does nothing: images are then pulled"
        " whole, without a word"
    ),
    source="GKE documentation, Use Image streaming to pull container images; pages of each API",
)
def features_have_what_they_need(facts: Facts) -> Iterator[Finding]:
    """Each feature that needs an API or a role has it."""
    hosts = [str(service.get("service")) for service in facts.of(SERVICE)]
    enabled = {host.partition(".")[0] for host in hosts}
    # Without any, the organization enables APIs, or another stack was planned; then doctor asks.
    if enabled:
        for address, path, name in _iter_apis(facts):
            if name not in enabled:
                field = f"{address}: {path}" if path else address
                yield environment_finding(
                    facts.environment,
                    field,
                    f"{name}.googleapis.com off",
                    "the API on",
                    "add it to apis() in infra/specs/network.py",
                )
    yield from _find_missing_roles(facts)


def _iter_apis(facts: Facts) -> Iterator[tuple[str, str, str]]:
    """Yield address, path and API of each feature that is on."""
    for resource in facts.resources:
        for path, names in APIS.get(resource.kind, {}).items():
            if not path or resource.get(path):
                for name in names:
                    yield resource.address, path, name


def _find_missing_roles(facts: Facts) -> Iterator[Finding]:
    member = facts.environment.member("nodes")
    grants = facts.of("google_project_iam_member", "google_project_iam_binding")
    granted_roles = {str(grant.get("role")) for grant in grants if _names(grant, member)}
    for pool in facts.pools() if grants else ():
        for path, role in NODE_ROLES.items():
            if pool.get(path) and role not in granted_roles:
                allowed = f"{role} for {member}"
                fix = "grant it in infra/specs/identities.py, or turn the feature off"
                yield pool.finding(path, allowed, fix, "without the role")


def _names(grant: PlannedResource, member: str) -> bool:
    return member == grant.get("member") or member in (grant.get("members") or ())
