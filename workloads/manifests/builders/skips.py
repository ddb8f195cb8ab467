"""Checks of Checkov and kube-score that an object fails on purpose, and why. A test holds that
nothing else fails, and that no entry here is idle."""

_TOKEN = "its process asks the API server about nodes, with rights to nothing else"
_EMPTY = "the namespace is closed before its first pod stands in it"
_PLANNED_ENDS = {"CKV_K8S_38": _TOKEN}

# Kind/namespace/name -> check -> reason. A `*` ends a name that follows from an accelerator.
SKIPS: dict[str, dict[str, str]] = {
    "Deployment/batch/batch-steady": {
        "CKV_K8S_8": "a worker answers no requests, and a hung one loses its leases to others",
        "CKV_K8S_9": "a worker answers no requests, so nobody waits for it to be ready",
        "deployment-has-host-podantiaffinity": "each worker fills a node, so no two share one",
        "deployment-has-poddisruptionbudget": "a drained worker costs a micro-batch, and no budget stops preemption",
    },
    "HorizontalPodAutoscaler/batch/batch-steady": {
        "horizontalpodautoscaler-replicas": "one worker is the least that an idle queue can have (decision 0062)",
    },
    "Deployment/monitoring/exporter": {"CKV_K8S_38": "it watches pods and nodes through the API server"},
    "Job/training/train-flex-*": _PLANNED_ENDS,
    "JobSet/training/train-queued-*": _PLANNED_ENDS,
    "NetworkPolicy/serving/default-deny": {"networkpolicy-targets-pod": _EMPTY},
    "NetworkPolicy/serving/egress-named": {"networkpolicy-targets-pod": _EMPTY},
}


def of(kind: str, namespace: str | None, name: str) -> dict[str, str]:
    """Check -> reason, for one object."""
    title = f"{kind}/{namespace or ''}/{name}"
    return next((checks for pattern, checks in SKIPS.items() if _fits(pattern, title)), {})


def annotations(kind: str, namespace: str | None, name: str) -> dict[str, str]:
    """As the two tools read it. kube-score's has no place for a reason."""
    checks = of(kind, namespace, name)
    checkov = [f"{check}={reason}" for check, reason in checks.items() if check.startswith("CKV")]
    listed = ",".join(check for check in checks if not check.startswith("CKV"))
    listed_skips = {f"checkov.io/skip{n}": text for n, text in enumerate(checkov, 1)}
    return listed_skips | ({"kube-score/ignore": listed} if listed else {})


def _fits(pattern: str, title: str) -> bool:
    return title.startswith(pattern[:-1]) if pattern.endswith("*") else title == pattern
