"""What the mover sees: the cluster as the exporter reads it, which jobs ended, and on which
machines they ran. Pure.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from holdfast.controllers.cluster import Cluster
from holdfast.controllers.cluster_objects import SPOT, controller_of, ended_s
from holdfast.controllers.watch import Kind, uid
from holdfast.cost.receipt import ANNOTATION
from holdfast.ledger.events import Event
from holdfast.mover.movable_jobs import Movable
from holdfast.mover.mover import Pods, Seen
from holdfast.mover.node_usage import NodeUsage, NodeUsages
from holdfast.support.values import unix_s
from holdfast.vocabulary.kubernetes import JOB_API, JOBSET_API, api_path
from holdfast.vocabulary.roles import JOB_NAMESPACES

# So long after its end a job's last lines may still be on their way.
SETTLE_END_S = 90.0


@dataclass(frozen=True, slots=True)
class Ended:
    namespace: str
    name: str
    began_s: float
    ended_s: float
    node_usage: NodeUsage | None = None
    """What it ran on; None where its pods were not watched."""


# Pods that are gone: their last lines may still come.
REMEMBERED = 5_000


@dataclass
class View(Cluster):
    over: dict[str, dict[str, Ended]] = field(default_factory=dict[str, dict[str, Ended]])
    """By the path of its watch, then by uid: jobs that ended and have no receipt."""
    node_usages: NodeUsages = field(default_factory=NodeUsages)
    parents: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    """By the path of its watch: uid of a Job or JobSet -> uid of what made it, else empty."""
    writers: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    """Namespace and name of a pod -> uid of what controls it. Labels are its author's own words."""

    def pod(self, change: str, found: Mapping[str, Any]) -> None:
        super().pod(change, found)
        meta = found["metadata"]
        key = meta["namespace"], meta.get("name", "")
        self.writers.pop(key, None)  # the newest at the end
        self.writers[key] = controller_of(found)
        while len(self.writers) > max(REMEMBERED, 2 * len(self.pods)):
            del self.writers[next(iter(self.writers))]

    def job(self, path: str, change: str, found: Mapping[str, Any]) -> None:
        parents = self.parents.setdefault(path, {})
        over = self.over.setdefault(path, {})
        meta = found["metadata"]
        over_s = ended_s(found)
        # The annotation is the memory of a receipt: no job gets a second one.
        receipted = ANNOTATION in (meta.get("annotations") or {})
        over.pop(meta["uid"], None)
        if change == "DELETED":
            parents.pop(meta["uid"], None)
            return
        parents[meta["uid"]] = controller_of(found)
        # A JobSet or a CronJob speaks for the Jobs that it made.
        if over_s and not receipted and not meta.get("ownerReferences"):
            over[meta["uid"]] = Ended(
                meta["namespace"], meta["name"], unix_s(meta.get("creationTimestamp")), over_s
            )

    def root(self, uid: str) -> str:
        """Of a Job that a JobSet made, the JobSet; empty for what is neither."""
        for parents in self.parents.values():
            if uid in parents:
                return parents[uid] or uid
        return ""

    def owner_of(self, namespace: str, pod: str) -> str:
        """Uid of the Job or JobSet whose pod this is; empty where it is not known."""
        return self.root(self.writers.get((namespace, pod), ""))

    @property
    def uids(self) -> set[str]:
        """Of all Jobs and JobSets."""
        return {uid for parents in self.parents.values() for uid in parents}

    def passed(self, now_s: float) -> None:
        """To be called in each pass, also of a replica without the lease: it may have to price what
        it saw.
        """
        self.node_usages.passed(
            ((self.root(pod.owner), pod) for pod in self.pods.values()), self.nodes, now_s
        )
        self.lines(now_s)  # the exporter writes them

    def ended(self, now_s: float) -> list[Ended]:
        """Jobs that are due for their receipt, each once."""
        due: list[Ended] = []
        for held in self.over.values():
            ripe = [uid for uid, one in held.items() if now_s - one.ended_s >= SETTLE_END_S]
            due += [
                replace(held.pop(uid), node_usage=self.node_usages.held.pop(uid, None))
                for uid in ripe
            ]
        return due

    def without_node(self) -> dict[str, float]:
        """Uid of a Job or JobSet -> since when a pod of it has found no node, of those that wait
        now.
        """
        found: dict[str, float] = {}
        for pod in self.pods.values():
            if pod.waits_since_s and (job := self.root(pod.owner)):
                found[job] = min(pod.waits_since_s, found.get(job, pod.waits_since_s))
        return found

    def seen(self, events: Callable[[Movable], Iterable[Event]]) -> Seen:
        """What is judged by."""
        pods: dict[str, Pods] = {}
        for pod in self.pods.values():
            job = self.root(pod.owner)
            if job:
                before = pods.get(job, Pods())
                placed = bool(pod.node) and not pod.disrupted
                pods[job] = Pods(
                    known=before.known + 1,
                    placed=before.placed + placed,
                    accelerator=pod.accelerator,
                )
        return Seen(
            pods=pods,
            spot_machines=[
                n.machine_type for n in self.nodes.values() if n.capacity == SPOT and not n.taken
            ],
            waiting_for_spot=[
                p.accelerator for p in self.pods.values() if p.capacity == SPOT and p.waits_since_s
            ],
            events=events,
        )

    def forget_all_but(self, kind: str, keys: set[Any]) -> None:
        if not kind.startswith("/"):
            return super().forget_all_but(kind, keys)
        # empty until there was one
        for held in (self.over.get(kind, {}), self.parents.get(kind, {})):
            for key in held.keys() - keys:
                del held[key]
        return None


def ending(namespaces: Iterable[str] = JOB_NAMESPACES) -> list[Kind]:
    """Jobs and JobSets of these namespaces."""
    paths: list[str] = []
    for version, kind in ((JOB_API, "jobs"), (JOBSET_API, "jobsets")):
        for namespace in namespaces:
            paths.append(f"{api_path(version)}/namespaces/{namespace}/{kind}")
    return [
        Kind(path, path, lambda view, path=path: partial(view.job, path), uid, optional=True)
        for path in paths
    ]
