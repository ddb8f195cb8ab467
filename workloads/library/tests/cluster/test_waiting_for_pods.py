"""Kueue's WaitForPodsReady: off as we configure it, in every queue of the platform; its default as the control.

A job in a queue of flex-start has no node for minutes to days, a gang on Spot lacks one now and then. Upstream stops
both after half an hour; the controls have seconds for that.
"""

import pytest

from holdfast.clients.api import Api, Object
from holdfast.contract.capacity import QUEUES, Capacity
from holdfast.contract.kubernetes import KUEUE_API
from holdfast.contract.pools import Pool
from holdfast.jobs.cluster_snapshot import PROVISIONING
from tests.cluster.sim import flex, operators, queues
from tests.cluster.sim.control_plane import ControlPlane
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World
from tests.platforms import load
from tests.workloads.manifests import rendered
from workloads.library.tests.cluster.cast import FLEX, answer
from workloads.operators.catalogue import JOBSET, KUEUE
from workloads.operators.settings import CONFIGURATIONS

UNREADY_GATE = "DisableWaitForPodsReady"
LIMITS = {"timeout": "3s", "recoveryTimeout": "3s", "requeuingStrategy": {"backoffBaseSeconds": 1}}
PODS = 2
FLEX_QUEUE = QUEUES[Capacity.FLEX_START]
NAMES = list(load("example").queues.values())


@pytest.fixture(scope="module")
def delivered(plane: ControlPlane, own: Api) -> Api:
    """Kueue with upstream's gate, and its half hours as seconds."""
    gates = {gate: on for gate, on in CONFIGURATIONS["kueue"]["featureGates"].items() if gate != UNREADY_GATE}
    flex.install(own)
    operators.install(JOBSET, plane, own)
    operators.install(KUEUE, plane, own, {"featureGates": gates, "waitForPodsReady": LIMITS})
    return own


def platform_queues() -> list[Object]:
    bodies = rendered.bodies("example", "platform")
    return [body for body in bodies if body["apiVersion"] == KUEUE_API and body["kind"] != "LocalQueue"]


def own(queue: str) -> dict[str, str]:
    """A label of the queue's nodes: these are all flex-start nodes, and a job of that queue would take any of them."""
    return {"sim.holdfast.dev/queue": queue}


def submit_to_every_queue(world: World) -> None:
    """A job of the queue's name in each, of the platform as it is rendered."""
    for body in platform_queues():
        world.api.apply(world.api.path_of(body), body)
    for queue in NAMES:
        queues.create(world, "LocalQueue", world.path("localqueues", queues.GROUP), queue, {"spec": {"clusterQueue": queue}})  # fmt: skip
        spec = world.job_spec(FLEX, PODS, suspend=True)
        spec["template"]["spec"]["nodeSelector"] = world.selector | own(queue)  # the rest is the flavor's
        body = {"metadata": {"name": queue, "labels": {queues.QUEUE_LABEL: queue}}, "spec": spec}
        world.api.create(world.path("jobs", "/apis/batch/v1"), body, fieldValidation="Strict")


def workloads(world: World) -> dict[str, Object]:
    """Kueue's records, by their jobs."""
    found = world.api.items(world.path("workloads", queues.GROUP))
    return {each["metadata"]["ownerReferences"][0]["name"]: each for each in found}


def conditions(workload: Object) -> dict[str, str]:
    return {each["type"]: each["status"] for each in workload.get("status", {}).get("conditions", ())}


def evictions(world: World) -> dict[str, int]:
    """`job: cause` -> how often."""
    return {
        f"{name}: {each['underlyingCause']}": each["count"]
        for name, workload in workloads(world).items()
        for each in workload.get("status", {}).get("schedulingStats", {}).get("evictions", ())
    }


def bookings(world: World) -> dict[str, str]:
    """Kueue's requests for nodes: uid -> name."""
    found = world.api.items(world.path(flex.PLURAL, PROVISIONING))
    return {each["metadata"]["uid"]: each["metadata"]["name"] for each in found}


def book(world: World) -> str:
    """Google's yes to Kueue's request; its uid."""
    uid, name = next(iter(until("Kueue asks for nodes", lambda: bookings(world)).items()))
    answer(world.api, f"{world.path(flex.PLURAL, PROVISIONING)}/{name}", "Accepted", "Provisioned")
    return uid


def nodes_for_every_queue(world: World) -> dict[str, list[str]]:
    """Of the flavor that each takes first."""
    named = {(body["kind"], body["metadata"]["name"]): body["spec"] for body in platform_queues()}
    made: dict[str, list[str]] = {}
    for queue in NAMES:
        flavor = named["ClusterQueue", queue]["resourceGroups"][0]["flavors"][0]["name"]
        labels = named["ResourceFlavor", flavor]["nodeLabels"]
        made[queue] = world.add_nodes(FLEX, PODS, labels={**world.selector, **labels, **own(queue)})
    return made


@pytest.mark.usefixtures("kueue")
def test_no_queue_stops_a_job_whose_nodes_are_still_to_come_and_it_runs_when_they_do(world: World) -> None:
    submit_to_every_queue(world)
    booked = book(world)

    def admitted() -> dict[str, Object] | None:
        found = workloads(world)
        return found if all(conditions(found[queue]).get("Admitted") == "True" for queue in NAMES) else None

    before = until("every queue has admitted", admitted)
    until("their pods wait", lambda: len(world.pods("Pending")) == PODS * len(NAMES))
    assert not [name for name, each in workloads(world).items() if "PodsReady" in conditions(each)]
    selector = world.job(FLEX_QUEUE)["spec"]["template"]["spec"]["nodeSelector"]
    world.add_nodes(FLEX, PODS, labels=selector)
    world.wait_running(PODS)
    after = workloads(world)
    assert {name: each["metadata"]["uid"] for name, each in after.items()} == {
        name: each["metadata"]["uid"] for name, each in before.items()
    }
    assert not [name for name, each in after.items() if "PodsReady" in conditions(each)]
    assert not evictions(world)
    assert booked in bookings(world)


def test_kueue_as_delivered_stops_what_waits_for_its_nodes_in_every_queue_again_and_again(delivered: Api) -> None:
    """The control. Where nodes are booked the booking goes too, and Google's queue begins anew."""
    world = World(delivered, "waiting")
    world.create()
    submit_to_every_queue(world)
    booked = book(world)
    wanted = {f"{queue}: WaitForStart" for queue in NAMES}
    until("every queue has stopped its job", lambda: evictions(world).keys() >= wanted)
    until("the booking is given back", lambda: booked not in bookings(world))
    until("and again", lambda: evictions(world)[f"{FLEX_QUEUE}: WaitForStart"] > 1)


def test_kueue_as_delivered_stops_what_lost_a_pod_in_every_queue(delivered: Api) -> None:
    """The control of an elastic gang's loss: one pod of two is lost, and no node is there for another."""
    world = World(delivered, "recovering")
    world.create()
    nodes_for_every_queue(world)
    submit_to_every_queue(world)
    booked: set[str] = set()

    def ready() -> bool:
        # A start that a busy machine makes too long is stopped, and books anew.
        if bookings(world).keys() - booked:
            booked.add(book(world))
        return all(conditions(workloads(world)[queue]).get("PodsReady") == "True" for queue in NAMES)

    until("every queue's job has all of its pods", ready)
    running = {pod["metadata"]["labels"]["job-name"]: pod["spec"]["nodeName"] for pod in world.pods("Running")}
    world.preempt([*running.values()])
    wanted = {f"{queue}: WaitForRecovery" for queue in NAMES}
    until("every queue has stopped its job", lambda: evictions(world).keys() >= wanted)
    world.delete()


@pytest.mark.usefixtures("kueue")
def test_a_job_with_a_part_of_its_pods_is_not_waited_for(world: World, spot: Pool) -> None:
    """Kueue's default evicts it after half an hour, again and again; the condition that it judges by is never written."""
    world.add_nodes(spot, 2)
    queues.lend(world, spot, 3)
    queues.submit(world, spot, "partial", completions=3, parallelism=3)
    world.wait_running(2)
    found = until("it is admitted", lambda: f if "Admitted" in (f := conditions(workloads(world)["partial"])) else None)
    assert "PodsReady" not in found
