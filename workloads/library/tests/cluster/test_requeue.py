"""A gang on queued flex-start comes to the planned end of its nodes: the real Kueue asks for new ones, and it runs again."""

import time
from collections.abc import Iterator

import pytest
from kubernetes import client

from holdfast.clients.api import Api, Object
from holdfast.contract.capacity import LABEL_REQUEUES
from holdfast.contract.exit_codes import EXIT_PREEMPTED
from holdfast.contract.kubernetes import JOB_API, api_path
from holdfast.jobs.cluster_snapshot import PROVISIONING
from holdfast.mover import requeue
from holdfast.mover.view import View
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World
from workloads.library.tests.cluster.cast import QUEUED, ZONE, Submitted, answer, sized

REQUESTS = f"{PROVISIONING}/namespaces/training/provisioningrequests"
LATER_S = requeue.PATIENCE_S + 60
pytestmark = [pytest.mark.usefixtures("platform"), pytest.mark.timeout(400)]


@pytest.fixture
def gang(world: World) -> Iterator[Submitted]:
    doc = sized("JobSet", "train-queued-tesla-a100", 2)
    doc["metadata"]["labels"][LABEL_REQUEUES] = "2"
    made = Submitted(world.api, doc)
    made.submit()
    yield made
    made.cancel()


def path_of(request: Object) -> str:
    return f"{REQUESTS}/{request['metadata']['name']}"


def provisioned(world: World, gang: Submitted, spent: set[str]) -> tuple[Object, list[str]]:
    """Google's answer to a request that is not one of `spent`, by uid."""

    def asked() -> Object | None:
        return next((each for each in world.api.items(REQUESTS) if each["metadata"]["uid"] not in spent), None)

    request = until("Kueue asks for nodes", asked, 60)
    nodes = world.add_nodes(QUEUED, 2, zone=ZONE, labels=gang.selector)
    answer(world.api, path_of(request), "Accepted", "Provisioned")
    gang.wait("Running", 2)
    return request, nodes


def step(acting: Api, gang: Submitted, later_s: float = 0.0) -> int:
    """The mover looks, so many seconds from now."""
    view = View()
    for job in gang.api.items(f"{api_path(JOB_API)}/namespaces/training/jobs"):
        view.job("jobs", "ADDED", job)
    for pod in gang.pods():
        view.pod("ADDED", pod)
    return requeue.requeue(acting, view.without_node(), time.time() + later_s)


def left(gang: Submitted) -> str:
    return gang.body()["metadata"]["labels"][LABEL_REQUEUES]


def test_it_queues_itself_again_at_the_planned_end_and_after_a_revocation(
    world: World, api: Api, mover_account: client.ApiClient, gang: Submitted
) -> None:
    acting = Api.over(mover_account)
    first, machines = provisioned(world, gang, set())
    assert step(acting, gang, LATER_S) == 0, "it runs"

    # Each rank saved, and left before its node ends.
    gang.end(EXIT_PREEMPTED)
    world.preempt(machines)
    gang.wait("Pending", 2)
    until("no node takes it", lambda: step(acting, gang) == 0 and all(w for w in waits(gang)), 60)
    assert step(acting, gang) == 0, "new nodes may still be on their way"
    until("it is queued again", lambda: step(acting, gang, LATER_S), 120)
    assert left(gang) == "1"
    second, machines = provisioned(world, gang, {first["metadata"]["uid"]})

    # Google takes the machines of the whole request.
    world.preempt(machines)
    answer(api, path_of(second), "Accepted", "Provisioned", "CapacityRevoked")
    until("it is queued again", lambda: step(acting, gang), 120)
    assert left(gang) == "0"
    spent = {each["metadata"]["uid"] for each in (first, second)}
    third, machines = provisioned(world, gang, spent)

    # Its restarts are used up.
    world.preempt(machines)
    answer(api, path_of(third), "Accepted", "Provisioned", "CapacityRevoked")
    until("Kueue stops it", lambda: gang.body()["spec"]["suspend"], 60)
    assert step(acting, gang, LATER_S) == 0
    events = [e for e in api.items("/api/v1/namespaces/training/events") if e["involvedObject"]["name"] == gang.name]
    assert [event["reason"] for event in events].count(requeue.REASON) == 2


def waits(gang: Submitted) -> list[bool]:
    """Of each pod, whether the scheduler has found no node for it."""
    return [
        any(c["type"] == "PodScheduled" and c["status"] == "False" for c in p["status"].get("conditions", ()))
        for p in gang.pods()
    ]


def test_what_a_person_stopped_stays(world: World, api: Api, mover_account: client.ApiClient, gang: Submitted) -> None:
    provisioned(world, gang, set())
    workload = until("Kueue knows it", gang.workload)
    path = f"/apis/kueue.x-k8s.io/v1beta2/namespaces/training/workloads/{workload['metadata']['name']}"
    api.merge(path, {"spec": {"active": False}})
    until("Kueue stops it", lambda: gang.body()["spec"]["suspend"], 60)
    assert step(Api.over(mover_account), gang, LATER_S) == 0 and left(gang) == "2"
