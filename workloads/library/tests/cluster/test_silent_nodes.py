"""A node stops reporting while its Node object stays: the job goes on elsewhere, with the rendered rights, within seconds."""

import contextlib
import time
import uuid
from collections.abc import Iterator

import pytest
from kubernetes import client

from holdfast.clients.api import Api, ApiError, Object
from holdfast.contract.capacity import Capacity
from holdfast.contract.kubernetes import ANNOTATION_EXPENDABLE
from holdfast.contract.pools import UNREACHABLE, Pool
from holdfast.contract.values import rfc3339
from holdfast.jobs.job_file import OnNotice
from holdfast.mover.silent_nodes import REASON, end_pods
from tests.cluster.sim import nodes
from tests.cluster.sim.stages import MANAGED
from tests.cluster.sim.waiting import until
from tests.platforms import load
from workloads.library.tests.cluster.test_mover import SPACE, applied, bodies_of

OWN = "tests.holdfast.dev/silent"  # nodes that only the jobs of one test select
pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def pool() -> Pool:
    return next(p for p in load("example").pools if p.capacity is Capacity.SPOT and p.accelerator == "nvidia-l4")


@pytest.fixture
def silent(api: Api, pool: Pool) -> Iterator[str]:
    """A node that reports once. No simulator keeps it alive, so the control plane finds it silent by its own clock."""
    name = f"silent-{uuid.uuid4().hex[:5]}"
    body = nodes.node(pool, name, labels={OWN: name})
    del body["metadata"]["annotations"][MANAGED]
    api.create(nodes.NODES, body)
    report(api, name)
    yield name
    nodes.remove(api, [name])


def report(api: Api, name: str) -> None:
    """What a kubelet writes: the node is ready now."""
    now = rfc3339(time.time())
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }
    api.merge(f"{nodes.NODES}/{name}/status", {"status": {"conditions": [ready]}})


def sent(api: Api, silent: str, count: int, on_notice: OnNotice) -> Iterator[str]:
    bodies = bodies_of(name=f"quiet-{uuid.uuid4().hex[:5]}", nodes=count, on_notice=on_notice)
    selector_of(bodies[-1])[OWN] = silent
    with applied(api, bodies) as job:
        yield job["metadata"]["name"]
    until("its pods are gone", lambda: not forced(api, bodies[-1]["metadata"]["name"]), 60)


def forced(api: Api, job: str) -> list[Object]:
    """Its pods, each deleted without the kubelet that a silent node lacks."""
    left = pods(api, job)
    for pod in left:
        with contextlib.suppress(ApiError):  # gone by now
            api.delete(f"{SPACE}/pods/{pod['metadata']['name']}", gracePeriodSeconds=0)
    return left


def selector_of(body: Object) -> dict[str, str]:
    spec = body["spec"] if body["kind"] == "Job" else body["spec"]["replicatedJobs"][0]["template"]["spec"]
    return spec["template"]["spec"]["nodeSelector"]


@pytest.fixture(params=[1, 2], ids=["job", "jobset"])
def count(request: pytest.FixtureRequest) -> int:
    """Nodes of the job."""
    return request.param


@pytest.fixture
def job(mover_account: client.ApiClient, api: Api, pool: Pool, silent: str, count: int) -> Iterator[str]:
    others = add(api, pool, silent, "other", count - 1)
    yield from sent(api, silent, count, OnNotice.HANDLES)
    nodes.remove(api, others)


@pytest.fixture
def wrapped(mover_account: client.ApiClient, api: Api, silent: str) -> Iterator[str]:
    yield from sent(api, silent, 1, OnNotice.WRAP)


def add(api: Api, pool: Pool, silent: str, kind: str, count: int) -> list[str]:
    return nodes.add(api, [nodes.node(pool, f"{silent}-{kind}-{i}", labels={OWN: silent}) for i in range(count)])


def pods(api: Api, job: str) -> list[Object]:
    return list(api.items(f"{SPACE}/pods", labelSelector=f"holdfast.dev/job={job}"))


def placed(api: Api, job: str, silent: str, count: int) -> list[Object]:
    """All `count` pods of the job have a node, and the one on the silent node runs: a kubelet said so before it froze."""

    def bound() -> list[Object]:
        report(api, silent)
        found = pods(api, job)
        return found if len(found) == count and all(pod["spec"].get("nodeName") for pod in found) else []

    found = until("all pods have a node", bound, 60)
    for pod in found:
        if pod["spec"]["nodeName"] == silent:
            api.merge(f"{SPACE}/pods/{pod['metadata']['name']}/status", {"status": {"phase": "Running"}})
    return found


def marked(api: Api, silent: str) -> bool:
    taints = api.get(f"{nodes.NODES}/{silent}")["spec"].get("taints", [])
    return any(taint["key"] == UNREACHABLE for taint in taints)


def test_a_job_leaves_a_silent_node(
    api: Api, mover_account: client.ApiClient, pool: Pool, silent: str, job: str, count: int
) -> None:
    acting = Api.over(mover_account)
    before = placed(api, job, silent, count)
    held = [pod for pod in before if pod["spec"]["nodeName"] == silent]
    assert held and held[0]["metadata"]["annotations"][ANNOTATION_EXPENDABLE] == "true"
    assert not end_pods(acting, [silent], time.time()), "it is not asked to go yet"
    until("the control plane finds the node silent", lambda: marked(api, silent), 120)
    spare = add(api, pool, silent, "spare", len(before))
    since = time.monotonic()
    try:
        until("the mover ends it", lambda: end_pods(acting, [silent], time.time()), 180)
        old = {pod["metadata"]["uid"] for pod in before if pod["spec"]["nodeName"] == silent}

        def replaced() -> bool:
            now = pods(api, job)
            running = [p for p in now if p["status"]["phase"] == "Running" and p["spec"]["nodeName"] != silent]
            return len(running) == len(before) and not old & {p["metadata"]["uid"] for p in now}

        until("it runs elsewhere", replaced, 120)
        print(f"from the taint to the replacement: {time.monotonic() - since:.0f} s")
    finally:
        nodes.remove(api, spare)
    events = [e for e in api.items(f"{SPACE}/events") if e["involvedObject"].get("uid") in old]
    assert REASON in {event["reason"] for event in events}


def test_a_wrapped_program_is_left_alone(api: Api, mover_account: client.ApiClient, silent: str, wrapped: str) -> None:
    """Nothing is known of what a second copy of it would do."""
    (pod,) = placed(api, wrapped, silent, 1)
    name = pod["metadata"]["name"]
    api.delete(f"{SPACE}/pods/{name}", gracePeriodSeconds=1)
    due_s = time.time() + 60
    assert end_pods(Api.over(mover_account), [silent], due_s) == []
    assert api.get(f"{SPACE}/pods/{name}")["metadata"]["deletionTimestamp"]
