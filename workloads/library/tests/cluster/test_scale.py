"""A storm over a hundred nodes; a thousand are the benchmark's (`make bench-cluster`)."""

import pytest

from holdfast.contract.pools import Pool
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World
from workloads.library.tests.bench.cluster import GANG, LOST_SHARE, ready_pods, steady
from workloads.library.tests.bench.cluster_jobs import KINDS, Kind

NODES, PODS = 100, 200


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.name != "plain"], ids=lambda kind: kind.name)
def test_all_jobs_survive_the_loss_of_thirty_percent_of_their_nodes(
    world: World, spot: Pool, jobset: None, kind: Kind
) -> None:
    names = world.add_nodes(spot, NODES)
    for n in range(PODS // GANG):
        kind.create(world, spot, f"job-{n}", GANG)
    until("all pods run", lambda: ready_pods(world) >= PODS, 240)
    hit = world.preempt(names[: int(NODES * LOST_SHARE)])
    assert hit > 0
    until("as many pods run as before", lambda: steady(world, PODS), 240)
    until("all jobs are complete", lambda: kind.release(world, PODS // GANG, 8), 240)
    assert kind.charged(world) == 0
