"""The cluster: what keeps it working whatever the environment. Protections by environment: infra.rules.hardening."""

from collections.abc import Iterator

from infra.rules.model import Facts, Finding, each, rule

PROVIDER = "google provider 7.39 accepts it silently (tested)"
NEEDED = {
    "monitoring_config.enable_components": {"SYSTEM_COMPONENTS", "POD", "JOBSET", "DCGM", "KUBELET"},
    "logging_config.enable_components": {"SYSTEM_COMPONENTS", "WORKLOADS", "APISERVER"},
}


@rule(reason="the plan accepts an invalid pool, and then no pod gets an identity", source=PROVIDER)
def workload_pool(facts: Facts) -> Iterator[Finding]:
    """Workload Identity uses the project's own pool."""
    path = "workload_identity_config.workload_pool"
    yield from each(facts.cluster(), path, facts.environment.workload_pool, "state PROJECT.svc.id.goog")


@rule(
    reason="a list replaces GKE's own: without an entry its metrics or logs stop, and alerts and audit trails with them",
    source="GKE; CIS GKE 5.7.1",
)
def what_alerts_and_diagnosis_need(facts: Facts) -> Iterator[Finding]:
    """Metrics of system, pods, jobs and GPUs are collected, and logs of system, workloads and the API server."""
    for cluster in facts.cluster():
        for path, needed in NEEDED.items():
            if missing := needed - set(cluster.get(path, [])):
                yield cluster.finding(path, "all components that are read", f"add {', '.join(sorted(missing))}")


@rule(reason="otherwise the bill does not show costs by namespace", source="GKE documentation on cost allocation")
def cost_allocation(facts: Facts) -> Iterator[Finding]:
    """Cost allocation is on."""
    yield from each(facts.cluster(), "cost_management_config.enabled", True, "turn it on")


@rule(reason="GKE deletes an alpha cluster after 30 days", source="GKE documentation on alpha clusters")
def no_alpha_cluster(facts: Facts) -> Iterator[Finding]:
    """The cluster is not an alpha cluster."""
    for cluster in facts.cluster():
        if cluster.get("enable_kubernetes_alpha"):
            yield cluster.finding("enable_kubernetes_alpha", "unset", "test alpha features in another cluster")
