"""A snapshot of the objects that may keep a job from running, and the nodes that a pod fits."""

import time
from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import dataclass, field, fields, replace

from holdfast.clients.api import Api, ApiError, Object
from holdfast.jobs.diagnose.job_snapshot import KUEUE, path_in
from holdfast.jobs.plan.pricing import count_gpus
from holdfast.vocabulary.kubernetes import PROVISIONING_API, api_path
from holdfast.vocabulary.pools import GPU_RESOURCE, Effect, Taint, tolerates

PROVISIONING = api_path(PROVISIONING_API)


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterSnapshot:
    """The objects that explain why a job waits."""

    taken_s: float = field(default_factory=time.time)
    """Unix time of the snapshot."""
    nodes: list[Object] = field(default_factory=list)
    pods: list[Object] = field(default_factory=list)
    """Every pod of the cluster."""
    events: list[Object] = field(default_factory=list)
    claims: list[Object] = field(default_factory=list)
    """PersistentVolumeClaims."""
    requests: list[Object] = field(default_factory=list)
    """ProvisioningRequests: the queue of flex-start."""
    workloads: list[Object] = field(default_factory=list)
    """Kueue's records of jobs."""
    local_queues: list[Object] = field(default_factory=list)
    cluster_queues: list[Object] = field(default_factory=list)

    def within(self, namespace: str) -> "ClusterSnapshot":
        """Return all pods, and the other objects of this namespace or of none."""
        lists: dict[str, list[Object]] = {}
        for column in fields(self):
            if column.name in ("pods", "taken_s"):
                continue
            objects: list[Object] = getattr(self, column.name)
            lists[column.name] = [
                body
                for body in objects
                if body["metadata"].get("namespace", namespace) == namespace
            ]
        return replace(self, **lists)


def take_snapshot(api: Api, namespace: str = "") -> ClusterSnapshot:
    """List everything that explains the jobs of a namespace, or of all, with one request each."""
    return ClusterSnapshot(
        nodes=list(api.items("/api/v1/nodes")),
        pods=_list_pods(api, namespace),
        events=list(api.items(path_in("/api/v1", "events", namespace))),
        claims=list(api.items(path_in("/api/v1", "persistentvolumeclaims", namespace))),
        requests=list(api.items(path_in(PROVISIONING, "provisioningrequests", namespace))),
        workloads=list(api.items(path_in(KUEUE, "workloads", namespace))),
        local_queues=list(api.items(path_in(KUEUE, "localqueues", namespace))),
        cluster_queues=list(api.items(f"{KUEUE}/clusterqueues")),
    )


def _list_pods(api: Api, namespace: str) -> list[Object]:
    """List the pods of the cluster, or of the namespace for users without the right to more.

    The GPUs that other teams use then look free.
    """
    try:
        return list(api.items("/api/v1/pods"))
    except ApiError as error:
        if error.status != 403 or not namespace:
            raise
        return list(api.items(path_in("/api/v1", "pods", namespace)))


def events_about(events: Iterable[Object], uids: Container[str], *reasons: str) -> list[Object]:
    """Return the events about these objects, oldest first; without reasons all of them."""
    matches: list[Object] = []
    for event in events:
        about = event.get("involvedObject", {}).get("uid")
        if about in uids and (not reasons or event.get("reason") in reasons):
            matches.append(event)
    return sorted(matches, key=get_time)


def newest_event(events: Iterable[Object], uids: Container[str], *reasons: str) -> Object | None:
    return next(reversed(events_about(events, uids, *reasons)), None)


def get_time(event: Object) -> str:
    """Return the time of an event as Kubernetes writes it, which sorts as text.

    Schedulers write the newer kind of event, other components the older one.
    """
    series = event.get("series") or {}
    return (
        series.get("lastObservedTime")
        or event.get("lastTimestamp")
        or event.get("eventTime")
        or event["metadata"]["creationTimestamp"]
    )


def times_seen(event: Object) -> int:
    series = event.get("series") or {}
    return int(series.get("count") or event.get("count") or 1)


def get_message(event: Object) -> str:
    return str(event.get("message") or "")


_STATE_PREFIX = "node."  # taints of a state (not-ready, unschedulable), not of a pool


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """The nodes that a pod fits, and their GPUs."""

    selector: str
    selected: int
    """Nodes that the selector matches."""
    blocking_taint: tuple[str, int] | None
    """The taint that keeps the pod from every selected node, and the number of these nodes."""
    pod_gpus: int
    free: int
    total: int
    most_free: int
    """Free GPUs of the node that has most of them: a pod cannot use two nodes."""


def fit(pod_spec: Object, nodes: list[Object], pods: list[Object]) -> Fit:
    """Find the nodes that the pod selects and tolerates, and count their free GPUs."""
    selector: dict[str, str] = pod_spec.get("nodeSelector", {})
    selected: list[Object] = []
    for node in nodes:
        labels = node["metadata"].get("labels", {})
        if selector.items() <= labels.items():
            selected.append(node)
    taints: Counter[str] = Counter()
    gpus: dict[str, int] = {}
    for node in selected:
        taint = find_blocking_taint(pod_spec, node)
        if taint:
            taints[taint] += 1
        else:
            allocatable = node["status"].get("allocatable", {})
            gpus[node["metadata"]["name"]] = int(allocatable.get(GPU_RESOURCE, 0))
    free = Counter(gpus)
    for pod in pods:
        node_name = pod["spec"].get("nodeName")
        if node_name in gpus and pod["status"].get("phase") in ("Pending", "Running"):
            free[node_name] -= count_gpus(pod["spec"])
    frequent = taints.most_common(1)
    return Fit(
        selector=", ".join(f"{key}={value}" for key, value in selector.items()) or "any node",
        selected=len(selected),
        blocking_taint=frequent[0] if frequent and not gpus else None,
        pod_gpus=count_gpus(pod_spec),
        free=free.total(),
        total=sum(gpus.values()),
        most_free=max(free.values(), default=0),
    )


def find_blocking_taint(pod_spec: Object, node: Object) -> str:
    """Return the first taint of a pool that the pod does not tolerate, as `key=value:effect`."""
    tolerations = pod_spec.get("tolerations", ())
    for body in node["spec"].get("taints", ()):
        if body["effect"] not in ("NoSchedule", "NoExecute"):
            continue
        if body["key"].startswith(_STATE_PREFIX):
            continue
        taint = Taint(
            key=body["key"],
            value=body.get("value", ""),
            effect=Effect(body["effect"]),
        )
        if not any(tolerates(toleration, taint) for toleration in tolerations):
            return str(taint)
    return ""
