"""What the cluster is like, from watch events of pods, nodes and disruption budgets.

Pure: objects as dicts in, samples out. Guarantee: memory follows the objects that exist, not
those that have been; of each object only the few fields below are kept.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.controllers import event_lines
from holdfast.controllers.cluster_objects import (
    BY_KUBELET,
    SPOT,
    Node,
    Pod,
    is_taken,
    read_node,
    read_pod,
    since_s,
)
from holdfast.controllers.event_lines import Line
from holdfast.controllers.queues import Queues
from holdfast.controllers.risk import Risk
from holdfast.controllers.sample import Sample, run_labels, sample
from holdfast.ledger.disruptions import disruption, eviction
from holdfast.support.values import unix_s
from holdfast.vocabulary.job_identity import JobIdentity
from holdfast.vocabulary.kubernetes import SYSTEM_NAMESPACES
from holdfast.vocabulary.roles import JOB_NAMESPACES

REMEMBERED = 2_000
# So long after a node is gone a pod may still show that it was a preemption.
# infra/decisions/0071
SETTLE_S = 10.0


@dataclass(slots=True)
class Cluster:
    clock: Callable[[], float] = time.time
    namespaces: Collection[str] = JOB_NAMESPACES
    """Of jobs."""
    nodes: dict[str, Node] = field(default_factory=dict[str, Node])
    pods: dict[str, Pod] = field(default_factory=dict[str, Pod])
    budgets: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    preempted: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    """(pool, zone) -> Spot nodes lost since the exporter began."""
    gone: dict[str, Node] = field(default_factory=dict[str, Node])
    """The last REMEMBERED nodes that were deleted."""
    risk: Risk = field(default_factory=Risk)
    queues: Queues = field(default_factory=Queues)
    _lines: list[Line] = field(default_factory=list[Line])

    def node(self, change: str, found: Mapping[str, Any]) -> None:
        name = found["metadata"]["name"]
        before = self.nodes.get(name)
        if change == "DELETED":
            if before and is_taken(found):
                self._take(name)
            self._mark_deleted(name)
            return
        now = read_node(found)
        if before is None:
            self._settle_deleted(name)
            self._lines.append(event_lines.node_up(name, now, self.clock()))
        self.nodes[name] = replace(now, taken=bool(before and before.taken))
        self.preempted.setdefault((now.pool, now.zone), 0)
        if now.taken:
            self._take(name)

    def pod(self, change: str, found: Mapping[str, Any]) -> None:
        if disruption(found)[0] == BY_KUBELET:
            # Often the first sign: the pod's condition comes before the node's.
            self._take((found.get("spec") or {}).get("nodeName") or "")
        uid = found["metadata"]["uid"]
        before = self.pods.get(uid)
        reason, since_s = eviction(found)
        # One that was not watched while it lived was evicted before this exporter began.
        if reason and before and before.node and not before.disrupted:
            line = event_lines.evicted(
                found["metadata"].get("name", ""), before, since_s or self.clock(), reason
            )
            self._lines += [line] if line else []
        done = found.get("status", {}).get("phase") in ("Succeeded", "Failed")
        if change == "DELETED" or done:
            self.pods.pop(uid, None)
        else:
            now = read_pod(found)
            if before and now.node and not before.node:
                self._scheduled(found, now)
            self.pods[uid] = now

    def budget(self, change: str, found: Mapping[str, Any]) -> None:
        """Those of jobs are left out: without a node, or done, none of their pods is healthy, as it
        should be.
        """
        meta = found["metadata"]
        status = found.get("status", {})
        key = (meta["namespace"], meta["name"])
        if change == "DELETED" or meta["namespace"] in self.namespaces:
            self.budgets.pop(key, None)
        else:
            self.budgets[key] = max(
                0, int(status.get("desiredHealthy", 0)) - int(status.get("currentHealthy", 0))
            )

    def running_since(self) -> dict[JobIdentity, float]:
        """Runs with a pod whose containers run, and since when the first of these does."""
        found: dict[JobIdentity, float] = {}
        for pod in self.pods.values():
            if pod.job and pod.running_since_s:
                found[pod.identity] = min(
                    found.get(pod.identity, pod.running_since_s), pod.running_since_s
                )
        return found

    def reset_counters(self) -> None:
        """Another exporter has published all that was counted so far."""
        self.lines(self.clock())  # nodes that went are published as well
        self.preempted = dict.fromkeys(self.preempted, 0)
        self.risk.reset_counters()
        self.queues.reset_counters()

    def forget_all_but(self, kind: str, keys: set[Any]) -> None:
        """After a fresh list: what vanished while nothing watched is gone."""
        held: dict[Any, Any] = getattr(self if hasattr(self, kind) else self.queues, kind)
        for key in held.keys() - keys:
            if kind == "nodes":
                self._mark_deleted(key)
            else:
                del held[key]

    def _mark_deleted(self, name: str) -> None:
        """The pods' watch may show why a node went only after the nodes' watch showed that it is
        gone.
        """
        node = self.nodes.pop(name, None)
        if node:
            self.risk.left(name, node, self.clock())
            self.gone[name] = replace(node, gone_s=self.clock())
        while len(self.gone) > REMEMBERED:
            del self.gone[next(iter(self.gone))]

    def _settle_deleted(self, name: str) -> None:
        """A machine may come back under its name before its end was written."""
        node = self.gone.pop(name, None)
        if node and node.gone_s:
            self._lines.append(event_lines.node_down(name, node))

    def _scheduled(self, found: Mapping[str, Any], pod: Pod) -> None:
        bound = since_s(found, "PodScheduled") or self.clock()
        node = self.nodes.get(pod.node)
        waited = max(0.0, bound - unix_s(found["metadata"].get("creationTimestamp")))
        line = event_lines.scheduled(found["metadata"].get("name", ""), pod, node, bound, waited)
        if line:
            self._lines.append(line)

    def lines(self, now_s: float) -> list[Line]:
        """What happened since the last call, as event lines of the contract."""
        for name, node in self.gone.items():
            if node.gone_s and now_s - node.gone_s >= SETTLE_S:
                self._lines.append(event_lines.node_down(name, node))
                self.gone[name] = replace(node, gone_s=0.0)
        found = [*self._lines, *self.queues.lines]
        self._lines = []
        self.queues.lines = []
        return found

    def samples(self, now_s: float) -> Iterable[Sample]:
        for (pool, zone), count in self.preempted.items():
            yield sample("preemptions_total", count, pool=pool, zone=zone)
        yield from self._nodes(now_s)
        yield from self._pending(now_s)
        yield from self.queues.samples(now_s)
        yield from self._misplaced()
        yield from self._held()
        for (namespace, budget), missing in self.budgets.items():
            yield sample(
                "disruption_budget_shortfall",
                missing,
                namespace=namespace,
                budget=budget,
            )

    def _take(self, name: str) -> None:
        """Each Spot node counts once, however many signs it gives."""
        where = self.nodes if name in self.nodes else self.gone
        node = where.get(name)
        if node is None or node.taken:
            return
        where[name] = replace(node, taken=True)
        if node.capacity == SPOT:
            key = node.pool, node.zone
            self.preempted[key] = self.preempted.get(key, 0) + 1
            self.risk.lost(name, node, node.gone_s or self.clock())

    def _nodes(self, now_s: float) -> Iterable[Sample]:
        for name, node in self.nodes.items():
            if node.capacity == SPOT and not node.taken:
                self.risk.lived(name, node, now_s)
        yield from self.risk.samples()
        ends: dict[JobIdentity, float] = {}
        for pod in self.pods.values():
            node = self.nodes.get(pod.node)
            if pod.job and node and node.ends_s:
                ends[pod.identity] = min(ends.get(pod.identity, node.ends_s), node.ends_s)
        for run, end in ends.items():
            yield sample("node_end_seconds", max(0.0, end - now_s), **run_labels(run))

    def _pending(self, now_s: float) -> Iterable[Sample]:
        longest: dict[tuple[str, str], float] = defaultdict(float)
        for pod in self.pods.values():
            waited = now_s - pod.waits_since_s if pod.waits_since_s else 0.0
            key = pod.capacity, pod.accelerator
            longest[key] = max(longest[key], waited)
        for (capacity, accelerator), waited in longest.items():
            yield sample(
                "pending_seconds",
                waited,
                capacity=capacity,
                accelerator=accelerator,
            )

    def _misplaced(self) -> Iterable[Sample]:
        counts: dict[str, int] = {namespace: 0 for namespace in SYSTEM_NAMESPACES}
        for pod in self.pods.values():
            node = self.nodes.get(pod.node)
            if pod.system and node and node.capacity != "on-demand":
                counts[pod.namespace] += 1
        for namespace, count in counts.items():
            yield sample("system_pods_on_interruptible", count, namespace=namespace)

    def _held(self) -> Iterable[Sample]:
        silent = {name for name, node in self.nodes.items() if node.silent}
        for namespace in self.namespaces:
            held = []
            for pod in self.pods.values():
                if pod.namespace == namespace and pod.node in silent:
                    held.append(pod)
            yield sample("silent_node_pods", len(held), namespace=namespace)
