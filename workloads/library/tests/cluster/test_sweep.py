"""A sweep as it is rendered from a job file, on the real Job controller."""

from collections import Counter

from holdfast.clients.api import Object
from holdfast.vocabulary.exit_codes import EXIT_BUG
from holdfast.vocabulary.kubernetes import ANNOTATION_INDEX, LABEL_QUEUE
from holdfast.vocabulary.pools import Pool
from tests.cluster.sim import pods
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World
from workloads.library.tests.cluster.test_mover import bodies_of

POINTS = 20
AT_ONCE = 5
LOST = 3


def submit(world: World) -> str:
    """Create the objects of a sweep in the namespace of the test, and return the Job's name.

    Nodes are those of the test, and no queue starts the Job.
    """
    objects = bodies_of(sweep={"SEED": list(range(POINTS))}, parallel=AT_ONCE)
    for body in objects:
        body["metadata"]["namespace"] = world.name
    job = objects[-1]
    del job["metadata"]["labels"][LABEL_QUEUE]
    job["spec"]["suspend"] = False
    spec = job["spec"]["template"]["spec"]
    spec["nodeSelector"] |= world.selector
    del spec["serviceAccountName"], spec["priorityClassName"]
    for body in objects:
        world.api.apply(world.api.path_of(body), body)
    return job["metadata"]["name"]


def get_point(pod: Object) -> int:
    return int(pod["metadata"]["annotations"][ANNOTATION_INDEX])


def test_each_point_restarts_and_fails_by_itself(world: World, spot: Pool) -> None:
    world.add_nodes(spot, AT_ONCE)
    name = submit(world)
    running = world.wait_running(AT_ONCE)
    for pod in running:
        run = pods.environment(pod)["HOLDFAST_RUN"]
        assert run == f"my-run-{get_point(pod)}"
    world.preempt(world.nodes[:LOST])
    evicted = {get_point(pod) for pod in world.pods("Failed")}
    assert len(evicted) == LOST
    world.add_nodes(spot, LOST)
    until("the evicted points run again", lambda: len(world.pods("Running")) == AT_ONCE)
    buggy = next(pod for pod in running if get_point(pod) not in evicted)
    pods.end(world.api, buggy, EXIT_BUG)

    def end_running() -> bool:
        world.release()
        status = world.job(name)["status"]
        return status.get("succeeded", 0) + bool(status.get("failedIndexes")) == POINTS

    until("all points ended", end_running)
    assert world.wait_condition(name) == "Failed:FailedIndexes"
    status = world.job(name)["status"]
    assert (status["succeeded"], status["failedIndexes"]) == (POINTS - 1, str(get_point(buggy)))
    starts = Counter(get_point(pod) for pod in world.pods())
    restarted = {point for point, count in starts.items() if count > 1}
    assert restarted == evicted
