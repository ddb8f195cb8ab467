"""Kueue's WaitForPodsReady is off as we configure it, in every queue of the platform.

A job in a queue of flex-start has no node for minutes to days, a gang on Spot lacks one now and then. Upstream's default
stops both after half an hour, again and again, by the condition PodsReady: here it is never written.
"""

import pytest

from holdfast.clients.api import Object
from holdfast.contract.capacity import QUEUES, Capacity
from holdfast.contract.kubernetes import KUEUE_API
from holdfast.jobs.cluster_snapshot import PROVISIONING
from tests.cluster.sim import flex, queues
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World
from tests.platforms import load
from tests.workloads.manifests import rendered
from workloads.library.tests.cluster.cast import FLEX, answer

PODS = 2
FLEX_QUEUE = QUEUES[Capacity.FLEX_START]
NAMES = list(load("example").queues.values())
pytestmark = pytest.mark.usefixtures("kueue")


def submit_to_every_queue(world: World) -> None:
    """A job of the queue's name in each, of the platform as it is rendered."""
    for body in rendered.bodies("example", "platform"):
        if body["apiVersion"] == KUEUE_API and body["kind"] != "LocalQueue":
            world.api.apply(world.api.path_of(body), body)
    for queue in NAMES:
        queues.create(world, "LocalQueue", world.path("localqueues", queues.GROUP), queue, {"spec": {"clusterQueue": queue}})  # fmt: skip
        spec = world.job_spec(FLEX, PODS, suspend=True)
        # Of the queue's own nodes: a job of flex-start would take any of them. The rest is the flavor's.
        spec["template"]["spec"]["nodeSelector"] = world.selector | {"sim.holdfast.dev/queue": queue}
        body = {"metadata": {"name": queue, "labels": {queues.QUEUE_LABEL: queue}}, "spec": spec}
        world.api.create(world.path("jobs", "/apis/batch/v1"), body, fieldValidation="Strict")


def workloads(world: World) -> dict[str, Object]:
    """Kueue's records, by their jobs."""
    found = world.api.items(world.path("workloads", queues.GROUP))
    return {each["metadata"]["ownerReferences"][0]["name"]: each for each in found}


def conditions(world: World) -> dict[str, dict[str, str]]:
    """Of each job: type -> status."""
    return {
        name: {each["type"]: each["status"] for each in workload.get("status", {}).get("conditions", ())}
        for name, workload in workloads(world).items()
    }


def uids(world: World) -> dict[str, str]:
    return {name: each["metadata"]["uid"] for name, each in workloads(world).items()}


def test_no_queue_stops_a_job_whose_nodes_are_still_to_come_and_it_runs_when_they_do(world: World) -> None:
    submit_to_every_queue(world)
    requests = world.path(flex.PLURAL, PROVISIONING)
    (request,) = until("Kueue asks for nodes", lambda: list(world.api.items(requests)))
    answer(world.api, f"{requests}/{request['metadata']['name']}", "Accepted", "Provisioned")
    admitted = {queue: "True" for queue in NAMES}
    until("every queue has admitted", lambda: {n: c.get("Admitted") for n, c in conditions(world).items()} == admitted)
    before = uids(world)
    until("their pods wait", lambda: len(world.pods("Pending")) == PODS * len(NAMES))
    world.add_nodes(FLEX, PODS, labels=world.job(FLEX_QUEUE)["spec"]["template"]["spec"]["nodeSelector"])
    world.wait_running(PODS)
    assert uids(world) == before
    assert not [name for name, found in conditions(world).items() if "PodsReady" in found]
