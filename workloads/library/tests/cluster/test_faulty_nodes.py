"""A GPU of a Spot node breaks: the job saves and goes on elsewhere, the node goes, and no other node can."""

import uuid
from collections.abc import Iterator
from dataclasses import replace

import pytest
from kubernetes import client

from holdfast.clients.api import Api, ApiError, Object
from holdfast.contract.pools import LABEL_GPU_FAULT, Pool
from holdfast.contract.telemetry import GPU_EXPORTER_NAMESPACE
from holdfast.exporter.objects import Node, read_node
from holdfast.jobs.job_file import OnNotice
from holdfast.manifests.render_context import RenderContext
from holdfast.mover.faulty_nodes import REASON, FaultyNodes
from tests.cluster.sim import nodes
from tests.cluster.sim.waiting import until
from tests.platforms import load
from workloads.library.tests.cluster.test_mover import pods
from workloads.library.tests.cluster.test_silent_nodes import OWN, sent
from workloads.library.tests.cluster.test_silent_nodes import pool as pool
from workloads.manifests import faulty_nodes

BROKEN = 'DCGM_FI_DEV_XID_ERRORS{gpu="0",err_code="79"} 79\n'
NOW = 1_790_002_800.0
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def mover(mover_account: client.ApiClient, api: Api) -> Iterator[Api]:
    """With the rights of an environment that lets it replace nodes."""
    platform = load("example")
    lets = replace(platform, security=replace(platform.security, faulty_nodes_per_hour=2))
    more = [body for body in faulty_nodes.objects(RenderContext(lets)) if body["metadata"]["name"] == faulty_nodes.NAME]
    for body in more:
        api.apply(api.path_of(body), body)
    yield Api.over(mover_account)
    for body in more:
        api.delete(api.path_of(body))


@pytest.fixture
def broken(api: Api, mover: Api, pool: Pool) -> Iterator[str]:
    """A Spot node on which the rendered DaemonSet runs the exporter."""
    name = f"broken-{uuid.uuid4().hex[:5]}"
    added = nodes.add(api, [nodes.node(pool, name, labels={OWN: name})])
    until("the node is ready", lambda: nodes.ready(api, added), 60)
    until("its exporter runs", lambda: exporter_on(api, name), 120)
    yield name
    nodes.remove(api, [name])


@pytest.fixture
def job(api: Api, broken: str) -> Iterator[str]:
    yield from sent(api, broken, 1, OnNotice.HANDLES)


def exporter_on(api: Api, name: str) -> str:
    found = api.items(f"/api/v1/namespaces/{GPU_EXPORTER_NAMESPACE}/pods", fieldSelector=f"spec.nodeName={name}")
    return next((pod["status"].get("podIP", "") for pod in found), "")


def running_on(api: Api, job: str) -> str:
    found = [
        pod
        for pod in pods(api, job)
        if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
    ]
    return found[0]["spec"]["nodeName"] if found else ""


def spot(api: Api, name: str) -> dict[str, Node]:
    return {name: read_node(api.get(f"{nodes.NODES}/{name}"))}


def events(api: Api, name: str) -> list[Object]:
    """The mover's: the node controller writes others."""
    found = api.items("/api/v1/namespaces/default/events")
    return [e for e in found if e["involvedObject"]["name"] == name and e["reason"] == REASON]


def answer(mover: Api, name: str, change: Object | None) -> str:
    """The API server's refusal; empty for what it allows."""
    try:
        mover.merge(f"{nodes.NODES}/{name}", change) if change else mover.delete(f"{nodes.NODES}/{name}")
    except ApiError as error:
        return str(error)
    return ""


def test_its_job_moves_and_the_node_goes(api: Api, mover: Api, pool: Pool, broken: str, job: str) -> None:
    until("the job runs there", lambda: running_on(api, job) == broken, 60)
    address = exporter_on(api, broken)
    found = FaultyNodes(mover, 2, {address: BROKEN}.get)  # type: ignore[arg-type]
    seen = spot(api, broken)
    assert found.step(seen, NOW) == [], "a mover that starts waits its turn"
    spare = nodes.add(api, [nodes.node(pool, f"{broken}-spare", labels={OWN: broken})])
    until("there is another node", lambda: nodes.ready(api, spare), 60)
    try:
        (line,) = found.step(seen, NOW + 1_800)
        assert (line["node"], line["fault"], line["answer"]) == (broken, "xid-79", "replaced")
        held = api.get(f"{nodes.NODES}/{broken}")
        assert held["spec"]["unschedulable"] and held["metadata"]["labels"][LABEL_GPU_FAULT] == "xid-79"
        turns = iter(range(1_830, 3_600, 30))

        def gone() -> bool:
            assert found.step(seen, NOW + next(turns)) == []
            return api.find(f"{nodes.NODES}/{broken}") is None

        until("its pods have left, and the node is gone", gone, 60)
        until("the job runs elsewhere", lambda: running_on(api, job) == spare[0], 60)
    finally:
        nodes.remove(api, spare)
    (event,) = events(api, broken)
    assert (event["reason"], event["type"]) == (REASON, "Warning")


def test_no_other_node_and_no_other_change(api: Api, mover: Api, broken: str, serving: Pool) -> None:
    other = f"{broken}-on-demand"
    added = nodes.add(api, [nodes.node(serving, other)])
    cordon = {"spec": {"unschedulable": True}}
    refused = [
        (other, cordon, "Spot nodes only"),
        (other, None, "Spot nodes only"),
        (broken, {"spec": {"taints": []}}, "nothing else"),
        (broken, {"metadata": {"labels": {"cloud.google.com/gke-nodepool": "mine"}}}, "nothing else"),
    ]
    try:
        until("the policy holds", lambda: "Spot nodes only" in answer(mover, other, {"spec": {}}), 60)
        for name, change, why in refused:
            assert why in answer(mover, name, change)
        mover.merge(f"{nodes.NODES}/{broken}", cordon)
    finally:
        nodes.remove(api, added)
