"""Measures on which machines each job ran, and for how long, to price its receipt. Pure.

A node that several jobs share counts for each in equal parts.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from holdfast.controllers.cluster_objects import Node, Pod
from holdfast.vocabulary.capacity import Capacity

MachineKey = tuple[str, str, str]
"""Machine type, region, capacity."""
# A pass that comes later than this does not know what was in between.
LONGEST_GAP_S = 120.0
REMEMBERED = 2_000


@dataclass(slots=True)
class NodeUsage:
    node_s: dict[MachineKey, float] = field(default_factory=lambda: defaultdict(float))
    own_usd_s: float = 0.0
    """Dollars an hour times seconds on nodes of reservations, which `node_s` does not price."""
    pod_s: float = 0.0
    on_s: float = 0.0
    """Time with at least one pod on a node."""


@dataclass(slots=True)
class NodeUsages:
    by_job: dict[str, NodeUsage] = field(default_factory=lambda: defaultdict(NodeUsage))
    """Usage by uid of the Job or JobSet."""
    _until_s: float = 0.0

    def count_time(
        self, pods: Iterable[tuple[str, Pod]], nodes: Mapping[str, Node], now_s: float
    ) -> None:
        """Adds the time since the last pass.

        `pods` are pairs of the uid of a job and a pod; the uid is empty for a pod of no job.
        """
        elapsed_s = now_s - self._until_s
        self._until_s = now_s
        if not 0 < elapsed_s <= LONGEST_GAP_S:
            return
        jobs_by_node: dict[str, set[str]] = defaultdict(set)
        busy: set[str] = set()
        for job, pod in pods:
            if job and pod.node in nodes:
                jobs_by_node[pod.node].add(job)
                self.by_job[job].pod_s += elapsed_s
                busy.add(job)
        for job in busy:
            self.by_job[job].on_s += elapsed_s
        self._forget_idle_jobs(busy)
        for name, jobs in jobs_by_node.items():
            share_s = elapsed_s / len(jobs)
            for job in jobs:
                _add_node_time(self.by_job[job], nodes[name], share_s)

    def _forget_idle_jobs(self, busy: set[str]) -> None:
        """Drops the oldest idle jobs: those deleted before they ended never get a receipt."""
        excess = len(self.by_job) - REMEMBERED
        if excess <= 0:
            return
        idle = [job for job in self.by_job if job not in busy]
        for job in idle[:excess]:
            del self.by_job[job]


def _add_node_time(usage: NodeUsage, node: Node, seconds: float) -> None:
    capacity = node.capacity
    if node.own_usd_per_hour:
        capacity = Capacity.RESERVED.value
    region = node.zone.rpartition("-")[0]
    machine = (node.machine_type, region, capacity)
    usage.node_s[machine] += seconds
    usage.own_usd_s += node.own_usd_per_hour * seconds
