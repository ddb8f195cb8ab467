"""Tells which pods were evicted from their work. Pure: a pod as the API server holds it.

A pod that its machine rejected, or that was deleted with a machine before it started, lost no work:
it was not evicted.
"""

from collections.abc import Mapping
from typing import Any

from holdfast.support.values import unix_s

Pod = Mapping[str, Any]


def find_disruption(pod: Pod) -> tuple[str, float]:
    """Returns why and when the platform ended the pod, in Unix seconds; empty if it did not."""
    status = pod.get("status") or {}
    for condition in status.get("conditions") or ():
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            reason = str(condition.get("reason") or "")
            return reason, unix_s(condition.get("lastTransitionTime"))
    return "", 0.0


def find_eviction(pod: Pod) -> tuple[str, float]:
    """Returns the disruption of a pod that worked; empty if none of its containers started."""
    if not _did_start(pod):
        return "", 0.0
    return find_disruption(pod)


def _did_start(pod: Pod) -> bool:
    status = pod.get("status") or {}
    for container in status.get("containerStatuses") or ():
        # The kubelet keeps no start time of a container that it lost sight of: it counts a restart.
        if container.get("restartCount"):
            return True
        for name in ("state", "lastState"):
            states = (container.get(name) or {}).values()
            if any((state or {}).get("startedAt") for state in states):
                return True
    return False
