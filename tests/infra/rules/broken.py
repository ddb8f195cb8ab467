"""Each row is one change of a sound environment or of its resources, and the rules that it
breaks.
"""

from dataclasses import replace
from functools import cache
from typing import Any

from infra.environments.schema import (
    AcceleratorCap,
    AuthorizedRange,
    ExistingNetwork,
    Network,
    NodeGroup,
    Quota,
)
from infra.rules.model import Facts, PlannedResource, read_specs
from tests.infra.rules.edits import (
    Edit,
    add,
    alerts,
    both,
    caps,
    cluster,
    database,
    group,
    ignore,
    member,
    network,
    put,
    security,
    serving,
    soften_taints,
    spot,
    state,
    storage,
    taints,
    unread,
    without,
)
from tests.infra.samples import make_hardened

CLUSTER = "google_container_cluster.cluster"
SPOT = "google_container_node_pool.pool-spot-a100"
FLEX = "google_container_node_pool.pool-flex-a100"
GANG = "google_container_node_pool.pool-gang"
SYSTEM = "google_container_node_pool.pool-system"
SUBNET = "google_compute_subnetwork.nodes"
CHECKPOINTS = "google_storage_bucket.checkpoints"
DATABASE = "google_sql_database_instance.results"
ALERT = "google_monitoring_alert_policy.sample"
DEFAULTS = "cluster_autoscaling.auto_provisioning_defaults"
QUERY = "conditions.0.condition_prometheus_query_language"
KEY = "projects/acme/locations/us-central1/keyRings/r/cryptoKeys/k"
FAR = KEY.replace("us-central1", "europe-west4")
ANYBODY = "serviceAccount:x@p.iam.gserviceaccount.com"
ALLOW = [
    {
        "protocol": "tcp",
        "ports": ["22"],
    }
]
ABORT = {
    "action": {"type": "AbortIncompleteMultipartUpload"},
    "condition": {"age": 1},
}
OUR_DATABASE = (
    f'resource.name == "projects/{make_hardened().project}'
    f'/instances/{make_hardened().database_name}"'
)
CLOUDSQL = {"role": "roles/cloudsql.client", "member": ANYBODY}


@cache
def sound() -> Facts:
    """Returns facts without a finding, an alert included, which the edits change."""
    facts = read_specs(make_hardened())
    query = {
        "query": 'sum(rate(x{a="}"}[5m])) > 1',
        "duration": "300s",
        "evaluation_interval": "60s",
        "disable_metric_validation": True,
    }
    alert = PlannedResource(
        kind=ALERT.split(".")[0],
        address=ALERT,
        values={
            "enabled": True,
            "documentation": {"content": "what to do", "mime_type": "text/markdown"},
            "notification_channels": ["projects/p/notificationChannels/1"],
            "conditions": [{"display_name": "x", "condition_prometheus_query_language": query}],
        },
    )
    return replace(facts, resources=(*facts.resources, alert))


def deletes(**condition: Any) -> Edit:
    return put(
        CHECKPOINTS,
        "lifecycle_rule",
        [
            ABORT,
            {
                "action": {"type": "Delete"},
                "condition": condition,
            },
        ],
    )


def set_flag(name: str, value: str) -> Edit:
    """Set a flag of the database."""

    def edit(facts: Facts) -> Facts:
        (instance,) = [item for item in facts.resources if item.address == DATABASE]
        flags = [flag for flag in instance.values["settings"]["database_flags"]]
        flags = [flag for flag in flags if flag["name"] != name]
        return put(DATABASE, "settings.database_flags", [*flags, {"name": name, "value": value}])(
            facts
        )

    return edit


def firewall(**values: Any) -> Edit:
    return add("google_compute_firewall.any", allow=ALLOW, **values)


def project(kind: str, **values: Any) -> Edit:
    return add(f"google_project_{kind}.any", **values)


def limit(index: int, maximum: int) -> Edit:
    return put(CLUSTER, f"cluster_autoscaling.resource_limits.{index}.maximum", maximum)


def halves(*cidrs: str) -> Edit:
    return put(
        CLUSTER,
        "master_authorized_networks_config.cidr_blocks",
        [{"cidr_block": cidr} for cidr in cidrs],
    )


def ranges(cidr: str) -> Edit:
    return network(authorized_ranges=(AuthorizedRange(name="r", cidr=cidr),))


def _grown(**fields: Any) -> tuple[NodeGroup, ...]:
    """Return the groups, with other fields of the serving group."""
    groups = []
    for node_group in make_hardened().groups:
        changed = fields if node_group.name == "serving" else {}
        groups.append(replace(node_group, **changed))
    return tuple(groups)


def _share_network(facts: Facts) -> Network:
    network = facts.environment.network
    project = f"projects/{facts.environment.project}"
    existing = ExistingNetwork(
        network=f"{project}/global/networks/shared",
        subnet=f"{project}/regions/us-central1/subnetworks/gpu",
        creates=("managed-services",),
    )
    return replace(network, existing=existing)


BIG = both(
    put(SPOT, "node_config.disk_type", "hyperdisk-balanced"),
    put(SPOT, "autoscaling.total_max_node_count", 1),
)
L4_ONLY = (AcceleratorCap(accelerator="nvidia-l4", max_gpus=64),)
BROKEN: dict[str, tuple[Edit, str]] = {
    # Pools and auto-provisioning
    "flex-start and Spot": (spot(FLEX), "spot-xor-flex"),
    "no GPU taint": (taints(SPOT, "provisioning-tier"), "pools-are-tainted"),
    "no Spot taint": (taints(SPOT, "nvidia.com/gpu"), "pools-are-tainted"),
    "Spot taint only preferred": (soften_taints(SPOT), "pools-are-tainted"),
    "system taint only preferred": (soften_taints(SYSTEM), "system-pool-stays"),
    "a gang of A4 over one card": (
        both(both(put(SPOT, "node_config.machine_type", "a4-highgpu-8g"), limit(1, 99_999)), BIG),
        "gangs-have-their-networks",
    ),
    "a minimum that nothing makes": (
        put("google_container_node_pool.pool-serving", "initial_node_count", 0),
        "minimum-is-there-from-the-start",
    ),
    "a minimum that three zones cannot share": (
        state(serving=None, groups=_grown(min_nodes=2, max_nodes=2)),
        "minimum-is-there-from-the-start production-is-safe",
    ),
    "a zone that sells no such GPU": (
        group("spot-a100", zones=("us-central1-z",)),
        "zone-sells-the-gpu",
    ),
    "120 s on an old control plane": (cluster(min_version="1.34"), "settings-have-their-version"),
    "120 s on any control plane": (cluster(min_version=""), "settings-have-their-version"),
    "no caps": (
        both(both(without(FLEX), without(GANG)), caps(accelerators=())),
        "nap-caps-present",
    ),
    "GPUs that no job is offered": (caps(accelerators=L4_ONLY), "pools-have-jobs"),
    "caps below the pools": (caps(max_vcpus=8), "nap-caps-cover-pools"),
    "a cap that the pools use up": (
        # Serving, Spot in three sizes, and the pool for jobs on demand have 36 L4.
        limit(2, 36),
        "nap-leaves-flex-start",
    ),
    "caps without end": (caps(max_vcpus=100_000), "nap-caps-finite"),
    "memory without end": (limit(1, 999_999_999), "nap-caps-finite"),
    "GPUs without end": (limit(2, 999_999), "nap-caps-finite"),
    "auto-provisioning by the default account": (
        put(CLUSTER, f"{DEFAULTS}.service_account", "default"),
        "node-service-account",
    ),
    "nodes of the default account": (
        put(SPOT, "node_config.service_account", None),
        "node-service-account",
    ),
    "the token of nodes": (
        put(SPOT, "node_config.workload_metadata_config.mode", "GCE_METADATA"),
        "metadata-server",
    ),
    "image streaming without its API": (
        without("google_project_service.containerfilesystem"),
        "features-have-what-they-need",
    ),
    "image streaming without its role": (
        without("google_project_iam_member.nodes-streaming"),
        "features-have-what-they-need",
    ),
    "a queue without its API": (
        without("google_project_service.pubsub"),
        "features-have-what-they-need",
    ),
    # Protections
    "endpoint open in production": (cluster(dns_endpoint_public=True), "production-is-hardened"),
    "no flow logs": (network(flow_logs=False), "production-is-hardened"),
    "unsigned kernel modules": (security(signed_kernel_modules=False), "production-is-hardened"),
    "plain secrets": (
        put(CLUSTER, "database_encryption", {"state": "DECRYPTED", "key_name": KEY}),
        "production-is-hardened",
    ),
    "any image": (security(binary_authorization=False), "production-is-hardened"),
    "people bound one by one": (security(rbac_security_group=""), "production-is-hardened"),
    "secrets under Google's key": (security(kms_key=""), "data-encrypted production-is-hardened"),
    "no protection of the cluster": (cluster(deletion_protection=False), "deletion-protection"),
    "no protection of the database": (database(deletion_protection=False), "deletion-protection"),
    "buckets that may be emptied": (storage(allow_destroy=True), "deletion-protection"),
    "first with bugs": (cluster(release_channel="RAPID"), "release-channel"),
    "bucket's key of another region": (
        put(CHECKPOINTS, "encryption.default_kms_key_name", FAR),
        "keys-are-near",
    ),
    "cluster's key of another region": (
        put(CLUSTER, "database_encryption.key_name", FAR),
        "keys-are-near",
    ),
    "topic without a key": (
        put("google_pubsub_topic.work", "kms_key_name", None),
        "data-encrypted",
    ),
    "node disks without a key": (
        put(SPOT, "node_config.boot_disk_kms_key", None),
        "data-encrypted",
    ),
    "disks of auto-provisioned nodes without a key": (
        put(CLUSTER, f"{DEFAULTS}.boot_disk_kms_key", None),
        "data-encrypted",
    ),
    "database without a key": (put(DATABASE, "encryption_key_name", None), "data-encrypted"),
    "images without a key": (
        put("google_artifact_registry_repository.images", "kms_key_name", None),
        "data-encrypted",
    ),
    "images of a whole registry": (
        put(
            "google_binary_authorization_policy.images",
            "admission_whitelist_patterns",
            [{"name_pattern": "docker.io/**"}],
        ),
        "image-policy-denies",
    ),
    # Network
    "an address space for ten nodes": (network(nodes_cidr="10.10.0.0/27"), "ip-space"),
    "a pod range for one pool": (network(pods_cidr="10.20.0.0/22"), "ip-space"),
    "a service range for a few": (network(services_cidr="10.30.0.0/26"), "ip-space"),
    "a public range of a continent": (ranges("34.0.0.0/8"), "authorized-networks"),
    "control plane for two halves": (halves("0.0.0.0/1", "128.0.0.0/1"), "authorized-networks"),
    "a peering by force in a network of others": (
        both(
            lambda facts: state(network=_share_network(facts))(facts),
            add("google_service_networking_connection.other", update_on_creation_fail=True),
        ),
        "peering-is-not-forced",
    ),
    "firewall without sources": (firewall(direction="INGRESS"), "no-open-firewall"),
    "firewall with empty sources": (firewall(source_ranges=[]), "no-open-firewall"),
    "firewall for IPv6": (firewall(source_ranges=["::/0"]), "no-open-firewall"),
    "firewall for two halves": (
        firewall(source_ranges=["0.0.0.0/1", "128.0.0.0/1"]),
        "no-open-firewall",
    ),
    "text that replaces a network": (
        add("google_compute_network.any", description="training and serving"),
        "texts-can-change",
    ),
    "cluster's description not ignored": (
        ignore(CLUSTER, "initial_node_count"),
        "texts-can-change",
    ),
    # Identity
    "owner of a topic": (
        member("google_pubsub_topic_iam_member", "roles/editor"),
        "roles-are-narrow",
    ),
    "administrator of objects": (
        member("google_storage_bucket_iam_member", "roles/storage.objectAdmin"),
        "roles-are-narrow",
    ),
    "bucket binding of an administrator": (
        add(
            "google_storage_bucket_iam_binding.any",
            bucket="b",
            role="roles/storage.admin",
            members=[ANYBODY],
        ),
        "roles-are-narrow",
    ),
    "bucket binding that writes every run": (
        add(
            "google_storage_bucket_iam_binding.any",
            bucket=make_hardened().bucket("checkpoints"),
            role="roles/storage.objectUser",
            members=[ANYBODY],
        ),
        "runs-write-their-own",
    ),
    "bucket binding to the public": (
        add(
            "google_storage_bucket_iam_binding.any",
            role="roles/storage.objectViewer",
            members=["allUsers"],
        ),
        "no-public-members",
    ),
    "every run for servers": (
        put("google_storage_bucket_iam_member.runs-server", "condition", None),
        "runs-are-read-by-name",
    ),
    "no run for servers": (
        both(unread, without("google_storage_bucket_iam_member.runs-server")),
        "servers-have-a-run",
    ),
    "a key of an account": (
        add("google_service_account_key.k", service_account_id="x"),
        "no-account-keys",
    ),
    "project policy": (project("iam_policy", policy_data="{}"), "no-whole-policies"),
    "project binding": (
        project("iam_binding", role="roles/storage.admin", members=[ANYBODY]),
        "project-roles",
    ),
    "project owner by member": (
        project("iam_member", role="roles/owner", member=ANYBODY),
        "project-roles",
    ),
    "project role under a condition that is true": (
        project("iam_member", **CLOUDSQL, condition={"title": "x", "expression": "true"}),
        "project-roles",
    ),
    "project role under a condition that is opened again": (
        project(
            "iam_member",
            **CLOUDSQL,
            condition={"title": "x", "expression": f"{OUR_DATABASE} || true"},
        ),
        "project-roles",
    ),
    "project role under no condition": (project("iam_member", **CLOUDSQL), "project-roles"),
    "metric writer for another account": (
        project("iam_member", role="roles/monitoring.metricWriter", member=ANYBODY),
        "project-roles",
    ),
    "read of Compute Engine for another account": (
        project("iam_member", role="roles/compute.viewer", member=ANYBODY),
        "project-roles",
    ),
    "account binding to two": (
        add(
            "google_service_account_iam_binding.any",
            role="roles/iam.workloadIdentityUser",
            service_account_id="a",
            members=[ANYBODY, "user:a@b"],
        ),
        "one-account-one-workload",
    ),
    "workers that may drop tables": (
        put("google_sql_user.batch", "database_roles", ["cloudsqlsuperuser"]),
        "database-by-identity",
    ),
    "key for a person": (
        add(
            "google_kms_crypto_key_iam_member.any",
            crypto_key_id="k",
            role="roles/cloudkms.cryptoKeyDecrypter",
            member="user:a@b.example",
        ),
        "keys-serve-agents",
    ),
    "key bound to a person": (
        add(
            "google_kms_crypto_key_iam_binding.any",
            crypto_key_id="k",
            role="roles/cloudkms.cryptoKeyEncrypterDecrypter",
            members=["user:a@b.example"],
        ),
        "keys-serve-agents",
    ),
    "workflows of any issuer": (
        put(
            "google_iam_workload_identity_pool_provider.github",
            "oidc.issuer_uri",
            "https://tokens.example.org",
        ),
        "one-repository-is-trusted",
    ),
    "workflows of a name that anyone may take": (
        put(
            "google_iam_workload_identity_pool_provider.github",
            "attribute_condition",
            'assertion.repository == "acme/platform"',
        ),
        "one-repository-is-trusted",
    ),
    "a deployer that new repositories never reach": (
        without("google_service_account_iam_member.workflows-deployer"),
        "workflows-can-log-in",
    ),
    "a deployer that rules its host project": (
        project(
            "iam_member",
            project="acme-host",
            role="roles/resourcemanager.projectIamAdmin",
            member=make_hardened().member("deployer"),
        ),
        "project-roles",
    ),
    # Checkpoints
    "checkpoints deleted at age 0": (deletes(age=0), "checkpoints-do-not-age"),
    "checkpoints deleted by date": (deletes(created_before="2026-01-01"), "checkpoints-do-not-age"),
    "checkpoints deleted by newer versions": (
        deletes(num_newer_versions=1),
        "checkpoints-do-not-age",
    ),
    "checkpoints deleted without a condition": (deletes(), "checkpoints-do-not-age"),
    "checkpoints that a wrong delete loses": (
        storage(checkpoint_soft_delete_days=0),
        "production-is-safe",
    ),
    "readers of checkpoints that nothing records": (
        security(data_access_logs=False),
        "production-is-hardened",
    ),
    "an audit of nothing": (set_flag("pgaudit.log", ""), "database-audits-changes"),
    "a line for each statement": (set_flag("log_duration", "on"), "database-audits-changes"),
    "an audit of every read": (set_flag("pgaudit.log", "all"), "database-audits-changes"),
    # The environment as a whole
    "no budget": (state(budget=None), "production-is-safe"),
    "no standby of the database": (database(highly_available=False), "production-is-safe"),
    "a database without cores": (database(tier="db-g1-small"), "production-is-safe"),
    "state on one machine": (state(state_bucket=""), "production-is-safe"),
    "one zone": (
        lambda facts: state(zones=facts.environment.zones[:1])(facts),
        "production-is-safe",
    ),
    "drills in production": (state(allow_drills=True), "production-is-safe"),
    "runs together": (storage(runs=()), "production-is-safe"),
    # Two proxies fit on one node, and the routers do not.
    "system at most 1": (
        group("system", min_nodes=0, max_nodes=1),
        "production-is-safe serving-keeps-its-promise",
    ),
    "a promise above the base": (serving(promised_per_s=200.0), "serving-keeps-its-promise"),
    "more requests than proxies carry": (
        serving(inflight_target=1_000),
        "serving-keeps-its-promise",
    ),
    "replicas without machines": (serving(base_most=99), "serving-keeps-its-promise"),
    "state among the data": (
        lambda facts: state(state_bucket=facts.environment.bucket("data"))(facts),
        "state-is-apart",
    ),
    "a quota below a gang": (
        state(quotas=(Quota(source="spot-a100", gpus=1),)),
        "quota-holds-a-gang",
    ),
    "on demand pages after Spot": (alerts(on_demand_pending_s=3_600), "thresholds-are-in-order"),
    # Alerts
    "seven seconds": (put(ALERT, f"{QUERY}.duration", "7s"), "alert-durations"),
    "a day": (put(ALERT, f"{QUERY}.duration", "86400s"), "alert-durations"),
    "a bracket that is open": (
        put(ALERT, f"{QUERY}.query", "sum(rate(x[5m])"),
        "queries-parse",
    ),
    "a filter that is open": (
        add("google_logging_log_view.extra", name="events", filter='severity="ERROR'),
        "log-filters-parse",
    ),
    "twice the flows that there are": (
        put(SUBNET, "log_config.flow_sampling", 2),
        "arguments-are-in-limits",
    ),
    "a zone that is none": (
        put(CLUSTER, "node_locations", ["us-central1-z"]),
        "locations-exist",
    ),
    "an alert that is off": (put(ALERT, "enabled", False), "alerts-are-on-and-heard"),
    "nobody hears": (alerts(emails=(), channels=()), "alerts-are-on-and-heard"),
}
