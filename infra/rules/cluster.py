"""The cluster: what keeps it working whatever the environment. Protections by environment: infra.rules.hardening."""

from collections.abc import Iterator

from infra.rules.model import Facts, Violation, each, rule

PROVIDER = "google provider 7.39 accepts it silently (tested)"
NEEDED_METRICS = {"SYSTEM_COMPONENTS", "POD", "JOBSET", "DCGM", "KUBELET"}
NEEDED_LOGS = {"SYSTEM_COMPONENTS", "WORKLOADS", "APISERVER"}


@rule(
    reason="a pod that mounts a secret waits for ever: FailedMount, driver not found",
    source="GKE documentation on the Secret Manager add-on",
)
def secrets_can_be_mounted(facts: Facts) -> Iterator[Violation]:
    """The Secret Manager add-on is as the environment asks."""
    wanted = facts.environment.security.secret_manager
    yield from each(facts.cluster(), "secret_manager_config.enabled", wanted, "state what security.secret_manager asks")


@rule(reason="one zone's outage takes the control plane of a zonal cluster", source="GKE documentation")
def regional(facts: Facts) -> Iterator[Violation]:
    """The cluster is regional."""
    yield from each(facts.cluster(), "location", facts.environment.region, "set the region, not a zone")


@rule(reason="a nonsense pool passes the plan, and no pod gets an identity", source=PROVIDER)
def workload_pool(facts: Facts) -> Iterator[Violation]:
    """Workload Identity uses the project's own pool."""
    path = "workload_identity_config.workload_pool"
    yield from each(facts.cluster(), path, facts.environment.workload_pool, "state PROJECT.svc.id.goog")


@rule(
    reason="enable_components replaces the list: without an entry its metrics stop, and alerts go blind", source="GKE"
)
def metrics_that_alerts_need(facts: Facts) -> Iterator[Violation]:
    """System, pod, job and GPU metrics are collected."""
    for cluster in facts.cluster():
        missing = NEEDED_METRICS - set(cluster.get("monitoring_config.enable_components", []))
        if missing:
            path = "monitoring_config.enable_components"
            yield cluster.violation(path, "all that alerts read", f"add {', '.join(sorted(missing))}")


@rule(reason="evictions and audit trails are read from these logs", source="CIS GKE 5.7.1")
def logs_that_diagnosis_needs(facts: Facts) -> Iterator[Violation]:
    """System, workload and API server logs are kept."""
    for cluster in facts.cluster():
        missing = NEEDED_LOGS - set(cluster.get("logging_config.enable_components", []))
        if missing:
            path = "logging_config.enable_components"
            yield cluster.violation(path, "all that diagnosis reads", f"add {', '.join(sorted(missing))}")


@rule(reason="alerts are PromQL over managed Prometheus", source="monitoring/alerting/alerts")
def managed_prometheus(facts: Facts) -> Iterator[Violation]:
    """Managed Prometheus is on."""
    yield from each(facts.cluster(), "monitoring_config.managed_prometheus.enabled", True, "turn it on")


@rule(reason="the bill is then one sum for all namespaces", source="GKE documentation on cost allocation")
def cost_allocation(facts: Facts) -> Iterator[Violation]:
    """Cost allocation is on."""
    yield from each(facts.cluster(), "cost_management_config.enabled", True, "turn it on")


@rule(reason="data sets are mounted with it", source="GKE documentation on Cloud Storage FUSE")
def gcs_fuse(facts: Facts) -> Iterator[Violation]:
    """The GCS FUSE driver is on."""
    yield from each(facts.cluster(), "addons_config.gcs_fuse_csi_driver_config.enabled", True, "turn it on")


@rule(reason="GPU images are large; streaming starts pods before they are pulled", source="GKE documentation")
def image_streaming(facts: Facts) -> Iterator[Violation]:
    """Images are streamed on every node."""
    path = "node_pool_defaults.node_config_defaults.gcfs_config.enabled"
    yield from each(facts.cluster(), path, True, "turn it on")
    yield from each(facts.pools(), "node_config.gcfs_config.enabled", True, "turn it on")


@rule(reason="routes-based clusters run out of routes, and lack Dataplane V2", source="CIS GKE 5.6.2")
def vpc_native(facts: Facts) -> Iterator[Violation]:
    """Pods and services have ranges of their own."""
    for part in ("cluster", "services"):
        path = f"ip_allocation_policy.{part}_secondary_range_name"
        for cluster in facts.cluster():
            if not cluster.get(path):
                yield cluster.violation(path, "a secondary range", "name the range")


@rule(reason="Terraform would replace the pool when the cluster's own copy of it changes", source="google provider")
def default_pool_removed(facts: Facts) -> Iterator[Violation]:
    """The pool that GKE insists on is removed."""
    yield from each(facts.cluster(), "remove_default_node_pool", True, "remove it")


@rule(reason="GKE deletes an alpha cluster after 30 days", source="GKE documentation on alpha clusters")
def no_alpha_cluster(facts: Facts) -> Iterator[Violation]:
    """The cluster is none of those that end by themselves."""
    for cluster in facts.cluster():
        if cluster.get("enable_kubernetes_alpha"):
            yield cluster.violation("enable_kubernetes_alpha", "unset", "try alpha features elsewhere")
