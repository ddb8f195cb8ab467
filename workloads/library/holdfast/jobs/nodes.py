"""Which nodes a pod could use, and what keeps it from them. Pure."""

from collections import Counter
from dataclasses import dataclass

from holdfast.clients.api import Object
from holdfast.contract.pools import GPU_RESOURCE

_BY_THE_CLUSTER = "node."  # taints of a state (not-ready, unschedulable), not of a pool


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    selector: str
    selected: int
    """Nodes that the selector matches."""
    untolerated: tuple[str, int] | None
    """The taint that keeps the pod from every selected node, and from how many."""
    wanted: int
    free: int
    total: int
    """GPUs: of the pod, and of the nodes it may use."""
    most_free: int
    """GPUs on the node that has most of them free: a pod cannot use two nodes."""


def fit(pod_spec: Object, nodes: list[Object], pods: list[Object]) -> Fit:
    selector: dict[str, str] = pod_spec.get("nodeSelector", {})
    selected = [n for n in nodes if selector.items() <= n["metadata"].get("labels", {}).items()]
    blocked = {n["metadata"]["name"]: taint for n in selected if (taint := untolerated(pod_spec, n))}
    open_nodes = {n["metadata"]["name"]: n for n in selected if n["metadata"]["name"] not in blocked}
    has = {name: int(n["status"].get("allocatable", {}).get(GPU_RESOURCE, 0)) for name, n in open_nodes.items()}
    free = Counter(has)
    for pod in pods:
        if pod["spec"].get("nodeName") in open_nodes and _holds(pod):
            free[pod["spec"]["nodeName"]] -= gpus(pod["spec"])
    common = Counter(blocked.values()).most_common(1)
    return Fit(
        selector=", ".join(f"{key}={value}" for key, value in selector.items()) or "any node",
        selected=len(selected),
        untolerated=common[0] if common and not open_nodes else None,
        wanted=gpus(pod_spec),
        free=free.total(),
        total=sum(has.values()),
        most_free=max(free.values(), default=0),
    )


def untolerated(pod_spec: Object, node: Object) -> str:
    """The first taint of a pool that the pod does not tolerate, as `key=value:effect`."""
    for taint in node["spec"].get("taints", ()):
        hard = taint["effect"] in ("NoSchedule", "NoExecute") and not taint["key"].startswith(_BY_THE_CLUSTER)
        if hard and not any(tolerates(t, taint) for t in pod_spec.get("tolerations", ())):
            return f"{taint['key']}={taint.get('value', '')}:{taint['effect']}"
    return ""


def tolerates(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    return (toleration.get("key"), toleration.get("value", "")) == (taint["key"], taint.get("value", ""))


def gpus(pod_spec: Object) -> int:
    limits = (c.get("resources", {}).get("limits", {}) for c in pod_spec.get("containers", ()))
    return sum(int(each.get(GPU_RESOURCE, 0)) for each in limits)


def _holds(pod: Object) -> bool:
    return pod["status"].get("phase") in ("Pending", "Running")
