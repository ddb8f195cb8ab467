"""A gang of a range of sizes makes room for an urgent job and grows again: the real Kueue and Job
controller, job files as the page names them, and the mover's own rights.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client
from ruamel.yaml import YAML

from holdfast.clients.api import Api, Object
from holdfast.cost import prices
from holdfast.job_commands.control import stopping
from holdfast.jobs.diagnose import job_snapshot
from holdfast.jobs.diagnose.explain import explain
from holdfast.jobs.file import file_text
from holdfast.jobs.file.job_file import JobSpec
from holdfast.jobs.plan import placement
from holdfast.jobs.render import manifests
from holdfast.manifests.render_context import RenderContext
from holdfast.mover.gang_sizes import CALM_S, GangSizes
from holdfast.mover.spending import Spending, Spent, parse_limited_job
from holdfast.vocabulary.capacity import ANNOTATION_MAX_USD, ANNOTATION_SPENT_USD
from holdfast.vocabulary.exit_codes import EXIT_COMPLETE
from holdfast.vocabulary.kubernetes import ANNOTATION_CHARGED_FAILURES
from tests.cluster.sim.pods import if_there
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World
from tests.platforms import load
from workloads.library.tests.cluster.cast import SPOT, ZONE, Submitted
from workloads.library.tests.cluster.objects import list_conditions
from workloads.library.tests.cluster.test_idle_gangs import lent_gpus
from workloads.library.tests.jobs.test_job_file import IMAGE, own

QUOTA = 4
"""A100 GPUs on Spot that the example's queue lends."""
EXAMPLE = Path(__file__).parents[2] / "holdfast/training/examples/sharded_fsdp2.yaml"
"""Asks for two to four A100."""
pytestmark = [
    pytest.mark.usefixtures("platform"),
    pytest.mark.timeout(400),
]


@dataclass
class Queue:
    """The example's queue, with a node for each of its GPUs."""

    api: Api
    world: World
    stack: ExitStack

    def submit_gang(self) -> Submitted:
        job = file_text.parse(YAML(typ="safe").load(EXAMPLE.read_text()), str(EXAMPLE))
        assert (job.min_nodes, job.pods) == (2, QUOTA)
        return self.submit(replace(job, image=IMAGE))

    def run_gang(self) -> Submitted:
        """Runs the gang on all of the quota."""
        gang = self.submit_gang()
        self.add_nodes(gang, QUOTA)
        gang.wait("Running", QUOTA)
        until("its quota is lent", lambda: lent_gpus(self.api) == QUOTA)
        return gang

    def add_nodes(self, job: Submitted, count: int) -> None:
        self.world.add_nodes(SPOT, count, zone=ZONE, labels=job.selector)

    def submit(self, job: JobSpec) -> Submitted:
        env = load("example")
        bodies = manifests.bodies(job, RenderContext(env), placement.place(job, env, prices.load()))
        for body in bodies:
            self.api.apply(self.api.path_of(body), body)
            self.stack.callback(self._delete, body)
        return Submitted(self.api, bodies[-1])

    def _delete(self, body: Object) -> None:
        with if_there():
            self.api.delete(self.api.path_of(body), propagationPolicy="Background")

    def submit_urgent(self, nodes: int = 1) -> Submitted:
        return self.submit_other(name="urgent", nodes=nodes, priority="high")

    def submit_other(self, name: str = "other", **fields: Any) -> Submitted:
        job = own(
            name=name,
            gpus="1xa100",
            capacity="spot",
            command=("python", "train.py"),
            **fields,
        )
        return self.submit(job)


@pytest.fixture
def queue(api: Api, world: World) -> Iterator[Queue]:
    with ExitStack() as stack:
        yield Queue(api, world, stack)
    path = "/api/v1/namespaces/training/pods"
    until("no pod is left", lambda: not list(api.items(path)))


def list_sizes(gang: Submitted) -> list[int]:
    """Returns how many pods each of its unfinished Workloads asks for, the smallest first.

    Kueue may have made, and finished, one for a size that the test asked for only a moment.
    """
    sizes: list[int] = []
    for workload in gang.workloads():
        if "Finished" not in list_conditions(workload):
            sizes.append(workload["spec"]["podSets"][0]["count"])
    return sorted(sizes)


def wait_for_calm(sizes: GangSizes, now_s: float) -> None:
    """Waits until no job asks for nodes of the gangs; the request of a deleted one stays a moment.

    No gang may change its size meanwhile.
    """

    def is_calm() -> bool:
        assert sizes.step(now_s) == 0
        return bool(sizes.calm_since_s)

    until("no job asks for nodes", is_calm)


def describe(job: Submitted) -> str:
    return explain(job.api, job.name, job.namespace).cause.blocker


def test_gang_yields_one_node_to_an_urgent_job_and_gets_it_back(
    api: Api,
    world: World,
    mover_account: client.ApiClient,
    queue: Queue,
) -> None:
    sizes = GangSizes(Api.over(mover_account))
    gang = queue.run_gang()
    assert sizes.step(time.time()) == 0
    assert sizes.shielded
    first = gang.running()

    urgent = queue.submit_urgent()
    until("the gang yields", lambda: sizes.step(time.time()))
    released_s = time.monotonic()
    urgent.wait("Running", 1)
    print(f"the urgent job ran {time.monotonic() - released_s:.1f} s after the release")
    gang.wait("Running", QUOTA - 1)
    assert gang.running() < first, "the others were not touched"
    assert f"on 3 of 4 nodes: {urgent.name} has a higher priority" in describe(gang)
    until("all quota is lent", lambda: lent_gpus(api) == QUOTA)
    for later_s in (0.0, CALM_S, 2 * CALM_S):
        assert sizes.step(time.time() + later_s) == 0, "no more than it needs, and nothing is free"

    # The gang loses a node, and gets another one: not more than it has quota for.
    uids = gang.running()
    world.preempt([gang.pods("Running")[0]["spec"]["nodeName"]])
    queue.add_nodes(gang, 1)
    until("it is replaced", lambda: len(gang.running()) == QUOTA - 1 and gang.running() - uids)

    urgent.end(EXIT_COMPLETE)
    urgent.wait_until_ended()
    until("its quota is free", lambda: lent_gpus(api) == QUOTA - 1)
    uids = gang.running()
    now_s = time.time()
    assert sizes.step(now_s) == 0, "another job may come"
    assert sizes.step(now_s + CALM_S) == 1
    gang.wait("Running", QUOTA)
    assert uids < gang.running()
    until("its quota is lent", lambda: lent_gpus(api) == QUOTA)
    assert "of 4 nodes" not in describe(gang)
    until("the larger gang is shielded", lambda: sizes.step(now_s) or sizes.shielded)


def test_gang_that_cannot_make_enough_room_is_preempted(
    mover_account: client.ApiClient, queue: Queue
) -> None:
    sizes = GangSizes(Api.over(mover_account))
    gang = queue.run_gang()
    assert sizes.step(time.time()) == 0

    urgent = queue.submit_urgent(nodes=3)

    def is_stopped() -> bool:
        assert sizes.step(time.time()) == 0
        return gang.body()["spec"]["suspend"]

    until("Kueue preempts it", is_stopped)
    urgent.wait("Running", 3)
    assert not gang.running()
    assert gang.body()["spec"]["parallelism"] == QUOTA
    urgent.end(EXIT_COMPLETE)
    urgent.wait_until_ended()
    gang.wait("Running", QUOTA)


def test_gang_starts_with_the_nodes_that_are_free(
    api: Api, mover_account: client.ApiClient, queue: Queue
) -> None:
    sizes = GangSizes(Api.over(mover_account))
    other = queue.submit_other(nodes=2)
    queue.add_nodes(other, QUOTA)
    other.wait("Running", 2)
    until("its quota is lent", lambda: lent_gpus(api) == 2)

    gang = queue.submit_gang()
    until("it asks for fewer nodes", lambda: sizes.step(time.time()))
    gang.wait("Running", 2)
    assert "on 2 of 4 nodes" in describe(gang)

    other.end(EXIT_COMPLETE)
    other.wait_until_ended()
    until("quota is free", lambda: lent_gpus(api) == 2)
    now_s = time.time()
    wait_for_calm(sizes, now_s)
    assert sizes.step(now_s + CALM_S) == 1
    gang.wait("Running", QUOTA)


def test_pod_without_a_node_is_yielded_first(
    api: Api, mover_account: client.ApiClient, queue: Queue
) -> None:
    sizes = GangSizes(Api.over(mover_account))
    gang = queue.submit_gang()
    queue.add_nodes(gang, QUOTA - 1)
    gang.wait("Running", QUOTA - 1)
    gang.wait("Pending", 1)
    until("its quota is lent", lambda: lent_gpus(api) == QUOTA)
    assert sizes.step(time.time()) == 0
    uids = gang.running()

    urgent = queue.submit_urgent()
    until("the gang yields", lambda: sizes.step(time.time()))
    until("no pod of it waits", lambda: not gang.pods("Pending"))
    assert gang.running() == uids

    urgent.cancel()
    until("its quota is free", lambda: lent_gpus(api) == QUOTA - 1)
    now_s = time.time()
    wait_for_calm(sizes, now_s)
    assert sizes.step(now_s + CALM_S) == 1
    (pod,) = gang.wait("Pending", 1)
    assert pod["metadata"]["annotations"][ANNOTATION_CHARGED_FAILURES] == "0"


def stop_by_command(api: Api, gang: Submitted) -> None:
    job = job_snapshot.find(api, gang.name, gang.namespace)
    stopping.stop(api, load("example"), job, print)


def stop_for_max_usd(api: Api, gang: Submitted) -> None:
    path = api.path_of(gang.doc)
    uid = api.get(path)["metadata"]["uid"]
    now_s = time.time()
    spent = Spent(usd=2.0, until_s=now_s)
    annotations = {
        ANNOTATION_MAX_USD: "1",
        ANNOTATION_SPENT_USD: spent.text,
    }
    api.merge(path, {"metadata": {"annotations": annotations}})
    spending = Spending()

    def is_suspended() -> bool:
        body = api.get(path)
        job = parse_limited_job(path.rpartition("/")[0], body)
        assert job
        spending.count({uid: job}, [], {}, now_s)
        spending.act(api, now_s)
        return job.suspended

    until("the mover stops it", is_suspended)


@pytest.mark.parametrize("stop", [stop_by_command, stop_for_max_usd])
def test_gang_that_grows_is_stopped(
    api: Api, queue: Queue, stop: Callable[[Api, Submitted], None]
) -> None:
    """Kueue has two Workloads of a gang that grows, and goes on with one when the other ends."""
    other = queue.submit_other(nodes=1)
    queue.add_nodes(other, QUOTA)
    other.wait("Running", 1)
    gang = queue.submit_gang()
    path = api.path_of(gang.doc)
    api.merge(path, {"spec": {"parallelism": QUOTA - 1}})
    gang.wait("Running", QUOTA - 1)
    until("all quota is lent", lambda: lent_gpus(api) == QUOTA)
    api.merge(path, {"spec": {"parallelism": QUOTA}})
    until("it asks for more", lambda: list_sizes(gang) == [QUOTA - 1, QUOTA])

    stop(api, gang)
    until("none of its pods runs", lambda: not gang.running())
    until("its quota is free", lambda: lent_gpus(api) == 1)
    job = job_snapshot.find(api, gang.name, gang.namespace)
    assert stopping.is_stopped(job)
    other.cancel()
    stopping.resume(api, load("example"), job, max_usd=9.0)
    gang.wait("Running", QUOTA)
