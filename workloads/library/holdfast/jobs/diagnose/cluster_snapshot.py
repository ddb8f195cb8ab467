"""What a cluster holds that may keep a job from running: nodes, pods, events, queues; and which
nodes a pod fits.
"""

import time
from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import dataclass, field, fields, replace

from holdfast.clients.api import Api, ApiError, Object
from holdfast.jobs.diagnose.job_snapshot import KUEUE, path_in
from holdfast.lint.platform import tolerates
from holdfast.vocabulary.kubernetes import PROVISIONING_API, api_path
from holdfast.vocabulary.pools import GPU_RESOURCE, Effect, Taint

PROVISIONING = api_path(PROVISIONING_API)


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterSnapshot:
    """What a waiting job waits for."""

    taken_s: float = field(default_factory=time.time)
    """Unix time."""
    nodes: list[Object] = field(default_factory=list[Object])
    others: list[Object] = field(default_factory=list[Object])
    """Every pod of the cluster."""
    events: list[Object] = field(default_factory=list[Object])
    claims: list[Object] = field(default_factory=list[Object])
    """PersistentVolumeClaims."""
    requests: list[Object] = field(default_factory=list[Object])
    """ProvisioningRequests: the queue of flex-start."""
    workloads: list[Object] = field(default_factory=list[Object])
    """Of Kueue."""
    local_queues: list[Object] = field(default_factory=list[Object])
    cluster_queues: list[Object] = field(default_factory=list[Object])

    def within(self, namespace: str) -> "ClusterSnapshot":
        """All pods and what has no namespace, and of the rest what is in this one."""
        lists = [each.name for each in fields(self) if each.name not in ("others", "taken_s")]
        return replace(
            self,
            **{
                name: [
                    each
                    for each in getattr(self, name)
                    if each["metadata"].get("namespace", namespace) == namespace
                ]
                for name in lists
            },
        )


def take_snapshot(api: Api, namespace: str = "") -> ClusterSnapshot:
    """Everything that explains the jobs of a namespace, or of all: one request each."""
    return ClusterSnapshot(
        nodes=list(api.items("/api/v1/nodes")),
        others=_pods(api, namespace),
        events=list(api.items(path_in("/api/v1", "events", namespace))),
        claims=list(api.items(path_in("/api/v1", "persistentvolumeclaims", namespace))),
        requests=list(api.items(path_in(PROVISIONING, "provisioningrequests", namespace))),
        workloads=list(api.items(path_in(KUEUE, "workloads", namespace))),
        local_queues=list(api.items(path_in(KUEUE, "localqueues", namespace))),
        cluster_queues=list(api.items(f"{KUEUE}/clusterqueues")),
    )


def _pods(api: Api, namespace: str) -> list[Object]:
    """Of the cluster; of the namespace for people who may not see those of other teams: GPUs that
    others use then look free.
    """
    try:
        return list(api.items("/api/v1/pods"))
    except ApiError as error:
        if error.status != 403 or not namespace:
            raise
        return list(api.items(path_in("/api/v1", "pods", namespace)))


def events_about(events: Iterable[Object], uids: Container[str], *reasons: str) -> list[Object]:
    """Oldest first; no reasons means all of them."""
    found = [e for e in events if e.get("involvedObject", {}).get("uid") in uids]
    return sorted((e for e in found if not reasons or e.get("reason") in reasons), key=time_of)


def newest_event(events: Iterable[Object], uids: Container[str], *reasons: str) -> Object | None:
    return next(reversed(events_about(events, uids, *reasons)), None)


def time_of(event: Object) -> str:
    """Kubernetes' time, which sorts as text. Schedulers write the newer kind of event, others the
    older.
    """
    again = (event.get("series") or {}).get("lastObservedTime")
    return (
        again
        or event.get("lastTimestamp")
        or event.get("eventTime")
        or event["metadata"]["creationTimestamp"]
    )


def times_seen(event: Object) -> int:
    return int((event.get("series") or {}).get("count") or event.get("count") or 1)


def message_of(event: Object) -> str:
    return str(event.get("message") or "")


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
    blocked = {
        n["metadata"]["name"]: taint for n in selected if (taint := untolerated(pod_spec, n))
    }
    open_nodes = {
        n["metadata"]["name"]: n for n in selected if n["metadata"]["name"] not in blocked
    }
    has = {
        name: int(n["status"].get("allocatable", {}).get(GPU_RESOURCE, 0))
        for name, n in open_nodes.items()
    }
    free = Counter(has)
    for pod in pods:
        if pod["spec"].get("nodeName") in open_nodes and pod["status"].get("phase") in (
            "Pending",
            "Running",
        ):
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
        hard = taint["effect"] in ("NoSchedule", "NoExecute") and not taint["key"].startswith(
            _BY_THE_CLUSTER
        )
        found = Taint(
            key=taint["key"],
            value=taint.get("value", ""),
            effect=Effect(taint["effect"]),
        )
        if hard and not any(tolerates(t, found) for t in pod_spec.get("tolerations", ())):
            return str(found)
    return ""


def gpus(pod_spec: Object) -> int:
    limits = (c.get("resources", {}).get("limits", {}) for c in pod_spec.get("containers", ()))
    return sum(int(each.get(GPU_RESOURCE, 0)) for each in limits)
