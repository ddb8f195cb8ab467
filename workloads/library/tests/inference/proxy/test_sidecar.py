"""Tests of the drain sidecar, with a server that refuses requests after SIGTERM like vLLM."""

import json
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from holdfast.drill.serving.fleet import free_port
from holdfast.inference.proxy.endpoints import Follower
from holdfast.inference.proxy.sidecar import Sidecar
from holdfast.manifests.envoy import CLUSTER, Proxy, bootstrap
from holdfast.support.errors import InputError
from holdfast.vocabulary.serving import DRAIN_PATH, READY_PATH, sidecar_budget
from workloads.library.tests.http_server import answering
from workloads.library.tests.inference.server.serving import Client, envoy, running
from workloads.library.tests.processes import until

pytestmark = pytest.mark.process
WINDOW_S = 15.0


def request(port: int, path: str, method: str = "GET") -> int:
    """Returns the status of a response; 0 if there is none."""
    body = b"{}" if method == "POST" else None
    try:
        return Client(port).request(method, path, body).status
    except OSError:
        return 0


@pytest.fixture
def stopping() -> threading.Event:
    return threading.Event()


@pytest.fixture
def port(stopping: threading.Event) -> Generator[int]:
    """Returns the port of a server that answers 503 once `stopping` is set (vllm#36666)."""

    def answer(
        _path: str,
        _headers: object,
        body: bytes,
    ) -> tuple[int, object]:
        if stopping.is_set():
            return 503, b""
        time.sleep(0.02 if body else 0)
        return 200, b""

    with answering(answer) as url:
        yield urlsplit(url).port or 0


BAD_URLS = ["127.0.0.1:8000/health", "https://127.0.0.1:8000/health", "http://127.0.0.1:x/health"]


@pytest.mark.parametrize("url", BAD_URLS)
def test_a_url_that_cannot_be_asked_is_refused(url: str) -> None:
    """A server with such a health URL would never be ready, without a word about the cause."""
    good = "http://127.0.0.1:8000/health"
    for urls in ((url, "", ""), (good, url, ""), (good, "", url)):
        health, drain, count = urls
        with pytest.raises(InputError, match="cannot be asked"):
            Sidecar(
                health_url=health,
                hold_s=0.0,
                most_s=0.0,
                drain_url=drain,
                count_url=count,
            )


def test_with_the_sidecar_no_request_reaches_a_server_that_refuses(
    tmp_path: Path,
    port: int,
    stopping: threading.Event,
) -> None:
    """The hook comes first, then SIGTERM, as from the kubelet.

    The proxy is a real Envoy with written endpoints, which need not change: its own health check
    notices the drain.
    """
    probe_port = free_port()
    hook_port = free_port()
    proxy_port = free_port()
    admin_port = free_port()
    endpoint_slice = {
        "metadata": {"name": "a"},
        "ports": [{"port": port}],
        "endpoints": [{"addresses": ["127.0.0.1"]}],
    }
    out = tmp_path / "servers.json"
    follower = Follower(
        namespace="n",
        service="s",
        cluster=CLUSTER,
        out=out,
        health_port=probe_port,
    )
    follower.take([("ADDED", endpoint_slice)])
    follower.keep_only({"a"})
    ports: dict[str, Any] = {
        "host": "127.0.0.1",
        "port": proxy_port,
        "admin_port": admin_port,
        "metrics_port": free_port(),
    }
    config = tmp_path / "envoy.json"
    proxy = Proxy(endpoints_file=str(out), longest_request_s=7.0, **ports)
    config.write_text(json.dumps(bootstrap(proxy)))
    sidecar = [
        sys.executable,
        "-m",
        "holdfast",
        "serve",
        "sidecar",
        "--health",
        f"http://127.0.0.1:{port}/health",
    ]
    sidecar += [
        "--port",
        str(probe_port),
        "--hook-port",
        str(hook_port),
        "--window",
        str(WINDOW_S),
    ]
    with running(sidecar), envoy(config, admin_port) as healthy:
        until(lambda: request(probe_port, READY_PATH) == 200, "both to be ready")
        until(lambda: healthy() == 1, "the proxy to find the server healthy")
        assert request(proxy_port, "/v1/completions", "POST") == 200
        assert request(probe_port, DRAIN_PATH) == 404, "the probe's port cannot start a drain"
        hook = threading.Thread(
            target=request,
            args=(hook_port, DRAIN_PATH),
        )
        start = time.monotonic()
        hook.start()
        until(lambda: request(probe_port, READY_PATH) == 503, "readiness to end")
        until(lambda: healthy() == 0, "the proxy to see the drain")
        for _ in range(10):
            status = request(port, "/v1/completions", "POST")
            assert status == 200, "clients may notice the drain late"
        hook.join()
        assert time.monotonic() - start >= sidecar_budget(WINDOW_S)[0]
        stopping.set()
        assert request(port, "/v1/completions", "POST") == 503, "the status without the sidecar"


def test_a_server_that_does_not_answer_is_not_ready() -> None:
    sidecar = Sidecar(health_url="http://127.0.0.1:9/health", hold_s=0.0, most_s=0.0)
    assert not sidecar.ready()
    with sidecar.listening("127.0.0.1", 0):
        threads = {thread.name: thread for thread in threading.enumerate()}
    thread = threads["sidecar"]
    thread.join(30)
    assert not thread.is_alive()


def test_a_drain_waits_until_no_request_is_open() -> None:
    open_requests = [2, 1, 0]

    def answer(*_: object) -> tuple[int, object]:
        text = f"http.requests.downstream_rq_active: {open_requests.pop(0)}"
        return 200, text.encode()

    with answering(answer) as url:
        sidecar = Sidecar(
            health_url=url,
            hold_s=0.0,
            most_s=30.0,
            count_url=f"{url}/stats",
        )
        sidecar.drain()
    assert not open_requests
