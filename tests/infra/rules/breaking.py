"""Rule id -> an edit of a sound set of facts that breaks it alone. `seeded_plan` and `seeded_refusals` break the others."""

from dataclasses import replace
from functools import cache

from infra.environments.schema import Quota
from infra.rules.model import Facts, PlannedResource, facts_of_specs
from tests.infra.rules.edits import (
    Edit,
    add,
    alerts,
    both,
    caps,
    cluster,
    database,
    group,
    member,
    put,
    serving,
    state,
    storage,
    taints,
    unread,
    without,
)
from tests.infra.samples import hardened

CLUSTER = "google_container_cluster.cluster"
SPOT = "google_container_node_pool.pool-spot-a100"
FLEX = "google_container_node_pool.pool-flex-a100"
GANG = "google_container_node_pool.pool-gang"
SYSTEM = "google_container_node_pool.pool-system"
SUBNET = "google_compute_subnetwork.nodes"
CHECKPOINTS = "google_storage_bucket.checkpoints"
DATA = "google_storage_bucket.data"
DATABASE = "google_sql_database_instance.results"
ALERT = "google_monitoring_alert_policy.sample"
DNS_ENDPOINT = "control_plane_endpoints_config.dns_endpoint_config.allow_external_traffic"
LIMITS = "cluster_autoscaling.resource_limits"
DEFAULTS = "cluster_autoscaling.auto_provisioning_defaults"
ACCESS = "master_authorized_networks_config"


@cache
def sound() -> Facts:
    """Facts without a finding, an alert included. Edits make others of them."""
    facts = facts_of_specs(hardened())
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


KEY = "projects/acme/locations/us-central1/keyRings/r/cryptoKeys/k"

ABORT = {"action": {"type": "AbortIncompleteMultipartUpload"}, "condition": {"age": 1}}

BREAKING: dict[str, Edit] = {
    # pools
    "spot-xor-flex": both(
        put(FLEX, "node_config.spot", True),
        put(
            FLEX,
            "node_config.taint",
            [
                {"key": "provisioning-tier", "value": "preemptible", "effect": "NO_SCHEDULE"},
                {"key": "nvidia.com/gpu", "value": "present", "effect": "NO_SCHEDULE"},
            ],
        ),
    ),
    "gpu-taint": taints(SPOT, "provisioning-tier"),
    "spot-taint": taints(SPOT, "nvidia.com/gpu"),
    "zone-sells-the-gpu": put(SPOT, "node_locations", ["us-central1-z"]),
    "grace-has-its-version": cluster(min_version="1.34"),
    # auto-provisioning
    "nap-caps-present": both(both(without(FLEX), without(GANG)), caps(accelerators=())),
    "nap-caps-cover-pools": put(CLUSTER, f"{LIMITS}.0.maximum", 8),
    "nap-service-account": put(CLUSTER, f"{DEFAULTS}.service_account", "default"),
    "dns-endpoint-inside": put(CLUSTER, DNS_ENDPOINT, True),
    "flow-logs": put(SUBNET, "log_config", None),
    "release-channel": put(CLUSTER, "release_channel.channel", "RAPID"),
    "maintenance-window": put(CLUSTER, "maintenance_policy.recurring_window", None),
    "metadata-server": put(SPOT, "node_config.workload_metadata_config.mode", "GCE_METADATA"),
    "signed-kernel-modules": put(SPOT, "node_config.linux_node_config", None),
    "secrets-encrypted": put(CLUSTER, "database_encryption", {"state": "DECRYPTED", "key_name": KEY}),
    "binary-authorization": put(CLUSTER, "binary_authorization", {"evaluation_mode": "DISABLED"}),
    "people-by-group": put(CLUSTER, "authenticator_groups_config", None),
    "deletion-protection": put(CLUSTER, "deletion_protection", False),
    # network
    "ip-space-nodes": put(SUBNET, "ip_cidr_range", "10.10.0.0/27"),
    "ip-space-pods": put(SUBNET, "secondary_ip_range.0.ip_cidr_range", "10.20.0.0/22"),
    "ip-space-services": put(SUBNET, "secondary_ip_range.1.ip_cidr_range", "10.30.0.0/26"),
    # identity
    "no-basic-roles": member("google_pubsub_topic_iam_member", "roles/editor"),
    "narrow-storage-roles": member("google_storage_bucket_iam_member", "roles/storage.objectAdmin"),
    "runs-are-read-by-name": put("google_storage_bucket_iam_member.runs-server", "condition", None),
    "servers-have-a-run": both(unread, without("google_storage_bucket_iam_member.runs-server")),
    "production-runs-are-apart": storage(runs=()),
    "no-account-keys": add("google_service_account_key.k", service_account_id="x"),
    # the environment as a whole
    "production-has-a-budget": state(budget=None),
    "production-database-survives-a-zone": database(highly_available=False),
    "production-database-has-cores": database(tier="db-g1-small"),
    "production-state-is-shared": state(state_bucket=""),
    "production-has-zones": lambda facts: state(zones=facts.environment.zones[:1])(
        put(CLUSTER, "cluster_autoscaling.auto_provisioning_locations", list(facts.environment.zones[:1]))(facts)
    ),
    "production-is-not-drilled": state(allow_drills=True),
    "production-base-has-nodes": group("serving", min_nodes=0),
    "serving-base-keeps-the-promise": serving(promised_per_s=200.0),
    "serving-has-machines": serving(base_most=99),
    "state-is-apart": lambda facts: state(state_bucket=facts.environment.bucket("data"))(facts),
    "quota-holds-a-gang": state(quotas=(Quota(source="spot-a100", gpus=1),)),
    "thresholds-are-in-order": alerts(spot_pending_s=300),
    # alerts
    "alert-durations": put(ALERT, "conditions.0.condition_prometheus_query_language.duration", "7s"),
    "alert-queries-balance": put(ALERT, "conditions.0.condition_prometheus_query_language.query", "sum(rate(x[5m])"),
    "alerts-come-in-time": put(ALERT, "conditions.0.condition_prometheus_query_language.duration", "86400s"),
    "alerts-are-on-and-heard": put(ALERT, "enabled", False),
}
