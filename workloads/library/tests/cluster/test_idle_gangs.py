"""A gang whose pool is one node short: after its wait the mover gives its nodes back through the
real Kueue, under the mover's own rights, and queues it again.
"""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes import client

from holdfast.clients.api import Api
from holdfast.controllers.cluster_objects import is_true
from holdfast.cost import prices
from holdfast.job_commands.control import stopping
from holdfast.jobs.diagnose import job_snapshot
from holdfast.jobs.diagnose.explain import explain
from holdfast.jobs.diagnose.job_snapshot import JobSnapshot
from holdfast.jobs.plan import placement
from holdfast.jobs.render import manifests
from holdfast.manifests.render_context import RenderContext
from holdfast.mover.idle_gangs import PAUSE_S, IdleGangs
from holdfast.vocabulary.capacity import ANNOTATION_QUEUED_AGAIN, LABEL_LEAST_NODES
from holdfast.vocabulary.exit_codes import EXIT_RETRY
from holdfast.vocabulary.pools import GPU_RESOURCE
from tests.cluster.sim.queues import GROUP
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World
from tests.platforms import load
from workloads.library.tests.cluster.cast import SPOT, ZONE, Submitted
from workloads.library.tests.cluster.test_mover import apply_bodies
from workloads.library.tests.jobs.test_job_file import own

NODES = 4
# It waits 18 seconds while it has fewer nodes than its minimum.
FILE: dict[str, Any] = {
    "gpus": "1xa100",
    "sharded": True,
    "wait_hours": 0.005,
    "command": ("python", "train.py"),
}
QUEUE = f"{GROUP}/clusterqueues/spot"
pytestmark = [
    pytest.mark.usefixtures("platform"),
    pytest.mark.timeout(400),
]


@pytest.fixture(params=[4, "3..4"], ids=["fixed", "range"])
def gang(api: Api, request: pytest.FixtureRequest) -> Iterator[Submitted]:
    env = load("example")
    job = own(name="short", nodes=request.param, **FILE)
    bodies = manifests.bodies(job, RenderContext(env), placement.place(job, env, prices.load()))
    until("no other job has quota", lambda: lent_gpus(api) == 0)
    with apply_bodies(api, bodies) as doc:
        submitted = Submitted(api, doc)
        yield submitted
    until("no pod of it is left", lambda: not submitted.pods())


def lent_gpus(api: Api) -> int:
    """Returns the number of GPUs that the queue counts as used."""
    total = 0
    for flavor in api.get(QUEUE)["status"].get("flavorsReservation") or ():
        for resource in flavor["resources"]:
            if resource["name"] == GPU_RESOURCE:
                total += int(resource["total"])
    return total


def find(gang: Submitted) -> JobSnapshot:
    return job_snapshot.find(gang.api, gang.name, gang.namespace)


def describe(gang: Submitted) -> str:
    cause = explain(
        gang.api,
        gang.name,
        gang.namespace,
        platform=load("example"),
    ).cause
    return f"{cause.reason}: {cause.blocker}"


def test_a_pool_one_node_short_gets_its_nodes_back(
    world: World,
    api: Api,
    mover_account: client.ApiClient,
    gang: Submitted,
) -> None:
    rest = int(gang.doc["metadata"]["labels"][LABEL_LEAST_NODES]) - 1
    mover = IdleGangs(Api.over(mover_account))
    machines = world.add_nodes(
        SPOT,
        NODES,
        zone=ZONE,
        labels=gang.selector,
    )
    gang.wait("Running", NODES)
    assert mover.step(time.time()) == 0
    assert not mover.below_since_s
    until("its nodes are lent", lambda: lent_gpus(api) == NODES)

    world.preempt(machines[rest:])
    gang.wait("Running", rest)
    until("the mover sees it", lambda: mover.step(time.time()) or mover.below_since_s)
    first = gang.running()
    waiting = describe(gang)
    assert f"{rest} nodes wait in place for node" in waiting
    assert "a minute" in waiting

    # The launchers have waited, and end. Their Job starts them again on the same nodes.
    gang.end(EXIT_RETRY)
    until("they wait again", lambda: len(gang.running() - first) == rest, 120)
    until("the mover stops it", lambda: mover.step(time.time()))
    until("no pod is left on a node", lambda: not gang.running())
    until("its quota is free", lambda: lent_gpus(api) == 0)
    assert "queues again at" in describe(gang)
    assert mover.step(time.time() + PAUSE_S / 2) == 0

    fresh = world.add_nodes(
        SPOT,
        NODES - rest,
        zone=ZONE,
        labels=gang.selector,
    )
    until("it queues again", lambda: mover.step(time.time() + PAUSE_S))
    gang.wait("Running", NODES)
    workload = until("Kueue has it", gang.workload)
    assert is_true(workload, "Admitted")
    assert ANNOTATION_QUEUED_AGAIN not in workload["metadata"]["annotations"]
    assert mover.step(time.time()) == 0

    world.preempt(fresh)
    gang.wait("Running", rest)
    until("the mover sees it", lambda: mover.step(time.time()) or mover.below_since_s)
    gang.end(EXIT_RETRY)
    until("the mover stops it", lambda: mover.step(time.time()))
    until("no pod is left on a node", lambda: not gang.running())
    # A person stops it meanwhile: it does not return by itself.
    stopping.stop(
        api,
        load("example"),
        find(gang),
        lambda text: None,
    )
    assert stopping.is_stopped(find(gang))
    assert mover.step(time.time() + 4 * PAUSE_S) == 0
