"""What a cluster holds that may keep a job from running: nodes, pods, events, queues. Nothing here judges."""

import time
from dataclasses import dataclass, field, fields, replace

from holdfast.clients.api import Api, Object
from holdfast.contract.kubernetes import PROVISIONING_API, api_path
from holdfast.jobs.job_snapshot import KUEUE, path_in

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
        """All pods and what has no namespace, and of the rest what lies in this one."""
        lists = [each.name for each in fields(self) if each.name not in ("others", "taken_s")]
        return replace(self, **{name: _lying_in(namespace, getattr(self, name)) for name in lists})


def _lying_in(namespace: str, found: list[Object]) -> list[Object]:
    return [each for each in found if each["metadata"].get("namespace", namespace) == namespace]


def take_snapshot(api: Api, namespace: str = "") -> ClusterSnapshot:
    """Everything that explains the jobs of a namespace, or of all: one request each."""
    return ClusterSnapshot(
        nodes=list(api.items("/api/v1/nodes")),
        others=list(api.items("/api/v1/pods")),
        events=list(api.items(path_in("/api/v1", "events", namespace))),
        claims=list(api.items(path_in("/api/v1", "persistentvolumeclaims", namespace))),
        requests=list(api.items(path_in(PROVISIONING, "provisioningrequests", namespace))),
        workloads=list(api.items(path_in(KUEUE, "workloads", namespace))),
        local_queues=list(api.items(path_in(KUEUE, "localqueues", namespace))),
        cluster_queues=list(api.items(f"{KUEUE}/clusterqueues")),
    )
