"""Names that objects of one run share: a PDB and its pods, a priority class and its users. Each
lookup is indexed.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

from holdfast.lint.objects import Object, Pod, as_int, as_list, as_map, as_maps, as_text, dig
from holdfast.support.values import quantity
from holdfast.vocabulary.pools import GPU_RESOURCE

QUEUED_RESOURCES = (GPU_RESOURCE, "cpu", "memory")
# Made by Kubernetes itself and by GKE.
SYSTEM_PRIORITIES = {
    "system-cluster-critical": 2_000_000_000,
    "system-node-critical": 2_000_001_000,
}


class World:
    """Index over all objects that were read together."""

    def __init__(self, objects: Iterable[Object] = ()) -> None:
        self.by_kind: dict[str, list[Object]] = defaultdict(list)
        self._named: dict[tuple[str, str], list[Object]] = defaultdict(list)
        self._within: dict[tuple[str, str], list[Object]] = defaultdict(list)
        self._labelled: dict[tuple[str, str, str], list[Pod]] = defaultdict(list)
        self._with_pods: set[tuple[str, str]] = set()
        for obj in objects:
            self.by_kind[obj.kind].append(obj)
            self._named[obj.kind, obj.name].append(obj)
            self._within[obj.kind, obj.namespace].append(obj)
            if obj.pods:
                self._with_pods.add((obj.file, obj.namespace))
            for pod in obj.pods:
                # the first finds all pods of the namespace
                for key, value in ("", ""), *pod.labels.items():
                    self._labelled[obj.namespace, key, str(value)].append(pod)

    def within(self, kind: str, namespace: str) -> list[Object]:
        return self._within.get((kind, namespace), [])

    def all_named(self, kind: str, name: str) -> list[Object]:
        """In any namespace; several where the files are of several clusters."""
        return self._named.get((kind, name), [])

    def named(self, kind: str, name: str, namespace: str | None = None) -> Object | None:
        return next(
            (
                o
                for o in self.all_named(kind, name)
                if namespace is None or o.namespace == namespace
            ),
            None,
        )

    def selected(self, namespace: str, selector: Any) -> list[Pod]:
        """Pods of a namespace that a selector chooses; all of them where it has none."""
        wanted = match_labels(selector)
        # By the rarest label, so that not every selector is compared with every pod.
        fewest = min(
            (self._labelled.get((namespace, *item), []) for item in (("", ""), *wanted.items())),
            key=len,
        )
        return [pod for pod in fewest if selects(selector, pod)]

    def has_pods_near(self, obj: Object) -> bool:
        """Whether its own file has pods of its namespace."""
        return (obj.file, obj.namespace) in self._with_pods

    def selecting(self, kind: str, pod: Pod) -> list[Object]:
        """Objects of a kind in the pod's namespace whose selector takes it; an empty one takes
        every pod.
        """
        return [
            obj for obj in self.within(kind, pod.owner.namespace) if selects(selector_of(obj), pod)
        ]

    @cached_property
    def priorities(self) -> dict[str, int]:
        """PriorityClass -> value."""
        found = {}
        for obj in self.by_kind["PriorityClass"]:
            found[obj.name] = as_int(obj.body.get("value")) or 0
        return SYSTEM_PRIORITIES | found

    def most_lent(self, queues: Iterable[Object], resource: str) -> float | None:
        """What one job can get on one flavor of any of these ClusterQueues; of a cohort, what all
        its queues have.

        None where no queue covers the resource.
        """
        return max((lent for queue in queues for lent in self._lent(queue, resource)), default=None)

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
            found |= {
                (folder / path).as_posix()
                for path in map(as_text, paths)
                if path and "\n" not in path
            }
        return found

    def is_patch(self, obj: Object) -> bool:
        """A piece of an object, to be merged into another, which may have what it lacks."""
        images = []
        for pod in obj.pods:
            for container in pod.containers:
                images.append("image" in container.body)
        return obj.file in self.patch_files or (bool(images) and not any(images))


def selector_of(obj: Object) -> dict[str, Any]:
    """In the form of a LabelSelector."""
    if obj.kind == "Service":
        return {"matchLabels": as_map(obj.spec.get("selector"))}
    return as_map(obj.spec.get("podSelector" if obj.kind == "NetworkPolicy" else "selector"))


def selects(selector: Any, pod: Pod) -> bool:
    """By labels and expressions; an empty selector takes every pod."""
    labels = {key: str(value) for key, value in pod.labels.items()}
    listed = as_maps(dig(selector, "matchExpressions"))
    return match_labels(selector).items() <= labels.items() and all(
        holds(
            as_text(e.get("operator")),
            labels.get(as_text(e.get("key"))),
            [*map(str, as_list(e.get("values")))],
        )
        for e in listed
    )


def holds(operator: str, value: str | None, values: Collection[str]) -> bool:
    """Whether an expression of a selector holds for a label; one with an unknown operator does."""
    there = value is not None
    named = value in values
    return {
        "In": named,
        "NotIn": not named,
        "Exists": there,
        "DoesNotExist": not there,
    }.get(operator, True)


def match_labels(selector: Any) -> dict[str, str]:
    return {key: str(value) for key, value in as_map(dig(selector, "matchLabels")).items()}


def _cohort(queue: Object) -> str:
    return as_text(queue.spec.get("cohortName")) or as_text(queue.spec.get("cohort"))


def _quotas(queue: Object, resource: str) -> dict[str, float]:
    """Flavor -> quota, for flavors that lend any."""
    flavors = []
    for group in as_list(queue.spec.get("resourceGroups")):
        for f in as_list(dig(group, "flavors")):
            flavors.append(f)
    return {
        as_text(dig(flavor, "name")): quantity(dig(lent, "nominalQuota")) or 0.0
        for flavor in flavors
        for lent in as_list(dig(flavor, "resources"))
        if dig(lent, "name") == resource
    }
