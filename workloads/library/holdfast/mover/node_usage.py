"""What each job's machines were, and for how long: what a receipt is priced by. Pure.

A node that several jobs share counts for each by its part.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from holdfast.controllers.cluster_objects import Node, Pod
from holdfast.vocabulary.capacity import Capacity

Place = tuple[str, str, str]
"""Machine type, region, capacity."""
# A pass that comes later than this does not know what was in between.
LONGEST_GAP_S = 120.0
REMEMBERED = 2_000


@dataclass(slots=True)
class NodeUsage:
    node_s: dict[Place, float] = field(default_factory=lambda: defaultdict[Place, float](float))
    own_usd_s: float = 0.0
    """Dollars an hour times seconds on nodes of reservations, which are not in `node_s`' paid part.
    """
    pod_s: float = 0.0
    on_s: float = 0.0
    """Time with at least one pod on a node."""


@dataclass(slots=True)
class NodeUsages:
    held: dict[str, NodeUsage] = field(
        default_factory=lambda: defaultdict[str, NodeUsage](NodeUsage)
    )
    """By uid of the Job or JobSet."""
    _until_s: float = 0.0

    def passed(
        self, pods: Iterable[tuple[str, Pod]], nodes: Mapping[str, Node], now_s: float
    ) -> None:
        """`pods`: each with the uid of its job, empty for a pod of none."""
        spent = now_s - self._until_s
        self._until_s = now_s
        if not 0 < spent <= LONGEST_GAP_S:
            return
        jobs_of: dict[str, set[str]] = defaultdict(set)
        busy: set[str] = set()
        for job, pod in pods:
            if job and pod.node in nodes:
                jobs_of[pod.node].add(job)
                self.held[job].pod_s += spent
                busy.add(job)
        for job in busy:
            self.held[job].on_s += spent
        self._forget(busy)
        for name, jobs in jobs_of.items():
            node = nodes[name]
            for job in jobs:
                capacity = Capacity.RESERVED.value if node.own_usd_per_hour else node.capacity
                place = node.machine_type, node.zone.rpartition("-")[0], capacity
                self.held[job].node_s[place] += spent / len(jobs)
                self.held[job].own_usd_s += node.own_usd_per_hour * spent / len(jobs)

    def _forget(self, busy: set[str]) -> None:
        """Jobs that were deleted before they ended get no receipt, and must not stay."""
        for job in [job for job in self.held if job not in busy][
            : max(0, len(self.held) - REMEMBERED)
        ]:
            del self.held[job]
