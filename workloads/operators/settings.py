"""Settings of the operators for this platform: configuration, where they run, which webhooks
intercept which kinds.
"""

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
# With GKE's add-ons on the system pool; evicting the admission of every job for a metrics agent
# would be wrong.
PRIORITY = "system-cluster-critical"
# Plurals before which a webhook of Kueue stays: its own kinds, and the jobs that it manages.
OWN_KINDS = ("clusterqueues", "cohorts", "resourceflavors", "workloads")
MANAGED_KINDS = ("jobs", "jobsets")
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
    """Whether an upstream object is applied. The aggregated API is off, and roles for kinds of
    others have no use.
    """
    name: str = body["metadata"]["name"]
    if body["kind"] == "APIService" or "visibility" in name:
        return False
    if body["kind"] != "ClusterRole" or not name.endswith(("-editor-role", "-viewer-role")):
        return True
    return "pending-workloads" not in name and not any(f"-{kind}-" in name for kind in _FOREIGN)


_FOREIGN = (
    *(
        "jaxjob",
        "leaderworkerset",
        "mpijob",
        "paddlejob",
        "pytorchjob",
        "raycluster",
        "rayjob",
        "rayservice",
    ),
    *("sparkapplication", "tfjob", "trainjob", "xgboostjob"),
)


def webhooks(operator: str, listed: Sequence[Body]) -> list[Body]:
    """Those that stay, in order. JobSet's intercept its own kind, and pods that carry its label.

    Kueue's all fail closed. Upstream one intercepts every pod, Deployment and Job of the cluster,
    so that with the operator gone nothing starts anywhere; here they intercept jobs in the
    platform's namespaces.
    """
    if operator != "kueue":
        return list(listed)
    return [_scoped(each) for each in listed if _plurals(each) & {*OWN_KINDS, *MANAGED_KINDS}]


def _scoped(webhook: Body) -> Body:
    if _plurals(webhook) & set(MANAGED_KINDS):
        return webhook | {"namespaceSelector": OURS}
    return webhook


def _plurals(webhook: Body) -> set[str]:
    return {resource.split("/")[0] for rule in webhook["rules"] for resource in rule["resources"]}


def bounds(namespace: str, selector: dict[str, Any]) -> list[Body]:
    """GKE grants the system classes by quota, and none outside kube-system; the budget keeps one
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
