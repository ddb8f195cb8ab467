"""A gang whose pods stay as the builder renders it, here sharded, under the real Job controller,
scheduler and Eviction API.
"""

import copy
from dataclasses import replace

import pytest

from holdfast.clients.api import Object
from holdfast.jobs.diagnose.explain import MOST_LISTED, explain
from holdfast.jobs.diagnose.job_snapshot import get_place
from holdfast.jobs.render.pod_parts import RANKS
from holdfast.manifests.elastic import elastic
from holdfast.manifests.render_context import RenderContext
from holdfast.manifests.training import Task, spot_work
from holdfast.vocabulary.capacity import PlacementRule
from holdfast.vocabulary.pools import Pool
from tests import platforms
from tests.cluster.sim import pods
from tests.cluster.sim.stages import RUN_S
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World
from workloads.library.tests.cluster.objects import list_conditions, list_names
from workloads.library.tests.jobs.test_manifests import find_body

NAME = "wide"
ZONE = "europe-west4-a"
# Each place is lost once: a second loss of the same one waits 20 s, a fifth 160 s.
WAVE = 25
WAVES = 2
NODES = WAVE * WAVES + 2
BUDGETS = "/apis/policy/v1"

pytestmark = pytest.mark.usefixtures("cluster")


def render_gang(world: World, pool: Pool) -> list[Object]:
    """Renders a gang for the world's namespace and nodes, without the account, priority and data of
    the platform.
    """
    context = RenderContext(platforms.load("example"))
    command = [
        *RANKS,
        "1",
        "--sharded",
        "--",
        "train",
    ]
    work = replace(
        spot_work(context, NAME, pool, PlacementRule.ELASTIC), command=command, volumes=[]
    )
    task = Task(
        work=work,
        pods=NODES,
        least=NODES,
        sharded=True,
        queue="",
        deadline_s=3600,
    )
    bodies = [copy.deepcopy(body) for body in elastic(context, task)]
    for body in bodies:
        body["metadata"]["namespace"] = world.name
    template = find_body(bodies, "Job")["spec"]["template"]
    template["metadata"].setdefault("annotations", {})[RUN_S] = "3600"
    template["spec"]["nodeSelector"] |= world.selector
    for absent in ("serviceAccountName", "priorityClassName"):
        template["spec"].pop(absent, None)
    return bodies


def uids(pods: list[Object]) -> dict[str, str]:
    return {pod["metadata"]["uid"]: pod["spec"]["nodeName"] for pod in pods}


def lose_in_waves(world: World, spot: Pool, bodies: list[Object]) -> str:
    """Takes fifty nodes of a gang in two waves, and checks that no survivor was touched. Returns
    the job; the last nodes are not replaced yet.
    """
    world.add_nodes(spot, NODES, zone=ZONE)
    job = find_body(bodies, "Job")["metadata"]["name"]
    for body in bodies:
        world.api.create(world.api.path_of(body).rpartition("/")[0], body, fieldValidation="Strict")
    first = uids(world.wait_running(NODES))
    lost_pods: list[str] = []
    for wave in range(WAVES):
        if wave:
            world.add_nodes(spot, WAVE, zone=ZONE)
        before = uids(world.wait_running(NODES))
        candidates = [uid for uid in before if uid in first and uid not in lost_pods]
        victims = candidates[:WAVE]
        assert world.preempt([before[uid] for uid in victims]) == WAVE
        lost_pods += victims
        remaining = {}
        for uid, node in before.items():
            if uid not in victims:
                remaining[uid] = node
        after = world.wait_running(NODES - WAVE)
        assert uids(after) == remaining, "a survivor was touched"
        for pod in after:
            for status in pod["status"]["containerStatuses"]:
                assert status["restartCount"] == 0
    assert len(set(lost_pods)) == WAVE * WAVES
    return job


def one_may_go(world: World) -> None:
    budget = f"{world.path('poddisruptionbudgets', BUDGETS)}/{NAME}"
    until("one more may go", lambda: world.api.get(budget)["status"]["disruptionsAllowed"] == 1)
    first, second, *_ = list_names(world.wait_running(NODES))
    assert world.evict(first) == 201
    assert world.evict(second) == 429


def one_success_ends_it(world: World, job: str, survivor: Object) -> None:
    assert "Complete" not in list_conditions(world.job(job))
    pods.end(world.api, survivor)
    assert world.wait_condition(job) == "Complete"
    assert world.job(job)["status"]["succeeded"] == 1, "the others were waited for"
    until("nobody is billed any more", lambda: not world.pods("Running"))


def test_sharded_gang_waits_in_place_through_fifty_losses(world: World, spot: Pool) -> None:
    job = lose_in_waves(world, spot, render_gang(world, spot))
    places = []
    for pod in world.wait_running(NODES - WAVE):
        places.append(get_place(pod))
    missing = [str(place) for place in range(NODES) if place not in places][:MOST_LISTED]
    waits = f"{NODES - WAVE} nodes wait in place for nodes {', '.join(missing)}, ... since "
    until(
        "explain tells", lambda: explain(world.api, job, world.name).cause.blocker.startswith(waits)
    )
    world.add_nodes(spot, WAVE, zone=ZONE)
    one_may_go(world)
    one_success_ends_it(world, job, world.wait_running(NODES)[0])
