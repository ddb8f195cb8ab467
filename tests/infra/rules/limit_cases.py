"""Values at the limits of arguments: what Google's APIs refuse, and beside it what they take.

The page that documents each is the `source` of its row in `infra/rules/limits.toml`.
"""

from typing import Any

SUBSCRIPTION = "google_pubsub_subscription"
TOPIC = "google_pubsub_topic"
BUCKET = "google_storage_bucket"
ACCOUNT = "google_service_account"
IDENTITY_POOL = "google_iam_workload_identity_pool"
REGISTRY = "google_artifact_registry_repository"
CLUSTER = "google_container_cluster"
POOL = "google_container_node_pool"
FIREWALL = "google_compute_firewall"
SUBNET = "google_compute_subnetwork"
NAT = "google_compute_router_nat"
DATABASE = "google_sql_database_instance"
POLICY = "google_monitoring_alert_policy"
BUDGET = "google_billing_budget"
BACKUP = "settings.backup_configuration"
WINDOW = "settings.maintenance_window"

# Kind, path -> values that are refused, and values that are taken.
CASES: dict[tuple[str, str], tuple[list[Any], list[Any]]] = {
    (SUBSCRIPTION, "ack_deadline_seconds"): ([5, 601], [10, 600]),
    (SUBSCRIPTION, "message_retention_duration"): (["60s", "2678401s"], ["600s", "2678400s"]),
    (SUBSCRIPTION, "dead_letter_policy.max_delivery_attempts"): ([4, 101], [5, 100]),
    (SUBSCRIPTION, "retry_policy.minimum_backoff"): (["601s"], ["0s", "600s"]),
    (SUBSCRIPTION, "retry_policy.maximum_backoff"): (["3600s"], ["600s"]),
    (SUBSCRIPTION, "expiration_policy.ttl"): (["3600s", "86399s"], ["", "86400s", "2678400s"]),
    (TOPIC, "name"): (["goog-work", "9-work", "w"], ["holdfast-work"]),
    (BUCKET, "soft_delete_policy.retention_duration_seconds"): (
        [259_200, 604_799, 7_776_001],
        [0, 604_800, 1_000_000, 7_776_000],
    ),
    (BUCKET, "name"): (
        ["acme..state", "goog-state", "google-ml-state", "Acme", "a.-b"],
        ["acme-ml.state"],
    ),
    (BUCKET, "storage_class"): (["REGIONAL-ISH", "standard"], ["NEARLINE"]),
    (BUCKET, "lifecycle_rule"): (
        [[{"condition": {"age": 1}}] * 101, [{"condition": {"age": -1}}]],
        [[{"condition": {"age": 7}}]],
    ),
    (REGISTRY, "cleanup_policies"): ([[{}] * 11], [[{}] * 10]),
    (CLUSTER, "master_authorized_networks_config.cidr_blocks"): ([[{}] * 101], [[{}] * 100]),
    (POOL, "node_config.taint"): ([[{"effect": "NEVER"}]], [[{"effect": "NO_EXECUTE"}]]),
    (POOL, "node_config.guest_accelerator"): (
        [[{"gpu_driver_installation_config": {"gpu_driver_version": "NEWEST"}}]],
        [[{"gpu_driver_installation_config": {"gpu_driver_version": "LATEST"}}]],
    ),
    (POLICY, "conditions"): ([[{}] * 7], [[{}] * 6]),
    (BUDGET, "threshold_rules"): (
        [[{"threshold_percent": -1}]],
        [[{"threshold_percent": 0.9}]],
    ),
    (ACCOUNT, "account_id"): (["ml", "9-trainer", "a" * 31, "Trainer"], ["acme-trainer"]),
    (IDENTITY_POOL, "workload_identity_pool_id"): (["gcp-ml", "abc", "Acme-pool"], ["acme-ml"]),
    (f"{IDENTITY_POOL}_provider", "workload_identity_pool_provider_id"): (["gcp-x"], ["github"]),
    (REGISTRY, "repository_id"): (["Images", "images_", "9images"], ["acme-images"]),
    (CLUSTER, "name"): (["Acme", "a" * 41, "acme-"], ["acme-ml"]),
    (CLUSTER, "release_channel.channel"): (["FAST"], ["STABLE"]),
    (CLUSTER, "default_max_pods_per_node"): ([7, 512], [64]),
    (CLUSTER, "cluster_autoscaling.autoscaling_profile"): (["CHEAP"], ["BALANCED"]),
    (CLUSTER, "logging_config.enable_components"): ([["AUDIT"]], [["APISERVER"]]),
    (CLUSTER, "dns_config.cluster_dns_scope"): (["GLOBAL"], ["VPC_SCOPE"]),
    (CLUSTER, "security_posture_config.mode"): (["STRICT"], ["BASIC"]),
    (CLUSTER, "workload_identity_config.workload_pool"): (
        ["acme-ml.iam", "acme.svc.id.goog"],
        ["acme-ml.svc.id.goog"],
    ),
    (CLUSTER, "datapath_provider"): (["EBPF"], ["ADVANCED_DATAPATH"]),
    (POOL, "name"): (["Spot", "a" * 41], ["spot-l4"]),
    (POOL, "max_pods_per_node"): ([4, 300], [32]),
    (POOL, "autoscaling.location_policy"): (["CHEAPEST"], ["ANY"]),
    (POOL, "upgrade_settings.max_surge"): ([21], [20]),
    (POOL, "upgrade_settings.max_unavailable"): ([-1], [1]),
    (POOL, "node_config.image_type"): (["DEBIAN"], ["UBUNTU_CONTAINERD"]),
    (POOL, "node_config.max_run_duration"): (["60s", "1209600s"], ["604800s"]),
    (POOL, "node_config.reservation_affinity.consume_reservation_type"): (
        ["RESERVED"],
        ["ANY_RESERVATION"],
    ),
    (POOL, "node_config.kubelet_config.shutdown_grace_period_seconds"): ([60, 300], [30, 120]),
    (FIREWALL, "priority"): ([-1, 65_536], [0, 65_535]),
    (FIREWALL, "name"): (["Refuse", "a" * 64], ["acme-refuse"]),
    (SUBNET, "log_config.flow_sampling"): ([1.5, -0.1], [0.5, 1]),
    (SUBNET, "log_config.aggregation_interval"): (["INTERVAL_1_SEC"], ["INTERVAL_30_SEC"]),
    (SUBNET, "ip_cidr_range"): (["10.0.0.0/30", "10.0.0.0/3"], ["10.0.0.0/29"]),
    ("google_compute_global_address", "prefix_length"): ([7, 30], [20]),
    (NAT, "log_config.filter"): (["NOTHING"], ["ALL"]),
    (DATABASE, "settings.disk_size"): ([5, 70_000], [10]),
    (DATABASE, "settings.availability_type"): (["MULTI_REGION"], ["REGIONAL"]),
    (DATABASE, f"{BACKUP}.transaction_log_retention_days"): ([0, 8], [7]),
    (DATABASE, f"{BACKUP}.backup_retention_settings.retained_backups"): ([0, 366], [365]),
    (DATABASE, f"{BACKUP}.start_time"): (["24:00", "1am"], ["23:59"]),
    (DATABASE, f"{WINDOW}.day"): ([0, 8], [7]),
    (DATABASE, f"{WINDOW}.hour"): ([24], [0]),
    (DATABASE, "database_version"): (["POSTGRES_12", "POSTGRES_81", "MYSQL_9"], ["POSTGRES_17"]),
    (DATABASE, "settings.ip_configuration.ssl_mode"): (["TLS"], ["ENCRYPTED_ONLY"]),
    (DATABASE, "name"): (["Results", "9results"], ["acme-results"]),
    (POLICY, "notification_channels"): ([["c"] * 17], [["c"] * 16]),
    (POLICY, "severity"): (["PAGE"], ["CRITICAL"]),
    (POLICY, "display_name"): (["x" * 513], ["HoldfastSpend"]),
    (POLICY, "alert_strategy.auto_close"): (["60s", "1209600s"], ["1800s"]),
    (BUDGET, "all_updates_rule.monitoring_notification_channels"): ([["c"] * 6], [["c"] * 5]),
    (BUDGET, "amount.specified_amount.currency_code"): (["euro"], ["EUR"]),
    ("google_dns_record_set", "ttl"): ([-5], [300]),
    ("google_dns_managed_zone", "dns_name"): (["googleapis.com"], ["googleapis.com."]),
    ("google_project_service", "service"): (["container"], ["container.googleapis.com"]),
}
# Queries and filters: what is refused, and what is taken.
REFUSED_QUERIES = (
    "sum(rates(x[5m])) > 1",
    "sum by (job) (rate(x[5m]) > 1",
    'x{cluster="a} > 1',
    "x > ",
    "average_over_time(x[5m]) > 1",
)
ACCEPTED_QUERIES = (
    'sum by (job) (rate(x{cluster="a(b"}[5m])) > 1',
    "histogram_quantile(0.99, sum by (le) (rate(x_bucket[5m]))) > 1 or absent_over_time(x[1h])",
    "x > on (job) group_left (node) 2 * y unless y offset 5m",
)
REFUSED_FILTERS = (
    'resource.type="k8s_container',
    'resource.type="k8s_container" AND',
    '(resource.type="k8s_container"',
    'resource.type= AND severity="ERROR"',
    "AND severity=ERROR",
)
ACCEPTED_FILTERS = (
    'resource.type="k8s_container" AND (severity>=ERROR OR NOT jsonPayload.a:"b")',
    'log_id("container.googleapis.com/cluster-autoscaler-visibility")',
)
