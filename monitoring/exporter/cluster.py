"""What the cluster is like, from watch events of pods, nodes and disruption budgets.

Called by main.py. Pure: objects as dicts in, samples out. Guarantee: memory follows the objects that exist, not
those that have been; of each object only the few fields below are kept.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from infra.contract import pools
from monitoring.exporter import lines
from monitoring.exporter.lines import Line
from monitoring.exporter.risk import Risk
from monitoring.exporter.sample import Sample, sample

LABEL_JOB = "jobset.sigs.k8s.io/jobset-name"
LABEL_PLAIN_JOB = "job-name"
SYSTEM_NAMESPACES = ("kube-system", "gmp-system", "gke-managed-system")
# Taints and reasons by which a node says that it is being taken away, not scaled down.
TERMINATION_TAINTS = frozenset({"cloud.google.com/impending-node-termination"})
SHUTDOWN_REASONS = ("node is shutting down",)
SPOT = "spot"

REMEMBERED = 2_000
# So long after a node is gone a pod may still tell that it was a preemption.
SETTLE_S = 10.0


@dataclass(frozen=True, slots=True)
class Node:
    pool: str
    zone: str
    machine_type: str
    capacity: str
    born_s: float
    ends_s: float
    """Planned end; 0 without one."""
    taken: bool
    """It was told to shut down."""
    gone_s: float = 0.0
    """When it was deleted, until that is told; 0 before and after."""


@dataclass(frozen=True, slots=True)
class Pod:
    namespace: str
    job: str
    node: str
    waits_since_s: float
    """Unschedulable since; 0 if it is not."""
    capacity: str
    accelerator: str
    system: bool


@dataclass(slots=True)
class Cluster:
    clock: Callable[[], float] = time.time
    nodes: dict[str, Node] = field(default_factory=dict[str, Node])
    pods: dict[str, Pod] = field(default_factory=dict[str, Pod])
    budgets: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    preempted: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    """(pool, zone) -> Spot nodes taken away since the exporter began."""
    gone: dict[str, Node] = field(default_factory=dict[str, Node])
    """The last REMEMBERED nodes that were deleted."""
    risk: Risk = field(default_factory=Risk)
    _lines: list[Line] = field(default_factory=list[Line])

    def node(self, change: str, found: Mapping[str, Any]) -> None:
        name = found["metadata"]["name"]
        before = self.nodes.get(name)
        if change == "DELETED":
            if before and _is_taken(found):
                self._take(name)
            self._bury(name)
            return
        now = _node(found)
        if before is None:
            self._bury_again(name)
            self._lines.append(lines.node_up(name, now, self.clock()))
        self.nodes[name] = replace(now, taken=bool(before and before.taken))
        self.preempted.setdefault((now.pool, now.zone), 0)
        if now.taken:
            self._take(name)

    def pod(self, change: str, found: Mapping[str, Any]) -> None:
        if _ended_by_kubelet(found):
            # Often the first sign: the pod's condition comes before the node's.
            self._take((found.get("spec") or {}).get("nodeName") or "")
        uid = found["metadata"]["uid"]
        done = found.get("status", {}).get("phase") in ("Succeeded", "Failed")
        if change == "DELETED" or done:
            self.pods.pop(uid, None)
        else:
            before, now = self.pods.get(uid), _pod(found)
            if before and now.node and not before.node:
                self._scheduled(found, now)
            self.pods[uid] = now

    def budget(self, change: str, found: Mapping[str, Any]) -> None:
        meta, status = found["metadata"], found.get("status", {})
        key = (meta["namespace"], meta["name"])
        if change == "DELETED":
            self.budgets.pop(key, None)
        else:
            self.budgets[key] = max(0, int(status.get("desiredHealthy", 0)) - int(status.get("currentHealthy", 0)))

    def forget_all_but(self, kind: str, keys: set[Any]) -> None:
        """After a fresh list: whatever vanished while nobody watched is gone."""
        held: dict[Any, Any] = getattr(self, kind)
        for key in held.keys() - keys:
            if kind == "nodes":
                self._bury(key)
            else:
                del held[key]

    def _bury(self, name: str) -> None:
        """The pods' watch may tell why a node went only after the nodes' watch told that it is gone."""
        if node := self.nodes.pop(name, None):
            self.risk.left(name, node, self.clock())
            self.gone[name] = replace(node, gone_s=self.clock())
        while len(self.gone) > REMEMBERED:
            del self.gone[next(iter(self.gone))]

    def _bury_again(self, name: str) -> None:
        """A machine may come back under its name before its end was told."""
        node = self.gone.pop(name, None)
        if node and node.gone_s:
            self._lines.append(lines.node_down(name, node))

    def _scheduled(self, found: Mapping[str, Any], pod: Pod) -> None:
        created, bound = seconds(found["metadata"].get("creationTimestamp")), _bound_s(found) or self.clock()
        node = self.nodes.get(pod.node)
        if line := lines.scheduled(found["metadata"].get("name", ""), pod, node, bound, max(0.0, bound - created)):
            self._lines.append(line)

    def lines(self, now_s: float) -> list[Line]:
        """What happened since the last call, in the contract's words."""
        for name, node in self.gone.items():
            if node.gone_s and now_s - node.gone_s >= SETTLE_S:
                self._lines.append(lines.node_down(name, node))
                self.gone[name] = replace(node, gone_s=0.0)
        told, self._lines = self._lines, []
        return told

    def samples(self, now_s: float) -> Iterable[Sample]:
        for (pool, zone), count in self.preempted.items():
            yield sample("preemptions_total", count, pool=pool, zone=zone)
        yield from self._nodes(now_s)
        yield from self._pending(now_s)
        yield from self._misplaced()
        for (namespace, budget), missing in self.budgets.items():
            yield sample("disruption_budget_shortfall", missing, namespace=namespace, budget=budget)

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
        oldest: dict[str, float] = defaultdict(float)
        for name, node in self.nodes.items():
            oldest[node.pool] = max(oldest[node.pool], now_s - node.born_s)
            if node.capacity == SPOT and not node.taken:
                self.risk.lived(name, node, now_s)
        yield from self.risk.samples()
        for pool, age in oldest.items():
            yield sample("node_age_seconds", age, pool=pool)
        ends: dict[str, float] = {}
        for pod in self.pods.values():
            node = self.nodes.get(pod.node)
            if pod.job and node and node.ends_s:
                ends[pod.job] = min(ends.get(pod.job, node.ends_s), node.ends_s)
        for job, end in ends.items():
            yield sample("node_end_seconds", max(0.0, end - now_s), job=job)

    def _pending(self, now_s: float) -> Iterable[Sample]:
        longest: dict[tuple[str, str], float] = defaultdict(float)
        for pod in self.pods.values():
            waited = now_s - pod.waits_since_s if pod.waits_since_s else 0.0
            key = pod.capacity, pod.accelerator
            longest[key] = max(longest[key], waited)
        for (capacity, accelerator), seconds in longest.items():
            yield sample("pending_seconds", seconds, capacity=capacity, accelerator=accelerator)

    def _misplaced(self) -> Iterable[Sample]:
        counts: dict[str, int] = {namespace: 0 for namespace in SYSTEM_NAMESPACES}
        for pod in self.pods.values():
            node = self.nodes.get(pod.node)
            if pod.system and node and node.capacity != "on-demand":
                counts[pod.namespace] += 1
        for namespace, count in counts.items():
            yield sample("system_pods_on_interruptible", count, namespace=namespace)


def seconds(text: str | None) -> float:
    """RFC 3339 -> Unix seconds; 0 for nothing or nonsense, which counts as no time."""
    try:
        return datetime.fromisoformat(text).timestamp() if text else 0.0
    except ValueError:
        return 0.0


def _node(found: Mapping[str, Any]) -> Node:
    meta = found["metadata"]
    labels, annotations = meta.get("labels") or {}, meta.get("annotations") or {}
    return Node(
        pool=labels.get(pools.LABEL_NODEPOOL, ""),
        zone=labels.get(pools.LABEL_ZONE, ""),
        machine_type=labels.get("node.kubernetes.io/instance-type", ""),
        capacity=_capacity(labels),
        born_s=seconds(meta.get("creationTimestamp")),
        ends_s=seconds(annotations.get(pools.ANNOTATION_TERMINATION)),
        taken=_is_taken(found),
    )


def _is_taken(found: Mapping[str, Any]) -> bool:
    taints = (found.get("spec") or {}).get("taints") or []
    if any(taint.get("key") in TERMINATION_TAINTS for taint in taints):
        return True
    conditions = (found.get("status") or {}).get("conditions") or []
    return any(
        c.get("type") == "Ready"
        and c.get("status") != "True"
        and any(r in (c.get("message") or "") for r in SHUTDOWN_REASONS)
        for c in conditions
    )


def _ended_by_kubelet(pod: Mapping[str, Any]) -> bool:
    """The kubelet ends pods for one reason that sets this: its node is shutting down."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(
        c.get("type") == "DisruptionTarget" and c.get("status") == "True" and c.get("reason") == "TerminationByKubelet"
        for c in conditions
    )


def _capacity(labels: Mapping[str, str]) -> str:
    """Of a node's labels, or of a pod's selector."""
    if labels.get(pools.LABEL_SPOT) == "true" or labels.get(pools.LABEL_PROVISIONING) == SPOT:
        return SPOT
    flex = labels.get(pools.LABEL_FLEX_START) == "true" or labels.get(pools.LABEL_PROVISIONING) == "flex-start"
    return "flex-start" if flex else "on-demand"


def _pod(found: Mapping[str, Any]) -> Pod:
    meta, spec, status = found["metadata"], found.get("spec") or {}, found.get("status") or {}
    labels, selector = meta.get("labels") or {}, spec.get("nodeSelector") or {}
    owners = {owner.get("kind") for owner in meta.get("ownerReferences") or []}
    return Pod(
        namespace=meta["namespace"],
        job=labels.get(LABEL_JOB) or labels.get(LABEL_PLAIN_JOB, ""),
        node=spec.get("nodeName") or "",
        waits_since_s=_unschedulable_since(status),
        capacity=_capacity(selector),
        accelerator=selector.get(pools.LABEL_ACCELERATOR, "none"),
        # DaemonSets belong on every node, and static pods are the node's own.
        system=meta["namespace"] in SYSTEM_NAMESPACES and not owners & {"DaemonSet", "Node"},
    )


def _bound_s(found: Mapping[str, Any]) -> float:
    for condition in (found.get("status") or {}).get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "True":
            return seconds(condition.get("lastTransitionTime"))
    return 0.0


def _unschedulable_since(status: Mapping[str, Any]) -> float:
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return seconds(condition.get("lastTransitionTime"))
    return 0.0
