"""Which pods were evicted from their work. Pure: a pod as the API server holds it.

A pod that its machine turned away, or that was collected with a machine before it began, lost no
work: it is none.
"""

from collections.abc import Mapping
from typing import Any

from holdfast.support.values import unix_s

Pod = Mapping[str, Any]


def disruption(pod: Pod) -> tuple[str, float]:
    """Why and when the platform ended the pod, in Unix seconds; empty if it did not."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    found = []
    for c in conditions:
        if c.get("type") == "DisruptionTarget" and c.get("status") == "True":
            found.append(c)
    if found:
        return (str(found[0].get("reason") or ""), unix_s(found[0].get("lastTransitionTime")))
    return ("", 0.0)


def eviction(pod: Pod) -> tuple[str, float]:
    """As `disruption`, of a pod that worked; empty for one none of whose containers began."""
    return disruption(pod) if _began(pod) else ("", 0.0)


def _began(pod: Pod) -> bool:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    states = [
        state
        for each in statuses
        for held in ("state", "lastState")
        for state in (each.get(held) or {}).values()
    ]
    # Of a container that it lost sight of, the kubelet keeps no start: it counts a restart.
    return any((state or {}).get("startedAt") for state in states) or any(
        each.get("restartCount") for each in statuses
    )
