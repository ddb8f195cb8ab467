"""Pods that kwok overlooks while it takes a node over are shown to it again."""

import pytest

from holdfast.clients.api import Api, Object
from holdfast.vocabulary.pools import Pool
from tests.cluster.sim import nodes
from tests.cluster.sim.resync import RESYNCED
from tests.cluster.sim.stages import MANAGED
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World


@pytest.fixture
def foreign_node(world: World, api: Api, spot: Pool) -> str:
    """A node that kwok does not play."""
    name = f"{world.name}-foreign"
    body = nodes.node(spot, name)
    del body["metadata"]["annotations"][MANAGED]
    world.nodes += nodes.add(api, [body])
    return name


def test_pods_without_a_start_get_another_event(
    world: World, api: Api, spot: Pool, foreign_node: str
) -> None:
    template = world.pod_template(spot, nodeName=foreign_node)
    world.create_pod("overlooked", template)

    def is_resynced() -> bool:
        pod: Object = api.get(world.path("pods/overlooked"))
        return RESYNCED in pod["metadata"].get("annotations", {})

    until("the pod is changed", is_resynced)
