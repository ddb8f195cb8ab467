"""The sidecar that ends and starts the servers of a service, with a clock of the test."""

import http.client
import io
import threading
import urllib.error
from collections.abc import Iterator, Mapping
from email.message import Message
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from holdfast.inference.router.idle_scaler import IdleScaler
from holdfast.inference.router.metrics import Metrics
from holdfast.inference.router.servers import State
from holdfast.runtime import api_server
from tests.support import HttpServer
from workloads.library.tests.http_server import answering

SCALE = "/apis/apps/v1/namespaces/serving/deployments/drafts-base/scale"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/serving/leases/drafts-router"
IDLE_S = 600.0
START_S = 1_000_000.0


class Service:
    """A router's metrics, and the objects of an API server that a clock drives."""

    def __init__(self) -> None:
        self.now = START_S
        self.open = 0
        self.ended = 0
        self.ready = 1
        self.replicas = 1
        self.renewed: str | None = None
        self.version = 1
        self.writes: list[str] = []
        self.is_racing = False
        """Another client changes the replicas between each read and write."""

    def answer(self, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, object]:
        assert path == "/metrics"
        metrics = Metrics()
        metrics.streams.set(self.open)
        metrics.requests.labels("200").inc(self.ended)
        metrics.servers.labels(State.READY.value).set(self.ready)
        metrics.servers.labels(State.DRAINING.value).set(3)
        return 200, metrics.text()

    def get(self, path: str, *, timeout_s: float) -> Any:
        if path == LEASE:
            return {"spec": {"renewTime": self.renewed}} if self.renewed else {}
        assert path == SCALE
        metadata = {"resourceVersion": str(self.version)}
        if self.is_racing:
            self.version += 1
        spec = {"replicas": self.replicas} if self.replicas else {}
        return {"metadata": metadata, "spec": spec}

    def merge(self, path: str, patch: Any, *, timeout_s: float) -> None:
        self.writes.append(path)
        if path == LEASE:
            self.renewed = patch["spec"]["renewTime"]
            return
        assert path == SCALE
        if patch["metadata"]["resourceVersion"] != str(self.version):
            raise urllib.error.HTTPError(path, 409, "conflict", Message(), io.BytesIO())
        self.replicas = patch["spec"]["replicas"]
        self.version += 1


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    service = Service()
    monkeypatch.setattr(api_server, "get", service.get)
    monkeypatch.setattr(api_server, "merge", service.merge)
    return service


@pytest.fixture
def scaler(service: Service) -> Iterator[IdleScaler]:
    with answering(service.answer) as address:
        yield make_scaler(service, address)


def make_scaler(service: Service, address: str) -> IdleScaler:
    return IdleScaler(
        router_url=address,
        namespace="serving",
        lease="drafts-router",
        deployments=["drafts-base"],
        idle_s=IDLE_S,
        clock=lambda: service.now,
    )


def run_for(service: Service, scaler: IdleScaler, seconds: float) -> None:
    end = service.now + seconds
    while service.now < end:
        service.now += 20
        scaler.step()


def test_a_new_service_sleeps_after_its_idle_time(service: Service, scaler: IdleScaler) -> None:
    run_for(service, scaler, IDLE_S)
    assert service.replicas == 1
    run_for(service, scaler, 60)
    assert service.replicas == 0


def test_the_last_request_counts(service: Service, scaler: IdleScaler) -> None:
    """A request may begin and end between two looks."""
    run_for(service, scaler, IDLE_S / 2)
    service.ended += 1
    run_for(service, scaler, IDLE_S)
    assert service.replicas == 1
    run_for(service, scaler, 60)
    assert service.replicas == 0


def test_an_open_request_keeps_the_servers(service: Service, scaler: IdleScaler) -> None:
    service.open = 1
    run_for(service, scaler, 3 * IDLE_S)
    assert service.replicas == 1
    assert service.writes.count(LEASE) < 35


def test_requests_at_another_router_keep_the_servers(service: Service, scaler: IdleScaler) -> None:
    with answering(service.answer) as address:
        idle_scaler = make_scaler(service, address)
        for _ in range(100):
            service.now += 20
            service.open = 1
            scaler.step()
            service.open = 0
            idle_scaler.step()
    assert service.replicas == 1


def test_a_waiting_request_starts_a_replica(service: Service, scaler: IdleScaler) -> None:
    service.replicas = service.ready = 0
    service.open = 1
    scaler.step()
    assert service.replicas == 1
    assert service.writes == [LEASE, SCALE]
    service.now += 60
    scaler.step()
    assert service.writes.count(SCALE) == 1, "it starts already"


def test_a_loaded_service_is_not_scaled(service: Service, scaler: IdleScaler) -> None:
    """Its autoscaler does that."""
    service.replicas = 3
    service.open = 40
    run_for(service, scaler, 100)
    assert SCALE not in service.writes


def test_the_autoscaler_wins_a_race(service: Service, scaler: IdleScaler) -> None:
    service.is_racing = True
    run_for(service, scaler, 2 * IDLE_S)
    assert service.replicas == 1
    service.is_racing = False
    run_for(service, scaler, 60)
    assert service.replicas == 0


class TornHandler(BaseHTTPRequestHandler):
    """A router that is killed within a response."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "100")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_a_response_that_is_cut_off_is_asked_for_again(service: Service) -> None:
    with HttpServer(("127.0.0.1", 0), TornHandler) as server:
        scaler = make_scaler(service, f"http://127.0.0.1:{server.server_port}")
        ends = iter([False, False, True])
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            scaler.run(lambda seconds: next(ends))
        finally:
            server.shutdown()
            thread.join()
    assert next(ends, None) is None
    assert not service.writes


def test_a_router_that_does_not_answer_changes_nothing(service: Service) -> None:
    scaler = make_scaler(service, "http://127.0.0.1:1")
    with pytest.raises((OSError, http.client.HTTPException)):
        scaler.step()
    assert not service.writes
