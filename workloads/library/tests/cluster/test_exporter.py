"""The exporter on a real API server: what it exports after a preemption, and who may write."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes import client, config
from pytest_kubernetes.providers.base import AClusterManager

from holdfast.clients.api import Api
from holdfast.contract.pools import Pool
from holdfast.exporter.lease import Lease
from holdfast.exporter.sources import Folder
from holdfast.exporter.watch import KINDS, Watcher
from holdfast.ledger.receipt import leave
from holdfast.mover.node_usage import NodeUsage
from holdfast.mover.receipts import Order, make
from holdfast.mover.view import SETTLE_END_S, Ended, View, ending
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World
from workloads.library.tests import sample
from workloads.library.tests.sample import EPOCH


@pytest.fixture
def client_api(cluster: AClusterManager) -> Iterator[client.ApiClient]:
    api = config.new_client_from_config(str(cluster.kubeconfig))
    yield api
    api.rest_client.pool_manager.clear()


@pytest.fixture
def watched(client_api: client.ApiClient, world: World) -> Iterator[View]:
    found, lock = View(), threading.Lock()
    watchers = [Watcher(kind, client_api, found, lock) for kind in (*KINDS, *ending([world.name]))]
    for watcher in watchers:
        watcher.start()
    until("the first lists are read", lambda: all(w.ready.is_set() for w in watchers) or None)
    yield found
    for watcher in watchers:
        watcher.close()
        watcher.join(30)
        assert not watcher.is_alive()


def over(found: View) -> list[Ended]:
    return [each for held in found.over.values() for each in held.values()]


def total(found: View) -> float:
    return sum(s.value for s in found.samples(time.time()) if s.metric == "preemptions_total")


def test_a_preempted_spot_node_counts_and_a_deleted_one_does_not(world: World, watched: View, spot: Pool) -> None:
    names = world.add_nodes(spot, 3)
    world.create_job("run", world.job_spec(spot, 2))
    world.wait_running(2)
    busy = sorted({pod["spec"]["nodeName"] for pod in world.pods("Running")})
    before = total(watched)
    world.preempt(busy[:1])
    until("the preemption is counted", lambda: total(watched) == before + 1 or None, 60)
    idle = next(name for name in names if name not in busy)
    world.api.delete(f"/api/v1/nodes/{idle}")
    until("the deleted node is gone", lambda: idle not in watched.nodes or None, 60)
    assert total(watched) == before + 1


def test_a_pod_that_fits_nowhere_waits_in_sight(world: World, watched: View, spot: Pool) -> None:
    world.create_pod("lonely", world.pod_template(spot))

    def waited() -> float | None:
        found = [s for s in watched.samples(time.time() + 100) if s.metric == "pending_seconds"]
        mine = [s.value for s in found if dict(s.labels)["capacity"] == "spot" and s.value > 90]
        return mine[0] if mine else None

    assert until("the wait is exported", waited, 60) < 400


def test_a_job_that_ended_waits_for_its_receipt_until_somebody_left_it(
    world: World, watched: View, client_api: client.ApiClient, spot: Pool, tmp_path: Path
) -> None:
    world.add_nodes(spot, 1)
    world.create_job("run", world.job_spec(spot, 1))
    world.wait_running(1)
    assert not over(watched)
    world.release()
    world.wait_condition("run")
    waiting = until("the end is seen", lambda: next(iter(over(watched)), None), 60)
    sample.write(
        tmp_path / "a.jsonl", [row | {"t": row["t"] - EPOCH + waiting.began_s} for row in sample.training("run")]
    )
    node_usage = NodeUsage(node_s={("g2-standard-8", "us-central1", "spot"): 9.0}, pod_s=9.0, on_s=9.0)
    made = make(Order(waiting, node_usage), Folder(tmp_path))
    assert leave(made, world.name, Api.over(client_api)).endswith("/jobs/run")
    until("the annotation is seen", lambda: not over(watched) or None, 60)
    assert watched.ended(waiting.ended_s + SETTLE_END_S) == []


def test_one_of_two_exporters_writes_until_it_lets_go(world: World, client_api: client.ApiClient) -> None:
    first, second = (Lease(Api.over(client_api), world.name, me=name) for name in ("a", "b"))
    assert first.held()
    assert first.held()
    assert not second.held()
    first.release()
    assert second.held()
    assert not first.held()


def test_a_dead_exporter_is_replaced_when_its_term_is_over(world: World, client_api: client.ApiClient) -> None:
    api, now = Api.over(client_api), time.time()
    assert Lease(api, world.name, me="dead", clock=lambda: now).held()
    assert not Lease(api, world.name, me="next", clock=lambda: now + 29).held()
    assert Lease(api, world.name, me="next", clock=lambda: now + 31).held()
