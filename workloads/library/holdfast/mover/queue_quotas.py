"""Reads how many GPUs Kueue's queues lend, and how many of them no job has."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.clients.api import Api, Object
from holdfast.support.values import quantity
from holdfast.vocabulary.kubernetes import KUEUE_API, api_path
from holdfast.vocabulary.pools import GPU_RESOURCE

KUEUE = api_path(KUEUE_API)


@dataclass(
    frozen=True,
    kw_only=True,
    slots=True,
)
class FlavorQuota:
    """The GPUs of one flavor in one ClusterQueue."""

    nominal: int
    borrowable: int | None
    """GPUs that it may use beyond its own; None for no limit."""
    used: int


@dataclass(
    frozen=True,
    kw_only=True,
    slots=True,
)
class Quotas:
    queues: Mapping[tuple[str, str], str]
    """Namespace and LocalQueue -> ClusterQueue."""
    cohorts: Mapping[str, str]
    """ClusterQueue -> its cohort; empty without one."""
    flavors: Mapping[tuple[str, str], FlavorQuota]
    """ClusterQueue and flavor -> its GPUs."""
    node_labels: Mapping[str, Mapping[str, str]]
    """Flavor -> labels of its nodes."""

    def find_queue(
        self,
        namespace: str,
        local_queue: str,
    ) -> str:
        return self.queues.get((namespace, local_queue), "")

    def list_flavors(self, queue: str) -> list[str]:
        return [flavor for name, flavor in self.flavors if name == queue]

    def count_free(
        self,
        queue: str,
        flavor: str,
    ) -> int:
        """Returns the GPUs that Kueue would lend to the next job of the queue."""
        queue_quota = self.flavors.get((queue, flavor))
        if queue_quota is None:
            return 0
        cohort = self.cohorts.get(queue, "")
        if not cohort:
            return max(0, queue_quota.nominal - queue_quota.used)
        free = 0
        for (name, other_flavor), quota in self.flavors.items():
            if other_flavor == flavor and self.cohorts.get(name) == cohort:
                free += quota.nominal - quota.used
        if queue_quota.borrowable is not None:
            limit = queue_quota.nominal + queue_quota.borrowable
            free = min(free, limit - queue_quota.used)
        return max(0, free)

    def fits(
        self,
        pod_sets: Iterable[Object],
        flavor: str,
    ) -> bool:
        """Returns whether the pods may run on nodes of the flavor."""
        labels = self.node_labels.get(flavor, {})
        for pod_set in pod_sets:
            template = pod_set.get("template") or {}
            pod_spec = template.get("spec") or {}
            selector = pod_spec.get("nodeSelector") or {}
            for key, value in labels.items():
                if selector.get(key, value) != value:
                    return False
        return True


def read_quotas(api: Api, namespaces: Iterable[str]) -> Quotas:
    queues: dict[tuple[str, str], str] = {}
    for namespace in namespaces:
        for local_queue in api.items(f"{KUEUE}/namespaces/{namespace}/localqueues"):
            name = local_queue["metadata"]["name"]
            queues[namespace, name] = local_queue["spec"]["clusterQueue"]
    cohorts: dict[str, str] = {}
    flavors: dict[tuple[str, str], FlavorQuota] = {}
    for cluster_queue in api.items(f"{KUEUE}/clusterqueues"):
        name = cluster_queue["metadata"]["name"]
        cohorts[name] = cluster_queue["spec"].get("cohortName") or ""
        for flavor, quota in _list_flavors(cluster_queue):
            flavors[name, flavor] = quota
    node_labels: dict[str, Mapping[str, str]] = {}
    for flavor in api.items(f"{KUEUE}/resourceflavors"):
        name = flavor["metadata"]["name"]
        node_labels[name] = flavor["spec"].get("nodeLabels") or {}
    return Quotas(
        queues=queues,
        cohorts=cohorts,
        flavors=flavors,
        node_labels=node_labels,
    )


def _list_flavors(cluster_queue: Object) -> Iterable[tuple[str, FlavorQuota]]:
    used: dict[str, int] = {}
    status = cluster_queue.get("status") or {}
    for flavor in status.get("flavorsReservation") or ():
        used[flavor["name"]] = _find_gpus(flavor["resources"], "total") or 0
    for group in cluster_queue["spec"].get("resourceGroups") or ():
        for flavor in group["flavors"]:
            name = flavor["name"]
            resources = flavor["resources"]
            quota = FlavorQuota(
                nominal=_find_gpus(resources, "nominalQuota") or 0,
                borrowable=_find_gpus(resources, "borrowingLimit"),
                used=used.get(name, 0),
            )
            yield name, quota


def _find_gpus(resources: Iterable[Mapping[str, Any]], key: str) -> int | None:
    for resource in resources:
        if resource["name"] != GPU_RESOURCE:
            continue
        amount = resource.get(key)
        if amount is not None:
            return int(quantity(amount) or 0)
    return None


def count_gpus(pod_sets: Sequence[Object]) -> int:
    """Returns the GPUs of all pods."""
    gpus = 0
    for pod_set in pod_sets:
        pods = int(pod_set.get("count") or 1)
        gpus += pods * count_pod_gpus(pod_set)
    return gpus


def count_pod_gpus(pod_set: Object) -> int:
    """Returns the GPUs of one pod."""
    template = pod_set.get("template") or {}
    pod_spec = template.get("spec") or {}
    gpus = 0
    for container in pod_spec.get("containers") or ():
        resources = container.get("resources") or {}
        for field in ("limits", "requests"):
            amounts = resources.get(field) or {}
            if GPU_RESOURCE in amounts:
                gpus += int(quantity(amounts[GPU_RESOURCE]) or 0)
                break
    return gpus
