"""Settings of the operators for this platform: configuration, placement and webhooks."""

# Why it is so: infra/decisions/0110.

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workloads.operators.catalogue import Body

CONFIGURATIONS: dict[str, Body] = tomllib.loads(
    Path(__file__).with_name("configurations.toml").read_text(encoding="utf-8")
)
WEBHOOK_PORT: int = CONFIGURATIONS["kueue"]["webhook"]["port"]
OURS: Body = CONFIGURATIONS["kueue"]["managedJobsNamespaceSelector"]
REPLICAS = 2
# The priority of GKE's add-ons on the system pool: a metrics agent must not evict the admission of
# all jobs.
PRIORITY = "system-cluster-critical"
# Resources for which webhooks of Kueue stay: its own kinds, and the jobs that it manages.
OWN_KINDS = ("clusterqueues", "cohorts", "resourceflavors", "workloads")
MANAGED_KINDS = ("jobs", "jobsets", "trainjobs")
# Kueue keeps every pending workload in memory; at upstream's 512 MiB it is killed by some thousands
# of them.
RESOURCES: dict[str, Body] = {
    "jobset": {
        "requests": {"cpu": "250m", "memory": "256Mi"},
        "limits": {"memory": "4Gi"},
    },
    "kueue": {
        "requests": {"cpu": "250m", "memory": "512Mi"},
        "limits": {"memory": "4Gi"},
    },
}


def stays(body: Body) -> bool:
    """Returns whether an upstream object is applied.

    The aggregated API is off, and roles for kinds of other projects have no use.
    """
    name: str = body["metadata"]["name"]
    if body["kind"] == "APIService" or "visibility" in name:
        return False
    if body["kind"] != "ClusterRole" or not name.endswith(("-editor-role", "-viewer-role")):
        return True
    return "pending-workloads" not in name and not any(f"-{kind}-" in name for kind in _FOREIGN)


_FOREIGN = (
    "jaxjob",
    "leaderworkerset",
    "mpijob",
    "paddlejob",
    "pytorchjob",
    "raycluster",
    "rayjob",
    "rayservice",
    "sparkapplication",
    "tfjob",
    "trainjob",
    "xgboostjob",
)


def webhooks(operator: str, upstream_webhooks: Sequence[Body]) -> list[Body]:
    """Returns the webhooks that stay, in order.

    JobSet's intercept its own kind, and pods that have its label. Kueue's all fail closed. One of
    upstream intercepts every pod, Deployment and Job of the cluster, so that nothing starts
    anywhere while the operator is down; here they intercept jobs in the platform's namespaces.
    """
    if operator != "kueue":
        return list(upstream_webhooks)
    webhooks: list[Body] = []
    for webhook in upstream_webhooks:
        resources = _list_resources(webhook)
        if not resources.isdisjoint(MANAGED_KINDS):
            webhooks.append(webhook | {"namespaceSelector": OURS})
        elif not resources.isdisjoint(OWN_KINDS):
            webhooks.append(webhook)
    return webhooks


def _list_resources(webhook: Body) -> set[str]:
    resources: set[str] = set()
    for rule in webhook["rules"]:
        for resource in rule["resources"]:
            resources.add(resource.split("/")[0])
    return resources


def bounds(namespace: str, selector: dict[str, Any]) -> list[Body]:
    """Builds a quota and a budget.

    GKE grants the system classes by quota, and none outside kube-system. The budget keeps one
    replica on drains.
    """
    quota: Body = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "system-priority", "namespace": namespace},
        "spec": {
            "hard": {"pods": str(4 * REPLICAS)},
            "scopeSelector": {
                "matchExpressions": [
                    {
                        "scopeName": "PriorityClass",
                        "operator": "In",
                        "values": [PRIORITY],
                    }
                ]
            },
        },
    }
    budget: Body = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "controller-manager", "namespace": namespace},
        "spec": {
            "maxUnavailable": 1,
            "selector": selector,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }
    return [quota, budget]
