"""What the mover sees: the cluster as the exporter reads it, which jobs ended, and on which machines they ran. Pure."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from holdfast.contract.kubernetes import JOB_API, JOBSET_API, api_path
from holdfast.contract.roles import JOB_NAMESPACES
from holdfast.exporter.cluster import Cluster
from holdfast.exporter.objects import SPOT
from holdfast.exporter.watch import Kind, uid
from holdfast.ledger.events import Event
from holdfast.mover import ends
from holdfast.mover.ends import Ended
from holdfast.mover.mover import Pods, Seen
from holdfast.mover.node_usage import NodeUsage, NodeUsages


@dataclass
class View(Cluster):
    over: dict[str, dict[str, Ended]] = field(default_factory=dict[str, dict[str, Ended]])
    """By the path of its watch, then by uid: jobs that ended and have no receipt."""
    node_usages: NodeUsages = field(default_factory=NodeUsages)

    def passed(self, now_s: float) -> None:
        """To be called in each pass, also of one that only stands by: it may have to price what it saw."""
        self.node_usages.passed(self.pods.values(), self.nodes, now_s)
        self.lines(now_s)  # the exporter writes them

    def ended(self, now_s: float) -> list[tuple[Ended, NodeUsage | None]]:
        """Jobs that are due for their receipt, each once, with what they ran on."""
        found = [one for held in self.over.values() for one in ends.due(held, now_s)]
        return [(one, self.node_usages.held.pop(one.name, None)) for one in found]

    def seen(self, events: Callable[[str], Iterable[Event]]) -> Seen:
        """What is judged by."""
        pods: dict[str, Pods] = {}
        for pod in self.pods.values():
            if pod.job:
                before = pods.get(pod.job, Pods())
                placed = bool(pod.node) and not pod.disrupted
                pods[pod.job] = Pods(known=before.known + 1, placed=before.placed + placed, accelerator=pod.accelerator)
        return Seen(
            pods=pods,
            spot_machines=[n.machine_type for n in self.nodes.values() if n.capacity == SPOT and not n.taken],
            waiting_for_spot=[p.accelerator for p in self.pods.values() if p.capacity == SPOT and p.waits_since_s],
            events=events,
        )

    def forget_all_but(self, kind: str, keys: set[Any]) -> None:
        if not kind.startswith("/"):
            return super().forget_all_but(kind, keys)
        held = self.over.get(kind, {})  # empty until something ended
        for key in held.keys() - keys:
            del held[key]
        return None


def ending(namespaces: Iterable[str] = JOB_NAMESPACES) -> list[Kind]:
    """Jobs and JobSets of these namespaces."""
    paths = [
        f"{api_path(version)}/namespaces/{namespace}/{kind}"
        for version, kind in ((JOB_API, "jobs"), (JOBSET_API, "jobsets"))
        for namespace in namespaces
    ]
    return [Kind(path, path, _taking(path), uid, optional=True) for path in paths]


def _taking(path: str) -> Callable[[View], partial[None]]:
    return lambda view: partial(ends.take, view.over.setdefault(path, {}))
