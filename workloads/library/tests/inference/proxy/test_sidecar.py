"""The drain for servers that have none: a stand-in behaves at SIGTERM as vLLM does, and must lose
nothing.
"""

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
from holdfast.vocabulary.serving import DRAIN_PATH, READY_PATH, sidecar_budget
from workloads.library.tests.http_server import answering
from workloads.library.tests.inference.server.serving import Client, envoy, running
from workloads.library.tests.processes import until

pytestmark = pytest.mark.process
WINDOW_S = 15.0


def code(port: int, path: str, method: str = "GET") -> int:
    try:
        return Client(port).request(method, path, b"{}" if method == "POST" else None).status
    except OSError:
        return 0


@pytest.fixture
def stopping() -> threading.Event:
    return threading.Event()


@pytest.fixture
def port(stopping: threading.Event) -> Generator[int]:
    """Of a server that answers until `stopping`, then refuses with 503 what comes (vllm#36666)."""

    def answer(_path: str, _headers: object, body: bytes) -> tuple[int, object]:
        code = 503 if stopping.is_set() else 200
        time.sleep(0.02 if body and code == 200 else 0)
        return code, b""

    with answering(answer) as url:
        yield urlsplit(url).port or 0


def test_with_the_sidecar_no_request_meets_a_server_that_refuses_and_a_proxy_takes_it_out_in_time(
    tmp_path: Path, port: int, stopping: threading.Event
) -> None:
    """Played as the kubelet does it: the hook, then SIGTERM. A real Envoy, endpoints as the watcher
    writes them: no change of them is needed, its own health check sees the drain.
    """
    probe_port, hook_port, proxy_port, admin_port, metrics = (free_port() for _ in range(5))
    piece = {
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
    follower.take([("ADDED", piece)])
    follower.keep_only({"a"})
    ports: dict[str, Any] = {
        "host": "127.0.0.1",
        "port": proxy_port,
        "admin_port": admin_port,
        "metrics_port": metrics,
    }
    config = tmp_path / "envoy.json"
    config.write_text(
        json.dumps(bootstrap(Proxy(endpoints_file=str(out), longest_request_s=7.0, **ports)))
    )
    serve = [
        sys.executable,
        "-m",
        "holdfast",
        "serve",
        "sidecar",
        "--health",
        f"http://127.0.0.1:{port}/health",
    ]
    serve += [
        "--port",
        str(probe_port),
        "--hook-port",
        str(hook_port),
        "--window",
        str(WINDOW_S),
    ]
    with running(serve), envoy(config, admin_port) as healthy:
        until(lambda: code(probe_port, READY_PATH) == 200, "both to be ready")
        until(lambda: healthy() == 1, "the proxy to find the server healthy")
        assert code(proxy_port, "/v1/completions", "POST") == 200
        assert code(probe_port, DRAIN_PATH) == 404, (
            "whom a policy lets ask for readiness cannot end it"
        )
        hook = threading.Thread(target=code, args=(hook_port, DRAIN_PATH))
        began = time.monotonic()
        hook.start()
        until(lambda: code(probe_port, READY_PATH) == 503, "readiness to end")
        until(lambda: healthy() == 0, "the proxy to see the drain")
        assert {code(port, "/v1/completions", "POST") for _ in range(10)} == {200}, (
            "of clients that follow late"
        )
        hook.join()
        assert time.monotonic() - began >= sidecar_budget(WINDOW_S)[0]
        stopping.set()
        assert code(port, "/v1/completions", "POST") == 503, "what the same client would have met"


def test_a_neighbour_that_does_not_answer_is_not_ready_and_the_listening_thread_ends() -> None:
    sidecar = Sidecar(
        health_url="http://127.0.0.1:9/health",
        hold_s=0.0,
        most_s=0.0,
    )
    assert not sidecar.ready()
    with sidecar.listening("127.0.0.1", 0):
        (thread,) = (each for each in threading.enumerate() if each.name == "sidecar")
    thread.join(30)
    assert not thread.is_alive()


def test_a_drain_waits_until_no_request_is_counted() -> None:
    left = [2, 1, 0]
    with answering(
        lambda *_: (200, f"http.requests.downstream_rq_active: {left.pop(0)}".encode())
    ) as url:
        Sidecar(
            health_url=url,
            hold_s=0.0,
            most_s=30.0,
            count_url=f"{url}/stats",
        ).drain()
    assert not left
