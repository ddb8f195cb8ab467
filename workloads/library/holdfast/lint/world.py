"""Names that objects of one run share: a PDB and its pods, a priority class and its users. Each lookup is indexed."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

from holdfast.contract.pools import GPU_RESOURCE
from holdfast.lint.objects import Object, Pod, as_int, as_list, as_map, as_text, dig, quantity

QUEUED_RESOURCES = (GPU_RESOURCE, "cpu", "memory")
# Made by Kubernetes itself and by GKE.
SYSTEM_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


class World:
    """Index over all objects that were read together."""

    def __init__(self, objects: Iterable[Object] = ()) -> None:
        self.by_kind: dict[str, list[Object]] = defaultdict(list)
        for obj in objects:
            self.by_kind[obj.kind].append(obj)
        self._selected: dict[tuple[str, str], list[Pod]] = {}

    @cached_property
    def priorities(self) -> dict[str, int]:
        """PriorityClass -> value."""
        found = {obj.name: as_int(obj.body.get("value")) or 0 for obj in self.by_kind["PriorityClass"]}
        return SYSTEM_PRIORITIES | found

    @cached_property
    def _pods(self) -> dict[str, list[Pod]]:
        found: dict[str, list[Pod]] = defaultdict(list)
        for listed in list(self.by_kind.values()):
            for obj in listed:
                found[obj.namespace] += obj.pods
        return found

    @cached_property
    def _labelled(self) -> dict[tuple[str, str, str], list[Pod]]:
        """(namespace, label, value) -> pods, in the order of the files."""
        found: dict[tuple[str, str, str], list[Pod]] = defaultdict(list)
        for namespace, pods in self._pods.items():
            for pod in pods:
                for key, value in pod.labels.items():
                    found[namespace, key, str(value)].append(pod)
        return found

    def pods_of(self, namespace: str) -> list[Pod]:
        return self._pods.get(namespace, [])

    def selected(self, namespace: str, selector: Any) -> list[Pod]:
        """Pods of a namespace that a label selector with matchLabels chooses."""
        wanted = match_labels(selector)
        key = (namespace, repr(sorted(wanted.items())))
        if key not in self._selected:
            # Of all pods with one of the labels, the rarest, and each label once: never every pod for every selector.
            each = [self._labelled.get((namespace, *item), []) for item in wanted.items()]
            fewest = min(each, key=len) if each else self.pods_of(namespace)
            self._selected[key] = [pod for pod in fewest if has_labels(pod, wanted)]
        return self._selected[key]

    def selecting(self, kind: str, pod: Pod) -> list[Object]:
        """Objects of a kind in the pod's namespace whose selector takes it; an empty one takes every pod."""
        namespace = pod.owner.namespace
        items = [("", ""), *((key, str(value)) for key, value in pod.labels.items())]
        found = (each for item in items for each in self._selectors.get((kind, namespace, *item), []))
        return [obj for obj in found if has_labels(pod, _wanted(obj))]

    @cached_property
    def _selectors(self) -> dict[tuple[str, str, str, str], list[Object]]:
        """(kind, namespace, first label and its value) -> objects with a selector."""
        found: dict[tuple[str, str, str, str], list[Object]] = defaultdict(list)
        for kind in ("NetworkPolicy", "PodDisruptionBudget"):
            for obj in self.by_kind[kind]:
                first = next(iter(_wanted(obj).items()), ("", ""))
                found[kind, obj.namespace, *first].append(obj)
        return found

    @cached_property
    def _names(self) -> dict[tuple[str, str], list[Object]]:
        found: dict[tuple[str, str], list[Object]] = defaultdict(list)
        for kind, listed in list(self.by_kind.items()):
            for obj in listed:
                found[kind, obj.name].append(obj)
        return found

    def named(self, kind: str, name: str, namespace: str | None = None) -> Object | None:
        return next((o for o in self.all_named(kind, name) if namespace is None or o.namespace == namespace), None)

    def all_named(self, kind: str, name: str) -> list[Object]:
        """In any namespace; several where the files are of several clusters."""
        return self._names.get((kind, name), [])

    @cached_property
    def _in_namespace(self) -> dict[tuple[str, str], list[Object]]:
        found: dict[tuple[str, str], list[Object]] = defaultdict(list)
        for kind, listed in list(self.by_kind.items()):
            for obj in listed:
                found[kind, obj.namespace].append(obj)
        return found

    def most_lent(self, queues: Iterable[Object], resource: str) -> float | None:
        """What one job can get on one flavor of any of these ClusterQueues; of a cohort, what all its queues have.

        None where no queue covers the resource.
        """
        found = [gpus for queue in queues for gpus in self._lent(queue, resource)]
        return max(found, default=None)

    def _lent(self, queue: Object, resource: str) -> Iterator[float]:
        cohort = _cohort(queue)
        for flavor, quota in _quotas(queue, resource).items():
            yield self._cohort_quotas[cohort, resource, flavor] if cohort else quota

    @cached_property
    def _cohort_quotas(self) -> dict[tuple[str, str, str], float]:
        found: dict[tuple[str, str, str], float] = defaultdict(float)
        for queue in self.by_kind["ClusterQueue"]:
            for resource in QUEUED_RESOURCES:
                for flavor, quota in _quotas(queue, resource).items():
                    found[_cohort(queue), resource, flavor] += quota
        return found

    @cached_property
    def patch_files(self) -> set[str]:
        """Files that a kustomization names as patches."""
        found: set[str] = set()
        for obj in self.by_kind["Kustomization"]:
            folder = PurePosixPath(obj.file).parent
            paths = [dig(patch, "path") for patch in as_list(obj.body.get("patches"))]
            paths += as_list(obj.body.get("patchesStrategicMerge"))
            found |= {(folder / path).as_posix() for path in map(as_text, paths) if path and "\n" not in path}
        return found

    def is_patch(self, obj: Object) -> bool:
        """A piece of an object, to be merged into another, which may have what it lacks."""
        images = ["image" in container.body for pod in obj.pods for container in pod.containers]
        return obj.file in self.patch_files or (bool(images) and not any(images))

    def within(self, kind: str, namespace: str) -> list[Object]:
        return self._in_namespace.get((kind, namespace), [])


def has_labels(pod: Pod, wanted: dict[str, str]) -> bool:
    return all(key in pod.labels and str(pod.labels[key]) == value for key, value in wanted.items())


def _wanted(obj: Object) -> dict[str, str]:
    return match_labels(obj.spec.get("podSelector" if obj.kind == "NetworkPolicy" else "selector"))


def match_labels(selector: Any) -> dict[str, str]:
    return {key: str(value) for key, value in as_map(dig(selector, "matchLabels")).items()}


def _cohort(queue: Object) -> str:
    return as_text(queue.spec.get("cohortName")) or as_text(queue.spec.get("cohort"))


def _quotas(queue: Object, resource: str) -> dict[str, float]:
    """Flavor -> quota, for flavors that lend any."""
    flavors = [f for group in as_list(queue.spec.get("resourceGroups")) for f in as_list(dig(group, "flavors"))]
    return {
        as_text(dig(flavor, "name")): quantity(dig(lent, "nominalQuota")) or 0.0
        for flavor in flavors
        for lent in as_list(dig(flavor, "resources"))
        if dig(lent, "name") == resource
    }
