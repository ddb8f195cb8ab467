"""Mirrors a cluster from watch events of pods, nodes and disruption budgets.

Pure: objects as dicts in, samples and event lines out. Guarantee: memory follows the objects that
exist, not those that have existed; of each object only a few fields are kept.
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
    parse_node,
    parse_pod,
    since_s,
)
from holdfast.controllers.event_lines import Line
from holdfast.controllers.queues import Queues
from holdfast.controllers.risk import Risk
from holdfast.controllers.sample import Sample, run_labels, sample
from holdfast.ledger.disruptions import find_disruption, find_eviction
from holdfast.support.values import unix_s
from holdfast.vocabulary.job_identity import JobIdentity
from holdfast.vocabulary.kubernetes import SYSTEM_NAMESPACES
from holdfast.vocabulary.roles import JOB_NAMESPACES

REMEMBERED = 2_000
# A pod may show this long after the end of its node that the node was preempted.
# infra/decisions/0071
SETTLE_S = 10.0


@dataclass(slots=True)
class Cluster:
    clock: Callable[[], float] = time.time
    namespaces: Collection[str] = JOB_NAMESPACES
    """Namespaces of jobs."""
    nodes: dict[str, Node] = field(default_factory=dict)
    pods: dict[str, Pod] = field(default_factory=dict)
    budgets: dict[tuple[str, str], int] = field(default_factory=dict)
    preempted: dict[tuple[str, str], int] = field(default_factory=dict)
    """(pool, zone) -> Spot nodes lost since the exporter started."""
    deleted: dict[str, Node] = field(default_factory=dict)
    """The last REMEMBERED nodes that were deleted."""
    risk: Risk = field(default_factory=Risk)
    queues: Queues = field(default_factory=Queues)
    _lines: list[Line] = field(default_factory=list)

    def node(self, change: str, body: Mapping[str, Any]) -> None:
        """Applies a change of a node."""
        name = body["metadata"]["name"]
        before = self.nodes.get(name)
        if change == "DELETED":
            if before and is_taken(body):
                self._mark_taken(name)
            self._remove_node(name)
            return
        now = parse_node(body)
        if before is not None and before.born_s != now.born_s:
            # Its deletion was missed, and the next machine has the same name.
            self._remove_node(name)
            before = None
        if before is None:
            self._report_end(name)
            line = event_lines.make_node_up_line(name, now, self.clock())
            self._lines.append(line)
        was_taken = before is not None and before.taken
        self.nodes[name] = replace(now, taken=was_taken)
        self.preempted.setdefault((now.pool, now.zone), 0)
        if now.taken:
            self._mark_taken(name)

    def pod(self, change: str, body: Mapping[str, Any]) -> None:
        """Applies a change of a pod."""
        spec = body.get("spec") or {}
        disruption, disrupted_s = find_disruption(body)
        if disruption == BY_KUBELET:
            # Often the first sign: the pod's condition comes before the node's.
            self._mark_taken(spec.get("nodeName") or "", disrupted_s)
        uid = body["metadata"]["uid"]
        name = body["metadata"].get("name", "")
        before = self.pods.get(uid)
        reason, evicted_s = find_eviction(body)
        # A pod that was not watched while it ran was evicted before this exporter started.
        if reason and before and before.node and not before.disrupted:
            t = evicted_s or self.clock()
            self._add_line(event_lines.make_eviction_line(name, before, t, reason))
        phase = body.get("status", {}).get("phase")
        if change == "DELETED" or phase in ("Succeeded", "Failed"):
            self.pods.pop(uid, None)
            return
        now = parse_pod(body)
        if before and now.node and not before.node:
            self._report_scheduling(body, now)
        self.pods[uid] = now

    def budget(self, change: str, body: Mapping[str, Any]) -> None:
        """Applies a change of a disruption budget.

        Budgets of jobs are left out: without a node, or when it is done, a job rightly has no
        healthy pod.
        """
        meta = body["metadata"]
        status = body.get("status", {})
        key = (meta["namespace"], meta["name"])
        if change == "DELETED" or meta["namespace"] in self.namespaces:
            self.budgets.pop(key, None)
            return
        desired = int(status.get("desiredHealthy", 0))
        healthy = int(status.get("currentHealthy", 0))
        self.budgets[key] = max(0, desired - healthy)

    def running_since(self) -> dict[JobIdentity, float]:
        """Returns each run with a running pod, and since when its first container runs."""
        since_by_run: dict[JobIdentity, float] = {}
        for pod in self.pods.values():
            if pod.job and pod.running_since_s:
                earliest = since_by_run.get(pod.identity, pod.running_since_s)
                since_by_run[pod.identity] = min(earliest, pod.running_since_s)
        return since_by_run

    def reset_counters(self) -> None:
        """Starts counting again, because another exporter has published all counts so far."""
        self.lines(self.clock())  # the other exporter has published node ends, too
        self.preempted = dict.fromkeys(self.preempted, 0)
        self.risk.reset_counters()
        self.queues.reset_counters()

    def forget_all_but(self, kind: str, keys: set[Any]) -> None:
        """Drops what is missing from a fresh list: it was deleted while nothing watched."""
        owner = self if hasattr(self, kind) else self.queues
        objects: dict[Any, Any] = getattr(owner, kind)
        for key in objects.keys() - keys:
            if kind == "nodes":
                self._remove_node(key)
            else:
                del objects[key]

    def lines(self, now_s: float) -> list[Line]:
        """Returns the event lines of what happened since the last call."""
        for name, node in self.deleted.items():
            if node.gone_s and now_s - node.gone_s >= SETTLE_S:
                self._lines.append(event_lines.make_node_down_line(name, node))
                self.deleted[name] = replace(node, gone_s=0.0)
        lines = [*self._lines, *self.queues.lines]
        self._lines = []
        self.queues.lines = []
        return lines

    def samples(self, now_s: float) -> Iterable[Sample]:
        for (pool, zone), count in self.preempted.items():
            yield sample("preemptions_total", count, pool=pool, zone=zone)
        yield from self._risk_samples(now_s)
        yield from self._node_end_samples(now_s)
        yield from self._pending_samples(now_s)
        yield from self.queues.samples(now_s)
        yield from self._system_pod_samples()
        yield from self._silent_node_samples()
        for (namespace, budget), missing in self.budgets.items():
            yield sample(
                "disruption_budget_shortfall",
                missing,
                namespace=namespace,
                budget=budget,
            )

    def _add_line(self, line: Line | None) -> None:
        if line:
            self._lines.append(line)

    def _remove_node(self, name: str) -> None:
        """Moves a node to the deleted ones, where it waits for the reason of its end.

        The watch of pods may show the reason after the watch of nodes showed the deletion.
        """
        node = self.nodes.pop(name, None)
        if node:
            self.risk.count_end(name, node, self.clock())
            self.deleted[name] = replace(node, gone_s=self.clock())
        while len(self.deleted) > REMEMBERED:
            oldest = next(iter(self.deleted))
            del self.deleted[oldest]

    def _report_end(self, name: str) -> None:
        """Reports the end of a node whose machine comes back under the same name."""
        node = self.deleted.pop(name, None)
        if node and node.gone_s:
            self._lines.append(event_lines.make_node_down_line(name, node))

    def _report_scheduling(self, body: Mapping[str, Any], pod: Pod) -> None:
        meta = body["metadata"]
        scheduled_s = since_s(body, "PodScheduled") or self.clock()
        created_s = unix_s(meta.get("creationTimestamp"))
        line = event_lines.make_scheduling_line(
            meta.get("name", ""),
            pod,
            self.nodes.get(pod.node),
            scheduled_s,
            waited_s=max(0.0, scheduled_s - created_s),
        )
        self._add_line(line)

    def _mark_taken(self, name: str, sign_s: float = 0.0) -> None:
        """Counts the loss of a Spot node once, however many signs it gives.

        `sign_s` is the time of the sign, if known: a failed pod stays, and may be older than the
        next machine of that name.
        """
        nodes = self.nodes if name in self.nodes else self.deleted
        node = nodes.get(name)
        if node is None or node.taken or 0 < sign_s < node.born_s:
            return
        nodes[name] = replace(node, taken=True)
        if node.capacity == SPOT:
            key = (node.pool, node.zone)
            self.preempted[key] = self.preempted.get(key, 0) + 1
            self.risk.count_loss(name, node, node.gone_s or self.clock())

    def _risk_samples(self, now_s: float) -> Iterable[Sample]:
        for name, node in self.nodes.items():
            if node.capacity == SPOT and not node.taken:
                self.risk.count_time(name, node, now_s)
        yield from self.risk.samples()

    def _node_end_samples(self, now_s: float) -> Iterable[Sample]:
        ends: dict[JobIdentity, float] = {}
        for pod in self.pods.values():
            node = self.nodes.get(pod.node)
            if pod.job and node and node.ends_s:
                earliest = ends.get(pod.identity, node.ends_s)
                ends[pod.identity] = min(earliest, node.ends_s)
        for run, end_s in ends.items():
            yield sample("node_end_seconds", max(0.0, end_s - now_s), **run_labels(run))

    def _pending_samples(self, now_s: float) -> Iterable[Sample]:
        longest: dict[tuple[str, str], float] = defaultdict(float)
        for pod in self.pods.values():
            waited_s = 0.0
            if pod.waits_since_s:
                waited_s = now_s - pod.waits_since_s
            key = (pod.capacity, pod.accelerator)
            longest[key] = max(longest[key], waited_s)
        for (capacity, accelerator), waited_s in longest.items():
            yield sample(
                "pending_seconds",
                waited_s,
                capacity=capacity,
                accelerator=accelerator,
            )

    def _system_pod_samples(self) -> Iterable[Sample]:
        counts: dict[str, int] = dict.fromkeys(SYSTEM_NAMESPACES, 0)
        for pod in self.pods.values():
            node = self.nodes.get(pod.node)
            if pod.system and node and node.capacity != "on-demand":
                counts[pod.namespace] += 1
        for namespace, count in counts.items():
            yield sample("system_pods_on_interruptible", count, namespace=namespace)

    def _silent_node_samples(self) -> Iterable[Sample]:
        counts = dict.fromkeys(self.namespaces, 0)
        for pod in self.pods.values():
            node = self.nodes.get(pod.node)
            if node and node.silent and pod.namespace in counts:
                counts[pod.namespace] += 1
        for namespace, count in counts.items():
            yield sample("silent_node_pods", count, namespace=namespace)
