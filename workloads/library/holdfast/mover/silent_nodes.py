"""Ends the pods of jobs that a silent node holds.

A node whose kubelet stopped reporting keeps its pods Terminating, and a Job that replaces only
failed pods waits for ever. Guarantee: a pod is ended only after its own grace period, on a node
that is still silent, and only where its annotation says that a second copy does no harm. Kueue's
FailureRecoveryPolicy does the same 60 s later.
"""

# Why it is so: infra/decisions/0061.

from collections.abc import Iterable
from typing import Any

from holdfast.clients.api import Api, ApiError, Object
from holdfast.controllers.controller_log import logger
from holdfast.mover.cluster_api import event
from holdfast.support.values import unix_s
from holdfast.vocabulary.kubernetes import ANNOTATION_EXPENDABLE
from holdfast.vocabulary.roles import JOB_NAMESPACES

LOG = logger("move")
REASON = "NodeSilent"


def end_pods(
    api: Api,
    silent: Iterable[str],
    now_s: float,
    namespaces: Iterable[str] = JOB_NAMESPACES,
) -> list[str]:
    """Names of the pods ended. `silent`: nodes that carry the unreachable taint. A refused pod is
    tried in the next pass.
    """
    nodes = set(silent)
    found = [
        pod
        for space in namespaces
        if nodes
        for pod in api.items(f"/api/v1/namespaces/{space}/pods")
    ]
    held = [pod for pod in found if _is_stuck(pod, nodes, now_s)]
    return [pod["metadata"]["name"] for pod in held if _ended(api, pod, now_s)]


def _is_stuck(pod: Object, nodes: set[str], now_s: float) -> bool:
    meta = pod["metadata"]
    expendable = (meta.get("annotations") or {}).get(ANNOTATION_EXPENDABLE) == "true"
    # The server writes the end of the grace period here.
    due_s = unix_s(meta.get("deletionTimestamp"))
    return expendable and 0 < due_s <= now_s and pod["spec"].get("nodeName") in nodes


def _ended(api: Api, pod: Object, now_s: float) -> bool:
    """Failed first, so that the Job controller counts it; then gone, since a JobSet waits until its
    pods are.
    """
    meta = pod["metadata"]
    node = pod["spec"]["nodeName"]
    path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
    message = f"node {node} is silent and the grace period is over"
    try:
        if pod["status"].get("phase") not in ("Failed", "Succeeded"):
            api.patch(f"{path}/status", _failed(meta["resourceVersion"], message))
        api.delete(path, gracePeriodSeconds=0)
    except ApiError as error:
        if error.status != 404:
            LOG.warning("%s was not ended: %s", meta["name"], error)
        return False
    LOG.warning("%s ended: %s", meta["name"], message)
    event(api, {"apiVersion": "v1", "kind": "Pod"} | meta, REASON, message, now_s, kind="Warning")
    return True


def _failed(version: str, message: str) -> list[dict[str, Any]]:
    """Refused where the pod changed since it was read."""
    return [
        {
            "op": "test",
            "path": "/metadata/resourceVersion",
            "value": version,
        },
        {
            "op": "add",
            "path": "/status/phase",
            "value": "Failed",
        },
        {
            "op": "add",
            "path": "/status/reason",
            "value": REASON,
        },
        {
            "op": "add",
            "path": "/status/message",
            "value": message,
        },
    ]
