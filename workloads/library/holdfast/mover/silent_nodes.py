"""Ends the pods of jobs on silent nodes.

A node whose kubelet stopped reporting keeps its pods Terminating, and a Job that replaces only
failed pods waits forever. Guarantee: a pod is ended only after its own grace period, on a node
that is still silent, and only if its annotation says that a second copy does no harm. Kueue's
FailureRecoveryPolicy does the same 60 s later.
"""

# Why it is so: infra/decisions/0061.

from collections.abc import Iterable
from typing import Any

from holdfast.clients.api import Api, ApiError, Object
from holdfast.controllers.controller_log import get_logger
from holdfast.mover.cluster_api import write_event
from holdfast.support.values import unix_s
from holdfast.vocabulary.kubernetes import ANNOTATION_EXPENDABLE
from holdfast.vocabulary.roles import JOB_NAMESPACES

LOG = get_logger("move")
REASON = "NodeSilent"


def end_pods(
    api: Api,
    silent: Iterable[str],
    now_s: float,
    namespaces: Iterable[str] = JOB_NAMESPACES,
) -> list[str]:
    """Ends the stuck pods on silent nodes. Returns their names.

    `silent` names the nodes with the unreachable taint. A pod that the API server refuses to end is
    tried again in the next pass.
    """
    nodes = set(silent)
    if not nodes:
        return []
    stuck: list[Object] = []
    for namespace in namespaces:
        for pod in api.items(f"/api/v1/namespaces/{namespace}/pods"):
            if _is_stuck(pod, nodes, now_s):
                stuck.append(pod)
    return [pod["metadata"]["name"] for pod in stuck if _end_pod(api, pod, now_s)]


def _is_stuck(pod: Object, nodes: set[str], now_s: float) -> bool:
    meta = pod["metadata"]
    annotations = meta.get("annotations") or {}
    if annotations.get(ANNOTATION_EXPENDABLE) != "true":
        return False
    # The server writes the end of the grace period here.
    grace_end_s = unix_s(meta.get("deletionTimestamp"))
    is_overdue = 0 < grace_end_s <= now_s
    return is_overdue and pod["spec"].get("nodeName") in nodes


def _end_pod(api: Api, pod: Object, now_s: float) -> bool:
    """Marks the pod failed, so that the Job controller counts it, then deletes it.

    A JobSet waits until its pods are deleted.
    """
    meta = pod["metadata"]
    node = pod["spec"]["nodeName"]
    path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
    message = f"node {node} is silent and the grace period is over"
    try:
        if pod["status"].get("phase") not in ("Failed", "Succeeded"):
            api.patch(f"{path}/status", _make_failure(meta["resourceVersion"], message))
        api.delete(path, gracePeriodSeconds=0)
    except ApiError as error:
        if error.status != 404:
            LOG.warning("%s was not ended: %s", meta["name"], error)
        return False
    LOG.warning("%s ended: %s", meta["name"], message)
    involved = {"apiVersion": "v1", "kind": "Pod"} | meta
    write_event(api, involved, REASON, message, now_s, kind="Warning")
    return True


def _make_failure(version: str, message: str) -> list[dict[str, Any]]:
    """Builds a patch that is refused if the pod changed since it was read."""
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
