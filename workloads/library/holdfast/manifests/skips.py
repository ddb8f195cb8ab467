"""Checks of Checkov that an object fails on purpose, and why. A test holds that nothing else fails, and that no entry
here is idle."""

_TOKEN = "its process asks the API server about nodes, with rights to nothing else"
_PROXY = {"CKV_K8S_38": "its watcher follows EndpointSlices through the API server, with rights to nothing else"}
_NODE_EVENTS = {"CKV_K8S_21": "events about a node are in the namespace default"}
_PLANNED_ENDS = {"CKV_K8S_38": _TOKEN}

# Kind/namespace/name -> check -> reason. A `*` ends a name that follows from an accelerator.
SKIPS: dict[str, dict[str, str]] = {
    "Deployment/batch/batch-steady": {
        "CKV_K8S_8": "a worker answers no requests, and a hung one loses its leases to others",
        "CKV_K8S_9": "a worker answers no requests, so nothing waits for it to be ready",
    },
    "DaemonSet/gpu-metrics/dcgm-exporter": dict.fromkeys(
        ("CKV_K8S_16", "CKV_K8S_20", "CKV_K8S_28", "CKV_K8S_29", "CKV_K8S_31", "CKV_K8S_37"),
        "it reads each GPU of its node, which only a privileged container may, and no profile holds for such a one",
    ),
    "Deployment/monitoring/exporter": {"CKV_K8S_38": "it watches pods and nodes through the API server"},
    "Deployment/monitoring/mover": {
        "CKV_K8S_8": "it answers no requests; a pass that fails is logged and the next one begins",
        "CKV_K8S_9": "it answers no requests, so nothing waits for it to be ready",
        "CKV_K8S_38": "it reads and patches jobs and queues through the API server",
    },
    "Role/default/holdfast-mover-nodes": _NODE_EVENTS,
    "RoleBinding/default/holdfast-mover-nodes": _NODE_EVENTS,
    "Job/training/train-flex-*": _PLANNED_ENDS,
    "JobSet/training/train-queued-*": _PLANNED_ENDS,
    "Deployment/serving/proxy": _PROXY,
    "Deployment/serving/vllm-proxy": _PROXY,
}


def of(kind: str, namespace: str | None, name: str) -> dict[str, str]:
    """Check -> reason, for one object."""
    title = f"{kind}/{namespace or ''}/{name}"
    return next((checks for pattern, checks in SKIPS.items() if _fits(pattern, title)), {})


def annotations(kind: str, namespace: str | None, name: str) -> dict[str, str]:
    """As Checkov reads it."""
    checks = of(kind, namespace, name)
    return {f"checkov.io/skip{n}": f"{check}={reason}" for n, (check, reason) in enumerate(checks.items(), 1)}


def _fits(pattern: str, title: str) -> bool:
    return title.startswith(pattern[:-1]) if pattern.endswith("*") else title == pattern
