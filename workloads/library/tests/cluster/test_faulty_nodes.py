"""A GPU of a Spot node breaks: the job saves and goes on elsewhere, the node goes, and no other
node can.
"""

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest
from kubernetes import client

from holdfast.clients.api import Api, ApiError, Object
from holdfast.controllers.cluster_objects import parse_node
from holdfast.manifests.render_context import RenderContext
from holdfast.mover.faulty_nodes import REASON, FaultyNodes
from holdfast.vocabulary.pools import LABEL_GPU_FAULT, Pool
from holdfast.vocabulary.telemetry import GPU_EXPORTER_NAMESPACE
from tests.cluster.sim import nodes
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World
from tests.platforms import load
from workloads.library.tests.cluster.test_mover import pods
from workloads.library.tests.cluster.test_silent_nodes import OWN, submit_job
from workloads.manifests import faulty_nodes

BROKEN = 'DCGM_FI_DEV_XID_ERRORS{gpu="0",err_code="79"} 79\n'
NOW = 1_790_002_800.0
pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def mover(mover_account: client.ApiClient, api: Api) -> Iterator[Api]:
    """With the rights of an environment that lets it replace nodes."""
    platform = load("example")
    lets = replace(platform, security=replace(platform.security, faulty_nodes_per_hour=2))
    bodies = []
    for body in faulty_nodes.objects(RenderContext(lets)):
        if body["metadata"]["name"] == faulty_nodes.NAME:
            bodies.append(body)
    for body in bodies:
        api.apply(api.path_of(body), body)
    yield Api.over(mover_account)
    for body in bodies:
        api.delete(api.path_of(body))


@pytest.fixture
def broken(world: World, api: Api, mover: Api, spot: Pool) -> str:
    """A Spot node on which the rendered DaemonSet runs the exporter."""
    (name,) = world.add_nodes(spot, 1, labels={OWN: world.name})
    until("its exporter runs", lambda: exporter_on(api, name), 120)
    return name


@pytest.fixture
def job(world: World, api: Api, broken: str) -> Iterator[str]:
    with submit_job(api, world.name, 1) as name:
        yield name


def exporter_on(api: Api, name: str) -> str:
    candidates = api.items(
        f"/api/v1/namespaces/{GPU_EXPORTER_NAMESPACE}/pods", fieldSelector=f"spec.nodeName={name}"
    )
    return next((pod["status"].get("podIP", "") for pod in candidates), "")


def running_on(api: Api, job: str) -> list[str]:
    names = []
    for pod in pods(api, job):
        if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]:
            names.append(pod["spec"]["nodeName"])
    return names


def answer(mover: Api, name: str, change: Object | None) -> str:
    """The API server's refusal; empty for what it allows."""
    try:
        mover.merge(f"{nodes.NODES}/{name}", change) if change else mover.delete(
            f"{nodes.NODES}/{name}"
        )
    except ApiError as error:
        return str(error)
    return ""


def test_its_job_moves_and_the_node_goes(
    world: World,
    api: Api,
    mover: Api,
    spot: Pool,
    broken: str,
    job: str,
) -> None:
    until("the job runs there", lambda: running_on(api, job) == [broken])
    faulty = FaultyNodes(mover, 2, {exporter_on(api, broken): BROKEN}.get)  # type: ignore[arg-type]
    path = f"{nodes.NODES}/{broken}"
    observed = {broken: parse_node(api.get(path))}
    assert faulty.step(observed, NOW) == [], "a mover that starts waits its turn"
    spare = world.add_nodes(spot, 1, labels={OWN: world.name})
    (line,) = faulty.step(observed, NOW + 1_800)
    assert line["node"] == broken
    assert line["fault"] == "xid-79"
    assert line["answer"] == "replaced"
    node = api.get(path)
    assert node["spec"]["unschedulable"]
    assert node["metadata"]["labels"][LABEL_GPU_FAULT] == "xid-79"
    turns = itertools.count(1_830, 5)

    def gone() -> bool:
        assert faulty.step(observed, NOW + next(turns)) == []
        return api.find(path) is None

    until("its pods have left, and the node is gone", gone)
    until("the job runs elsewhere", lambda: running_on(api, job) == spare, 360)
    events = []
    for e in api.items("/api/v1/namespaces/default/events"):
        if e["involvedObject"]["name"] == broken:
            events.append(e)
    types = []
    for event in events:
        if event["reason"] == REASON:
            types.append(event["type"])
    assert types == ["Warning"]


def test_no_other_node_and_no_other_change(
    world: World, mover: Api, broken: str, serving: Pool
) -> None:
    cordon = {"spec": {"unschedulable": True}}
    (other,) = world.add_nodes(serving, 1)
    refused = [
        (other, cordon, "Spot nodes only"),
        (other, None, "Spot nodes only"),
        (broken, {"spec": {"taints": []}}, "nothing else"),
        (
            broken,
            {"metadata": {"labels": {"cloud.google.com/gke-nodepool": "mine"}}},
            "nothing else",
        ),
    ]
    until("the policy holds", lambda: "Spot nodes only" in answer(mover, other, {"spec": {}}))
    for name, change, reason in refused:
        assert reason in answer(mover, name, change)
    mover.merge(f"{nodes.NODES}/{broken}", cordon)
