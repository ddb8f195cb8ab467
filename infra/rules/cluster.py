"""The cluster: what keeps it working whatever the environment. Protections by environment: infra.rules.hardening."""

from collections.abc import Iterator

from infra.rules.model import Facts, Violation, each, rule

PROVIDER = "google provider 7.39 accepts it silently (tested)"
NEEDED_METRICS = {"SYSTEM_COMPONENTS", "POD", "JOBSET", "DCGM", "KUBELET"}
NEEDED_LOGS = {"SYSTEM_COMPONENTS", "WORKLOADS", "APISERVER"}


@rule(
    reason="otherwise a pod that mounts a secret waits forever: FailedMount, driver not found",
    source="GKE documentation on the Secret Manager add-on",
)
def secrets_can_be_mounted(facts: Facts) -> Iterator[Violation]:
    """The Secret Manager add-on matches the environment's setting."""
    wanted = facts.environment.security.secret_manager
    yield from each(
        facts.cluster(), "secret_manager_config.enabled", wanted, "use the value of security.secret_manager"
    )


@rule(reason="the outage of one zone stops the control plane of a zonal cluster", source="GKE documentation")
def regional(facts: Facts) -> Iterator[Violation]:
    """The cluster is regional."""
    yield from each(facts.cluster(), "location", facts.environment.region, "set the region, not a zone")


@rule(reason="the plan accepts an invalid pool, and then no pod gets an identity", source=PROVIDER)
def workload_pool(facts: Facts) -> Iterator[Violation]:
    """Workload Identity uses the project's own pool."""
    path = "workload_identity_config.workload_pool"
    yield from each(facts.cluster(), path, facts.environment.workload_pool, "state PROJECT.svc.id.goog")


@rule(
    reason="enable_components replaces the whole list: without an entry its metrics stop, and alerts cannot fire",
    source="GKE",
)
def metrics_that_alerts_need(facts: Facts) -> Iterator[Violation]:
    """System, pod, job and GPU metrics are collected."""
    for cluster in facts.cluster():
        missing = NEEDED_METRICS - set(cluster.get("monitoring_config.enable_components", []))
        if missing:
            path = "monitoring_config.enable_components"
            yield cluster.violation(path, "all components that alerts read", f"add {', '.join(sorted(missing))}")


@rule(reason="preemptions and audit trails are read from these logs", source="CIS GKE 5.7.1")
def logs_that_diagnosis_needs(facts: Facts) -> Iterator[Violation]:
    """System, workload and API server logs are kept."""
    for cluster in facts.cluster():
        missing = NEEDED_LOGS - set(cluster.get("logging_config.enable_components", []))
        if missing:
            path = "logging_config.enable_components"
            yield cluster.violation(path, "all components that diagnosis reads", f"add {', '.join(sorted(missing))}")


@rule(reason="alerts are PromQL queries on managed Prometheus", source="monitoring/alerting/alerts")
def managed_prometheus(facts: Facts) -> Iterator[Violation]:
    """Managed Prometheus is on."""
    yield from each(facts.cluster(), "monitoring_config.managed_prometheus.enabled", True, "turn it on")


@rule(reason="otherwise the bill does not show costs by namespace", source="GKE documentation on cost allocation")
def cost_allocation(facts: Facts) -> Iterator[Violation]:
    """Cost allocation is on."""
    yield from each(facts.cluster(), "cost_management_config.enabled", True, "turn it on")


@rule(reason="data sets are mounted with this driver", source="GKE documentation on Cloud Storage FUSE")
def gcs_fuse(facts: Facts) -> Iterator[Violation]:
    """The GCS FUSE driver is on."""
    yield from each(facts.cluster(), "addons_config.gcs_fuse_csi_driver_config.enabled", True, "turn it on")


@rule(reason="GPU images are large; streaming starts pods before the whole image is pulled", source="GKE documentation")
def image_streaming(facts: Facts) -> Iterator[Violation]:
    """Images are streamed on every node."""
    path = "node_pool_defaults.node_config_defaults.gcfs_config.enabled"
    yield from each(facts.cluster(), path, True, "turn it on")
    yield from each(facts.pools(), "node_config.gcfs_config.enabled", True, "turn it on")


@rule(reason="routes-based clusters run out of routes and do not support Dataplane V2", source="CIS GKE 5.6.2")
def vpc_native(facts: Facts) -> Iterator[Violation]:
    """Pods and services have their own IP ranges."""
    for part in ("cluster", "services"):
        path = f"ip_allocation_policy.{part}_secondary_range_name"
        for cluster in facts.cluster():
            if not cluster.get(path):
                yield cluster.violation(path, "a secondary range", "name the range")


@rule(reason="otherwise Terraform replaces the pool when the cluster's copy of it changes", source="google provider")
def default_pool_removed(facts: Facts) -> Iterator[Violation]:
    """The default node pool is removed."""
    yield from each(facts.cluster(), "remove_default_node_pool", True, "remove it")


@rule(reason="GKE deletes an alpha cluster after 30 days", source="GKE documentation on alpha clusters")
def no_alpha_cluster(facts: Facts) -> Iterator[Violation]:
    """The cluster is not an alpha cluster."""
    for cluster in facts.cluster():
        if cluster.get("enable_kubernetes_alpha"):
            yield cluster.violation("enable_kubernetes_alpha", "unset", "test alpha features in another cluster")
