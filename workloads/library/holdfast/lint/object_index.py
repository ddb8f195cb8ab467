"""Finds objects of one run by the names and labels that they share.

Rules ask it for a PDB's pods, a priority class's users, a queue's quota. Each lookup is indexed.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

from holdfast.lint.accessors import list_names
from holdfast.lint.objects import (
    DEFAULT_NAMESPACE,
    Object,
    Pod,
    as_int,
    as_list,
    as_map,
    as_maps,
    as_text,
    as_texts,
    dig,
)
from holdfast.lint.references import list_references
from holdfast.support.values import quantity
from holdfast.vocabulary.pools import GPU_RESOURCE

SCALER = "HorizontalPodAutoscaler"
QUEUED_RESOURCES = (GPU_RESOURCE, "cpu", "memory")
# Made by Kubernetes itself and by GKE.
SYSTEM_PRIORITIES = {
    "system-cluster-critical": 2_000_000_000,
    "system-node-critical": 2_000_001_000,
}


class ObjectIndex:
    """Index over all objects that were read together.

    An object without a namespace counts as one of `default`.
    """

    def __init__(self, objects: Iterable[Object] = ()) -> None:
        self.by_kind: dict[str, list[Object]] = defaultdict(list)
        self._by_name: dict[tuple[str, str], list[Object]] = defaultdict(list)
        self._by_namespace: dict[tuple[str, str], list[Object]] = defaultdict(list)
        self._pods_by_label: dict[tuple[str, str, str], list[Pod]] = defaultdict(list)
        self._pods_by_file: dict[tuple[str, str], list[Pod]] = defaultdict(list)
        for obj in objects:
            self._add(obj)

    def _add(self, obj: Object) -> None:
        self.by_kind[obj.kind].append(obj)
        self._by_name[obj.kind, obj.name].append(obj)
        namespace = obj.namespace or DEFAULT_NAMESPACE
        self._by_namespace[obj.kind, namespace].append(obj)
        for pod in obj.pods:
            self._pods_by_file[obj.file, namespace].append(pod)
            # The empty label finds all pods of the namespace.
            for key, value in ("", ""), *pod.all_labels.items():
                self._pods_by_label[namespace, key, str(value)].append(pod)

    def list_namespace(self, kind: str, namespace: str) -> list[Object]:
        return self._by_namespace.get((kind, namespace or DEFAULT_NAMESPACE), [])

    def list_names(self, kind: str) -> list[str]:
        """Lists the names of a kind, of any namespace."""
        names: list[str] = []
        for obj in self.by_kind.get(kind, []):
            names.append(obj.name)
        return names

    def find_all(self, kind: str, name: str) -> list[Object]:
        """Finds objects in any namespace; several where the files are of several clusters."""
        return self._by_name.get((kind, name), [])

    def find(self, kind: str, name: str, namespace: str | None = None) -> Object | None:
        for obj in self.find_all(kind, name):
            if namespace is None or _is_same_namespace(obj.namespace, namespace):
                return obj
        return None

    def select_pods(self, namespace: str, selector: Any) -> list[Pod]:
        """Returns the pods of a namespace that a selector matches; an empty one matches all."""
        # By the rarest label, so that not every selector is compared with every pod.
        namespace = namespace or DEFAULT_NAMESPACE
        pods = self._pods_by_label.get((namespace, "", ""), [])
        for label in match_labels(selector).items():
            labeled_pods = self._pods_by_label.get((namespace, *label), [])
            pods = min(pods, labeled_pods, key=len)
        return [pod for pod in pods if selects(selector, pod)]

    def list_pods_near(self, obj: Object) -> list[Pod]:
        """Lists the pods of the object's namespace in its own file."""
        return self._pods_by_file.get((obj.file, obj.namespace or DEFAULT_NAMESPACE), [])

    def find_selecting(self, kind: str, pod: Pod) -> list[Object]:
        """Finds objects of a kind in the pod's namespace whose selector matches the pod."""
        objects = self.list_namespace(kind, pod.owner.namespace)
        return [obj for obj in objects if selects(get_selector(obj), pod)]

    def find_scalers(self, workload: Object) -> list[Object]:
        """Finds the autoscalers of a workload."""
        scalers: list[Object] = []
        for scaler in self.list_namespace(SCALER, workload.namespace):
            kind = dig(scaler.spec, "scaleTargetRef", "kind")
            name = dig(scaler.spec, "scaleTargetRef", "name")
            if kind == workload.kind and name == workload.name:
                scalers.append(scaler)
        return scalers

    @cached_property
    def pods(self) -> list[Pod]:
        """The pods of all objects."""
        pods: list[Pod] = []
        for objects in self.by_kind.values():
            for obj in objects:
                pods += obj.pods
        return pods

    @cached_property
    def pods_by_account(self) -> dict[str, list[Pod]]:
        """Name of a service account -> the pods that run as one of this name."""
        pods: dict[str, list[Pod]] = defaultdict(list)
        for pod in self.pods:
            pods[pod.account].append(pod)
        return pods

    @cached_property
    def pod_references(self) -> set[tuple[str, str, str]]:
        """Kind, namespace and name of each object that a pod names."""
        names: set[tuple[str, str, str]] = set()
        for pod in self.pods:
            namespace = pod.owner.namespace or DEFAULT_NAMESPACE
            for reference in list_references(pod):
                names.add((reference.kind, namespace, reference.name))
        return names

    @cached_property
    def priorities(self) -> dict[str, int]:
        """PriorityClass -> value."""
        priorities = dict(SYSTEM_PRIORITIES)
        for obj in self.by_kind["PriorityClass"]:
            priorities[obj.name] = as_int(obj.body.get("value")) or 0
        return priorities

    def find_cluster_queues(self, obj: Object, queue: str) -> list[Object]:
        """Finds the ClusterQueues behind a LocalQueue of the object's namespace."""
        local_queue = self.find("LocalQueue", queue, obj.namespace)
        if local_queue is None:
            return []
        return self.find_all("ClusterQueue", as_text(local_queue.spec.get("clusterQueue")))

    def list_flavors(self, obj: Object, queue: str) -> list[Object] | None:
        """Lists the flavors behind a LocalQueue; None where the files do not have all of them."""
        names: list[str] = []
        for cluster_queue in self.find_cluster_queues(obj, queue):
            for group in as_list(cluster_queue.spec.get("resourceGroups")):
                names += list_names(dig(group, "flavors"))
        flavors: list[Object] = []
        for name in names:
            flavors += self.find_all("ResourceFlavor", name)
        return flavors if names and len(flavors) >= len(names) else None

    def largest_quota(self, queues: Iterable[Object], resource: str) -> float | None:
        """Returns what one job can get on one flavor of any of these ClusterQueues.

        Queues of a cohort lend what all of them have. None where no queue covers the resource.
        """
        quotas: list[float] = []
        for queue in queues:
            quotas.extend(self._list_quotas(queue, resource))
        return max(quotas, default=None)

    def _list_quotas(self, queue: Object, resource: str) -> Iterator[float]:
        cohort = _cohort(queue)
        for flavor, quota in _quotas(queue, resource).items():
            yield self._cohort_quotas[cohort, resource, flavor] if cohort else quota

    @cached_property
    def _cohort_quotas(self) -> dict[tuple[str, str, str], float]:
        quotas: dict[tuple[str, str, str], float] = defaultdict(float)
        for queue in self.by_kind["ClusterQueue"]:
            for resource in QUEUED_RESOURCES:
                for flavor, quota in _quotas(queue, resource).items():
                    quotas[_cohort(queue), resource, flavor] += quota
        return quotas

    @cached_property
    def patch_files(self) -> set[str]:
        """Files that a kustomization names as patches."""
        files: set[str] = set()
        for obj in self.by_kind["Kustomization"]:
            folder = PurePosixPath(obj.file).parent
            paths = as_texts(obj.body.get("patchesStrategicMerge"))
            for patch in as_list(obj.body.get("patches")):
                paths.append(as_text(dig(patch, "path")))
            for path in paths:
                if path and "\n" not in path:
                    files.add((folder / path).as_posix())
        return files

    def is_patch(self, obj: Object) -> bool:
        """Returns whether this is a patch: a part that is merged into an object with the rest."""
        if obj.file in self.patch_files:
            return True
        containers = 0
        for pod in obj.pods:
            for container in pod.containers:
                containers += 1
                if "image" in container.body:
                    return False
        return containers > 0


def _is_same_namespace(namespace: str, other: str) -> bool:
    return (namespace or DEFAULT_NAMESPACE) == (other or DEFAULT_NAMESPACE)


def get_selector(obj: Object) -> dict[str, Any]:
    """Returns the selector of an object in the form of a LabelSelector."""
    if obj.kind == "Service":
        return {"matchLabels": as_map(obj.spec.get("selector"))}
    if obj.kind == "NetworkPolicy":
        return as_map(obj.spec.get("podSelector"))
    return as_map(obj.spec.get("selector"))


def selects(selector: Any, pod: Pod) -> bool:
    """Returns whether a selector matches a pod; an empty one matches every pod."""
    labels = _as_texts(pod.all_labels)
    if not match_labels(selector).items() <= labels.items():
        return False
    for expression in as_maps(dig(selector, "matchExpressions")):
        operator = as_text(expression.get("operator"))
        value = labels.get(as_text(expression.get("key")))
        values = [str(item) for item in as_list(expression.get("values"))]
        if not holds(operator, value, values):
            return False
    return True


def holds(operator: str, value: str | None, values: Collection[str]) -> bool:
    """Returns whether an expression holds for a label; one with an unknown operator does."""
    match operator:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case _:
            return True


def match_labels(selector: Any) -> dict[str, str]:
    return _as_texts(as_map(dig(selector, "matchLabels")))


def _as_texts(labels: dict[str, Any]) -> dict[str, str]:
    return {key: str(value) for key, value in labels.items()}


def _cohort(queue: Object) -> str:
    return as_text(queue.spec.get("cohortName")) or as_text(queue.spec.get("cohort"))


def _quotas(queue: Object, resource: str) -> dict[str, float]:
    """Flavor -> quota, for flavors that lend any."""
    quotas: dict[str, float] = {}
    for group in as_list(queue.spec.get("resourceGroups")):
        for flavor in as_list(dig(group, "flavors")):
            name = as_text(dig(flavor, "name"))
            for entry in as_list(dig(flavor, "resources")):
                if dig(entry, "name") == resource:
                    quotas[name] = quantity(dig(entry, "nominalQuota")) or 0.0
    return quotas
