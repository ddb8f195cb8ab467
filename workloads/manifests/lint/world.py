"""Names that objects of one run share: a PDB and its pods, a priority class and its users."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from workloads.manifests.lint.objects import Object, Pod, as_int, as_map, dig

# Made by Kubernetes itself and by GKE.
SYSTEM_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


class World:
    """Index over all objects that were read together."""

    def __init__(self, objects: Iterable[Object] = ()) -> None:
        self.by_kind: dict[str, list[Object]] = defaultdict(list)
        for obj in objects:
            self.by_kind[obj.kind].append(obj)

    @property
    def priorities(self) -> dict[str, int]:
        """PriorityClass -> value."""
        found = {obj.name: as_int(obj.body.get("value")) or 0 for obj in self.by_kind["PriorityClass"]}
        return SYSTEM_PRIORITIES | found

    def pods(self) -> list[Pod]:
        return [pod for listed in list(self.by_kind.values()) for obj in listed for pod in obj.pods]

    def selected(self, namespace: str, selector: Any) -> list[Pod]:
        """Pods of a namespace that a label selector with matchLabels chooses."""
        wanted = as_map(dig(selector, "matchLabels"))
        return [pod for pod in self.pods() if pod.owner.namespace == namespace and wanted.items() <= pod.labels.items()]

    def named(self, kind: str, name: str, namespace: str | None = None) -> Object | None:
        found = (o for o in self.by_kind.get(kind, []) if o.name == name)
        return next((o for o in found if namespace is None or o.namespace == namespace), None)
