"""A job is moved between Spot and on-demand on the real API server, by the real Kueue and JobSet,
with the rendered rights.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from kubernetes import client

from holdfast.clients.api import Api, ApiError, Object
from holdfast.jobs.plan import placement
from holdfast.jobs.plan.offers import list_offers
from holdfast.jobs.render import manifests
from holdfast.ledger.events import Event
from holdfast.manifests.render_context import RenderContext
from holdfast.mover.cluster_api import ClusterApi
from holdfast.mover.cluster_view import View
from holdfast.mover.movable_jobs import Movable, list_movable_jobs
from holdfast.mover.mover import Mover
from holdfast.mover.patches import escape_key
from holdfast.mover.spending import Spending, parse_limited_job
from holdfast.place.plan import Plan
from holdfast.vocabulary.capacity import (
    ANNOTATION_BOOST,
    ANNOTATION_MAX_USD,
    ANNOTATION_PLAN,
    ANNOTATION_QUEUED_AGAIN,
    ANNOTATION_RECEIPT,
    ANNOTATION_REQUEST_ENDED,
    ANNOTATION_SPENT_USD,
    ANNOTATION_STOPPED_FOR,
    LABEL_LEAST_NODES,
    LABEL_MOVES,
    STOPPED_FOR_MAX_USD,
    Capacity,
)
from holdfast.vocabulary.kubernetes import JOB_API, KUEUE_API, LABEL_GANG, LABEL_QUEUE, api_path
from holdfast.vocabulary.pools import LABEL_POOL_CLASS, Pool
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World
from tests.platforms import load
from workloads.library.tests.cluster.cast import Submitted, list_time_limited
from workloads.library.tests.jobs.test_job_file import own

KUEUE = api_path(KUEUE_API)
SPACE = "/api/v1/namespaces/training"
DEMAND = load("example").pool("demand-l4")
PLAN = Plan(
    policy="patient",
    work_h=20.0,
    deadline_h=24.0,
    restart_h=0.2,
    interval_h=0.3,
    checkpoint_h=0.01,
    spot_usd=1.0,
    on_demand_usd=3.0,
)


@pytest.fixture(params=[1, 2], ids=["job", "jobset"])
def body(request: pytest.FixtureRequest, api: Api) -> Iterator[Object]:
    bodies = render_bodies(PLAN, name=f"moved-{request.param}", nodes=request.param)
    with apply_bodies(api, bodies) as job:
        assert job["metadata"]["labels"][LABEL_MOVES] == "true"
        yield job


def render_bodies(plan: Plan | None = None, **fields: Any) -> list[Object]:
    """Returns a user's job on L4s of Spot as it is rendered for the example."""
    env = load("example")
    job = own(gpus="1xl4", command=("sleep", "9999"), **fields)
    offer = next(
        o for o in list_offers(env) if o.capacity is Capacity.SPOT and o.accelerator == "nvidia-l4"
    )
    placed = placement.Placed(
        offer=offer,
        rule=placement.decide(placement.find_traits(job)).id,
        reason="",
        plan=plan,
    )
    return manifests.bodies(job, RenderContext(env), placed)


@contextmanager
def apply_bodies(api: Api, bodies: list[Object]) -> Iterator[Object]:
    """Applies the bodies, and deletes them in the end. Yields the last one, which is the job."""
    for each in bodies:
        api.apply(api.path_of(each), each)
    try:
        yield bodies[-1]
    finally:  # a job that stayed would fail later tests too
        for each in bodies:
            api.delete(api.path_of(each), propagationPolicy="Background")


def pods(api: Api, job: str) -> list[Object]:
    return list(api.items(f"{SPACE}/pods", labelSelector=f"holdfast.dev/job={job}"))


@dataclass
class Watched:
    """One job, as the mover sees it."""

    api: Api
    body: Object
    events: list[Event] = field(default_factory=list)
    seen: View = field(default_factory=View)

    def look(self) -> set[str]:
        """Returns the capacities of its pods."""
        look(self.seen, self.api, pods(self.api, self.body["metadata"]["name"]))
        return {pod.capacity for pod in self.seen.pods.values()}

    def step(self, mover: Mover, hours: float) -> int:
        """Returns the moves that it makes this many hours from now."""
        self.look()
        observation = self.seen.observe(lambda _: self.events)
        now_s = time.time() + hours * 3_600
        return len(mover.step(observation, now_s))


def look(view: View, api: Api, found: list[Object]) -> None:
    """Fills the mover's view with the present nodes and jobs, and with these pods."""
    view.nodes.clear()
    view.pods.clear()
    for node in api.items("/api/v1/nodes"):
        view.node("ADDED", node)
    for job in api.items(f"{api_path(JOB_API)}/namespaces/training/jobs"):
        view.job("jobs", "ADDED", job)
    for pod in found:
        view.pod("ADDED", pod)


def run_on(api: Api, body: Object, pool_class: str) -> bool:
    found = pods(api, body["metadata"]["name"])
    wanted = body["spec"].get("parallelism") or 2
    on = []
    for p in found:
        if p["status"]["phase"] == "Running":
            on.append(p["spec"].get("nodeSelector", {}).get(LABEL_POOL_CLASS))
    return on == [pool_class] * wanted


@pytest.mark.usefixtures("platform")
def test_job_moves_to_on_demand_and_back_although_a_mover_dies(
    world: World,
    api: Api,
    mover_account: client.ApiClient,
    body: Object,
    spot: Pool,
) -> None:
    watched = Watched(api, body)
    look = watched.look
    step = watched.step
    events = watched.events

    def moves_nothing(mover: Mover, hours: float) -> bool:
        """Does a step, which may correct Kueue's race with a move, and tells whether it moved
        nothing.
        """
        return step(mover, hours) == 0

    until("it waits for Spot", lambda: look() == {"spot"} or None)
    gone = world.add_nodes(
        spot,
        2,
        zone="us-central1-a",
        labels={},
    )
    until("it runs on Spot", lambda: run_on(api, body, spot.pool_class) or None)
    world.preempt(gone)
    there = world.add_nodes(
        spot,
        2,
        zone="us-central1-b",
        labels={},
    )
    name = body["metadata"]["name"]
    until(
        "it runs in another zone, moved by nobody",
        lambda: (
            run_on(api, body, spot.pool_class)
            and {p["spec"].get("nodeName") for p in pods(api, name)} <= {*there}
        ),
    )

    mover = Mover(ClusterApi(Api.over(mover_account)))
    assert step(mover, 0.0) == 0, "there is time, and it stays"

    class Dies(ClusterApi):
        def delete(self, path: str) -> None:
            raise OSError("killed between two requests")

    # Kueue or JobSet may have written to the job since it was read: then a later step makes the
    # move.
    with pytest.raises(OSError, match="killed"):
        until("its mover dies", lambda: step(Mover(Dies(Api.over(mover_account))), 3.7) or None)
    until("Kueue starts it again where it was", lambda: run_on(api, body, spot.pool_class) or None)
    assert api.get(api.path_of(body))["metadata"]["labels"][LABEL_QUEUE] == "on-demand"
    assert step(mover, 3.7) == 0, "the move is finished, not made once more"
    until("it waits for on-demand", lambda: moves_nothing(mover, 3.7) and look() == {"on-demand"})
    assert not list_time_limited(api), "in the queue of on-demand"
    world.add_nodes(DEMAND, 2, labels={})
    until(
        "it runs on demand",
        lambda: moves_nothing(mover, 3.7) and run_on(api, body, DEMAND.pool_class),
    )
    assert api.get(api.path_of(body))["metadata"]["annotations"][ANNOTATION_PLAN] == PLAN.text()

    # Far ahead of its deadline now, and another mover leads.
    mover = Mover(ClusterApi(Api.over(mover_account)))
    fields = {
        "first_step": 1,
        "last_step": 16_000,
        "seconds": 16 * 3_600.0,
    }
    events.append(Event(1, "window", name, "training", "p", fields))
    assert step(mover, 1.0) == 0, "it is not known yet how long Spot has been there"
    until("it is sent back", lambda: step(mover, 1.8) or None)
    until(
        "it is back on Spot",
        lambda: moves_nothing(mover, 1.8) and run_on(api, body, spot.pool_class),
    )
    assert look() == {"spot"}
    moves = []
    for event in api.items(f"{SPACE}/events"):
        if event["involvedObject"]["name"] == name and event["reason"] == "PlacementMoved":
            moves.append(event["message"])
    assert len(moves) == 1 and "on-demand to spot" in moves[0], (
        "the one that died announced nothing"
    )


@pytest.fixture
def set_stop_policy(api: Api, platform: None) -> Iterator[Callable[[str], object]]:
    """Returns a function that sets the stop policy of the on-demand queue, which is held first."""

    def stop(policy: str) -> object:
        return api.merge(f"{KUEUE}/clusterqueues/on-demand", {"spec": {"stopPolicy": policy}})

    stop("Hold")
    yield stop
    stop("None")


@pytest.fixture
def gang(api: Api, set_stop_policy: Callable[[str], object]) -> Iterator[Object]:
    with apply_bodies(api, render_bodies(PLAN, name="marked", nodes=2)) as job:
        yield job


def test_jobset_with_its_old_flavor_selector_is_repaired(
    world: World,
    api: Api,
    mover_account: client.ApiClient,
    gang: Object,
    set_stop_policy: Callable[[str], object],
    spot: Pool,
) -> None:
    """Makes by hand what Kueue leaves if it sees the Workload go before its own start: a test
    cannot force that race.
    """
    watched = Watched(api, gang)
    cluster = ClusterApi(Api.over(mover_account))
    path = api.path_of(gang)
    world.add_nodes(spot, 2, labels={})
    until("it runs on Spot", lambda: run_on(api, gang, spot.pool_class) or None)
    running = api.get(path)["spec"]["replicatedJobs"]

    def waiting() -> Movable | None:
        """Returns the job while it is suspended and its Workload is not admitted."""
        (job,), _ = list_movable_jobs(*cluster.read())
        if job.suspended and job.workload and not job.workload.admitted:
            return job
        return None

    mover = Mover(cluster)
    until("it is moved", lambda: watched.step(mover, 3.7) or None)
    workload = until("it waits in the queue that is held", waiting).workload
    assert workload
    api.merge(path, {"spec": {"replicatedJobs": running}})
    cluster.delete(workload.path)
    until("Kueue has made its Workload anew", lambda: (job := waiting()) and job.is_stranded)
    set_stop_policy("None")
    world.add_nodes(DEMAND, 2, labels={})
    until(
        "no flavor will have it",
        lambda: "match node affinity" in str(api.find(workload.path)) or None,
    )
    until(
        "it runs on demand",
        lambda: watched.step(mover, 3.7) == 0 and run_on(api, gang, DEMAND.pool_class),
    )


def refusal(change: Callable[[], object]) -> str:
    """Returns the API server's reason; empty for what it allows."""
    try:
        change()
    except ApiError as error:
        return str(error)
    return ""


def wait_for_policies(mover: Api, path: str) -> None:
    """Waits for the API server, which enforces a policy a moment after it is applied."""
    numbers = itertools.count()

    def refuses() -> bool:
        labels = {"attempt": str(next(numbers))}
        return "labels" in refusal(lambda: mover.merge(path, {"metadata": {"labels": labels}}))

    until("the policies are in force", refuses)


@pytest.mark.usefixtures("platform")
def test_mover_changes_nothing_but_what_a_move_takes(
    api: Api, mover_account: client.ApiClient, body: Object
) -> None:
    mover = Api.over(mover_account)
    path = api.path_of(body)
    wait_for_policies(mover, path)
    if body["kind"] == "JobSet":
        pods_path = "/spec/replicatedJobs/0/template/spec/template"
    else:
        pods_path = "/spec/template"
        resize = {"spec": {"parallelism": 0}}
        assert "size between" in refusal(lambda: mover.merge(path, resize)), "it is no gang"
    queue = f"/metadata/labels/{escape_key(LABEL_QUEUE)}"
    forbidden = {
        "of labels": [
            {
                "op": "add",
                "path": "/metadata/labels/team",
                "value": "other",
            }
        ],
        "of annotations": [
            {
                "op": "add",
                "path": f"/metadata/annotations/{escape_key(ANNOTATION_PLAN)}",
                "value": "",
            }
        ],
        "no owners": [
            {
                "op": "add",
                "path": "/metadata/finalizers",
                "value": ["example.com/a"],
            }
        ],
    }
    for reason, patch in forbidden.items():
        assert reason in refusal(lambda patch=patch: mover.patch(path, patch)), patch
    start = [
        {
            "op": "test",
            "path": "/spec/suspend",
            "value": True,
        },
        {
            "op": "replace",
            "path": "/spec/suspend",
            "value": False,
        },
    ]

    def may_not_start() -> bool:
        """Tries to start it as the mover; Kueue may start it again between the two requests."""
        api.merge(path, {"spec": {"suspend": True}})
        return "Kueue starts them" in refusal(lambda: mover.patch(path, start))

    until("it may not start a job", may_not_start)
    additions = {
        f"metadata/labels/{escape_key(LABEL_GANG)}": "victim",
        f"spec/nodeSelector/{escape_key(LABEL_POOL_CLASS)}": "system",
        "spec/tolerations/-": {"operator": "Exists"},
    }
    for place, value in additions.items():
        patch = [
            {
                "op": "add",
                "path": f"{pods_path}/{place}",
                "value": value,
            }
        ]
        message = refusal(lambda patch=patch: mover.patch(path, patch))
        # The template of a Job that has started once is immutable for everybody.
        reasons = ("takes what Kueue added", "field is immutable")
        assert any(reason in message for reason in reasons), (place, message)
    move = [
        {
            "op": "add",
            "path": "/spec/suspend",
            "value": True,
        },
        {"op": "add", "path": queue, "value": "on-demand"},
    ]
    unasked = [{"op": "remove", "path": f"/metadata/labels/{escape_key(LABEL_MOVES)}"}]
    assert "of labels" in refusal(lambda: mover.patch(path, unasked))
    api.patch(path, unasked)
    assert LABEL_MOVES in refusal(lambda: mover.patch(path, move)), "it does not ask to be moved"
    api.patch(
        path,
        [
            {
                "op": "add",
                "path": unasked[0]["path"],
                "value": "true",
            }
        ],
    )
    mover.patch(path, move)
    receipt = {"metadata": {"annotations": {ANNOTATION_RECEIPT: "{}"}}}
    mover.merge(path, receipt)


def test_mover_ends_workloads_and_starts_none(
    api: Api, mover_account: client.ApiClient, body: Object
) -> None:
    mover = Api.over(mover_account)
    workload = until("it has a Workload", Submitted(api, body).workload)
    path = f"{KUEUE}/namespaces/training/workloads/{workload['metadata']['name']}"
    wait_for_policies(mover, path)
    assert "active" in refusal(lambda: mover.merge(path, {"spec": {"priority": 1_000}}))
    assert "no labels" in refusal(lambda: mover.merge(path, {"metadata": {"labels": {"a": "b"}}}))
    mover.merge(path, {"metadata": {"annotations": {ANNOTATION_BOOST: "1"}}})
    mover.merge(path, {"spec": {"active": False}})
    assert "activates none" in refusal(lambda: mover.merge(path, {"spec": {"active": True}}))
    mark = {"metadata": {"annotations": {ANNOTATION_QUEUED_AGAIN: "2026-01-01T00:00:00Z"}}}
    assert "where it ends" in refusal(lambda: mover.merge(path, mark)), "a person stopped it"
    spent = {"metadata": {"annotations": {ANNOTATION_REQUEST_ENDED: "true"}}}
    assert "where it ends" in refusal(lambda: mover.merge(path, spent))
    assert "was stopped" in refusal(lambda: mover.delete(path)), "Kueue would make an active one"
    api.merge(path, {"spec": {"active": True}})
    end = {"spec": {"active": False}}
    start = {"spec": {"active": True}}
    no_mark = {"metadata": {"annotations": {ANNOTATION_QUEUED_AGAIN: None}}}
    mover.merge(path, mark | end)
    assert "removes its mark" in refusal(lambda: mover.merge(path, start))
    mover.merge(path, no_mark | start)
    mover.merge(path, mark | end)
    mover.merge(path, no_mark | end)
    assert "activates none" in refusal(lambda: mover.merge(path, start)), "max_usd stopped it"
    api.merge(path, start)
    mover.merge(path, spent | end)
    mover.delete(path)


@pytest.mark.usefixtures("platform")
@pytest.mark.parametrize("nodes", [1, 2], ids=["job", "jobset"])
def test_mover_stops_a_job_that_has_a_limit(
    api: Api, mover_account: client.ApiClient, nodes: int
) -> None:
    mover = Api.over(mover_account)
    with apply_bodies(api, render_bodies(name=f"limited-{nodes}", nodes=nodes)) as body:
        path = api.path_of(body)
        wait_for_policies(mover, path)
        until("Kueue starts it", lambda: not api.get(path)["spec"].get("suspend"))
        suspend = {"spec": {"suspend": True}}
        limit = {"metadata": {"annotations": {ANNOTATION_MAX_USD: "1"}}}
        assert ANNOTATION_MAX_USD in refusal(lambda: mover.merge(path, suspend))
        assert "of annotations" in refusal(lambda: mover.merge(path, limit))
        api.merge(path, limit)
        queue = {"metadata": {"labels": {LABEL_QUEUE: "on-demand"}}}
        assert LABEL_MOVES in refusal(lambda: mover.merge(path, queue)), "it only stops it"
        if body["kind"] == "Job":
            no_pods = {"spec": {"parallelism": 0}}
            assert "size between" in refusal(lambda: mover.merge(path, no_pods))
        # As a job without a queue is stopped; this one Kueue starts again.
        mover.merge(path, suspend)
        until("Kueue starts it again", lambda: not api.get(path)["spec"].get("suspend"))

        now_s = time.time()
        spent = {"metadata": {"annotations": {ANNOTATION_SPENT_USD: f"2 {now_s:.0f}"}}}
        mover.merge(path, spent)
        job = api.get(path)
        limited_job = parse_limited_job(path.rpartition("/")[0], job)
        assert limited_job
        spending = Spending()
        spending.count({job["metadata"]["uid"]: limited_job}, [], {}, now_s)
        assert spending.act(mover, now_s) == 1
        annotations = api.get(path)["metadata"]["annotations"]
        assert annotations[ANNOTATION_STOPPED_FOR] == STOPPED_FOR_MAX_USD
        until("Kueue stops it", lambda: api.get(path)["spec"]["suspend"])


@pytest.mark.usefixtures("platform")
def test_mover_sizes_a_gang_within_its_range(api: Api, mover_account: client.ApiClient) -> None:
    mover = Api.over(mover_account)
    with apply_bodies(api, render_bodies(name="ranged", nodes="2..4", sharded=True)) as body:
        path = api.path_of(body)
        wait_for_policies(mover, path)
        for size in (0, 1, 5):
            change = {"spec": {"parallelism": size}}
            assert "size between" in refusal(lambda change=change: mover.merge(path, change)), size
        no_least = {"metadata": {"labels": {LABEL_LEAST_NODES: "0"}}}
        assert "of labels" in refusal(lambda: mover.merge(path, no_least))
        smaller = {"spec": {"parallelism": 3, "completions": 3}}
        assert "takes what Kueue added" in refusal(lambda: mover.merge(path, smaller))
        for size in (2, 3, 4):
            mover.merge(path, {"spec": {"parallelism": size}})
            assert api.get(path)["spec"]["parallelism"] == size
