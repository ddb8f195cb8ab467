"""A gang on queued flex-start comes to the planned end of its nodes: the real Kueue asks for new
ones, and it runs again.
"""

import time
from collections.abc import Iterator

import pytest
from kubernetes import client

from holdfast.clients.api import Api, Object
from holdfast.jobs.diagnose.job_snapshot import KUEUE, condition
from holdfast.mover import requeue
from holdfast.mover.cluster_view import View
from holdfast.vocabulary.capacity import LABEL_REQUEUES
from holdfast.vocabulary.exit_codes import EXIT_PREEMPTED
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World
from workloads.library.tests.cluster.cast import Submitted, answer, load_resized, provision
from workloads.library.tests.cluster.test_mover import look

LATER_S = requeue.PATIENCE_S + 60
pytestmark = [pytest.mark.usefixtures("platform"), pytest.mark.timeout(400)]


@pytest.fixture
def gang(world: World) -> Iterator[Submitted]:
    doc = load_resized("JobSet", "train-queued-tesla-a100", 2)
    doc["metadata"]["labels"][LABEL_REQUEUES] = "2"
    submitted = Submitted(world.api, doc)
    submitted.submit()
    yield submitted
    submitted.cancel()


def step(acting: Api, gang: Submitted, later_s: float = 0.0) -> int:
    """Does a step of the mover as of this many seconds from now."""
    view = View()
    look(view, gang.api, gang.pods())
    return requeue.requeue(acting, view.without_node(), time.time() + later_s)


def waits(pod: Object) -> bool:
    """Returns whether the scheduler has found no node for the pod."""
    return condition(pod, "PodScheduled").get("status") == "False"


def read_requeues(gang: Submitted) -> str:
    """Returns how often the gang may still be queued again."""
    return gang.body()["metadata"]["labels"][LABEL_REQUEUES]


def test_it_queues_itself_again_at_the_planned_end_and_after_a_revocation(
    world: World,
    api: Api,
    mover_account: client.ApiClient,
    gang: Submitted,
) -> None:
    acting = Api.over(mover_account)
    first, machines = provision(world, gang)
    assert step(acting, gang, LATER_S) == 0, "it runs"

    # Each rank saved, and left before its node ends.
    gang.end(EXIT_PREEMPTED)
    world.preempt(machines)
    gang.wait("Pending", 2)
    until("no node takes it", lambda: step(acting, gang) == 0 and all(map(waits, gang.pods())))
    assert step(acting, gang) == 0, "new nodes may still be on their way"
    until("it is queued again", lambda: step(acting, gang, LATER_S), 120)
    assert read_requeues(gang) == "1"
    second, machines = provision(world, gang, first)

    # Google takes the machines of the whole request.
    world.preempt(machines)
    answer(api, second, "Accepted", "Provisioned", "CapacityRevoked")
    until("it is queued again", lambda: step(acting, gang), 120)
    assert read_requeues(gang) == "0"
    third, machines = provision(world, gang, first, second)

    # Its restarts are used up.
    world.preempt(machines)
    answer(api, third, "Accepted", "Provisioned", "CapacityRevoked")
    until("Kueue stops it", lambda: gang.body()["spec"]["suspend"])
    assert step(acting, gang, LATER_S) == 0
    reasons = []
    for event in api.items("/api/v1/namespaces/training/events"):
        if event["involvedObject"]["name"] == gang.name:
            reasons.append(event["reason"])
    assert reasons.count(requeue.REASON) == 2


def test_what_a_person_stopped_stays(
    world: World,
    api: Api,
    mover_account: client.ApiClient,
    gang: Submitted,
) -> None:
    provision(world, gang)
    workload = until("Kueue knows it", gang.workload)
    api.merge(
        f"{KUEUE}/namespaces/training/workloads/{workload['metadata']['name']}",
        {"spec": {"active": False}},
    )
    until("Kueue stops it", lambda: gang.body()["spec"]["suspend"])
    assert step(Api.over(mover_account), gang, LATER_S) == 0
    assert read_requeues(gang) == "2"
