"""A sweep as it is rendered from a job file, on the real Job controller."""

from collections import Counter
from typing import Any

from holdfast.jobs.diagnose.job_snapshot import get_place
from holdfast.jobs.submit import submission
from holdfast.vocabulary.exit_codes import EXIT_BUG
from holdfast.vocabulary.kubernetes import LABEL_QUEUE
from holdfast.vocabulary.pools import Pool
from tests.cluster.sim import pods
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World
from workloads.library.tests.cluster.test_mover import render_bodies

POINTS = 20
AT_ONCE = 5
LOST = 3


def submit(world: World, **fields: Any) -> str:
    """Create the objects of a sweep in the namespace of the test, and return the Job's name.

    Nodes are those of the test, and no queue starts the Job.
    """
    objects = render_bodies(
        sweep={"SEED": list(range(POINTS))},
        parallel=AT_ONCE,
        **fields,
    )
    for body in objects:
        body["metadata"]["namespace"] = world.name
    job = objects[-1]
    del job["metadata"]["labels"][LABEL_QUEUE]
    job["spec"]["suspend"] = False
    spec = job["spec"]["template"]["spec"]
    spec["nodeSelector"] |= world.selector
    del spec["serviceAccountName"], spec["priorityClassName"]
    submission.apply(world.api, objects)
    return job["metadata"]["name"]


def test_each_point_restarts_and_fails_by_itself(world: World, spot: Pool) -> None:
    world.add_nodes(spot, AT_ONCE)
    name = submit(world)
    running = world.wait_running(AT_ONCE)
    # The control plane removes pods of nodes that have been gone for a minute.
    points = {pod["metadata"]["uid"]: get_place(pod) for pod in running}
    for pod in running:
        run = pods.environment(pod)["HOLDFAST_RUN"]
        assert run == f"my-run-{get_place(pod)}"
    world.preempt(world.nodes[:LOST])
    evicted = {get_place(pod) for pod in world.pods("Failed")}
    assert len(evicted) == LOST
    world.add_nodes(spot, LOST)
    until("the evicted points run again", lambda: len(world.pods("Running")) == AT_ONCE)
    buggy = next(pod for pod in running if get_place(pod) not in evicted)
    pods.end(world.api, buggy, EXIT_BUG)

    def end_running() -> bool:
        world.release()
        for pod in world.pods():
            points[pod["metadata"]["uid"]] = get_place(pod)
        status = world.job(name)["status"]
        return status.get("succeeded", 0) + bool(status.get("failedIndexes")) == POINTS

    until("all points ended", end_running)
    assert world.wait_condition(name) == "Failed:FailedIndexes"
    status = world.job(name)["status"]
    assert status["succeeded"] == POINTS - 1
    assert status["failedIndexes"] == str(get_place(buggy))
    starts = Counter(points.values())
    restarted = set()
    for point, count in starts.items():
        if count > 1:
            restarted.add(point)
    assert restarted == evicted


def test_parameters_go_with_the_last_job_that_uses_them(world: World, spot: Pool) -> None:
    """Two jobs share a ConfigMap, since its content is the same."""

    def list_owners() -> list[set[str]]:
        owners: list[set[str]] = []
        for body in world.api.items(world.path("configmaps", "/api/v1")):
            if body.get("immutable"):
                references = body["metadata"].get("ownerReferences") or ()
                owners.append({owner["name"] for owner in references})
        return owners

    first = submit(world)
    second = submit(world, restarts=7)
    assert list_owners() == [{first, second}]
    jobs = world.path("jobs", "/apis/batch/v1")
    world.api.delete(f"{jobs}/{first}", propagationPolicy="Background")
    until("the first job is gone", lambda: world.api.find(f"{jobs}/{first}") is None)
    assert list_owners()
    world.api.delete(f"{jobs}/{second}", propagationPolicy="Background")
    until("the ConfigMap is gone", lambda: list_owners() == [])
