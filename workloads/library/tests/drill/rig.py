"""A drill on the work of the cluster tier, whose machines the tests take away."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from holdfast.clients.api import Api, Object
from holdfast.drill.plan import Drill
from holdfast.drill.target import Target, Undo
from holdfast.drill.targets.cluster import Cluster, Named
from holdfast.drill.targets.evictors import NodeEvictor
from tests.cluster.sim.world import World

JOB = "train"


@dataclass
class RigEvictor:
    description: str
    how: Callable[[list[str]], object]
    evicted: list[str] = field(default_factory=list)

    def check(self, node: Object) -> str:
        return ""

    def evict(self, nodes: Sequence[str]) -> str:
        self.how(list(nodes))
        self.evicted += nodes
        return f"{self.description} {len(nodes)} of them"

    def rollback(self) -> Iterable[Undo]:
        return ()


def target(api: Api, world: World, drill: Drill, evictor: NodeEvictor) -> Target:
    named = Named(namespace=world.name, selector=f"batch.kubernetes.io/job-name={JOB}")
    return Cluster(api, named, drill.fault, evictor)
