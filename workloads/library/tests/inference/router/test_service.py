"""The way of a stream in a service: Envoy, router and engines, with the commands that pods have."""

import http.client
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.drill.serving.fleet import find_envoy, free_port
from holdfast.inference.proxy.endpoints import Endpoint, discovery, write
from holdfast.manifests.envoy import CLUSTER
from holdfast.manifests.serving_proxy import ENDPOINTS_DIR
from holdfast.vocabulary.serving import (
    PORT,
    PROXY_ADMIN_PORT,
    PROXY_METRICS_PORT,
    READY_PATH,
    SIDECAR_PORT,
)
from tests.workloads.manifests.rendered import option
from workloads.library.tests.inference.router import fleet
from workloads.library.tests.inference.router.fleet import (
    HOST,
    Stream,
    count_ready,
    engine,
    kill,
    make_text,
    metric,
)
from workloads.library.tests.inference.server.serving import Client, Served, running
from workloads.library.tests.processes import until
from workloads.library.tests.services import example_services

pytestmark = pytest.mark.process
COUNT = 200


@pytest.fixture
def engines(tmp_path: Path) -> Generator[list[Served]]:
    with ExitStack() as stack:
        yield [stack.enter_context(engine(tmp_path)) for _ in range(2)]


@pytest.fixture
def bodies() -> list[dict[str, Any]]:
    """The objects of the example service `chat`."""
    return example_services.render(example_services.read("chat"))


@pytest.fixture
def router(
    tmp_path: Path, engines: list[Served], bodies: list[dict[str, Any]]
) -> Generator[Client]:
    """Starts the router as its pod does: only addresses are others."""
    body = example_services.find(bodies, "Deployment", "chat-router")
    (container,) = body["spec"]["template"]["spec"]["containers"]
    client = Client(free_port())
    words = localize(container["command"], client.port, engines)
    variables = {}
    for variable in container["env"]:
        variables[variable["name"]] = variable["value"]
    variables["HOLDFAST_RUN_DIR"] = str(tmp_path)
    with (tmp_path / "router.log").open("wb") as out, running(words, out, variables):
        until(lambda: count_servers(client) == len(engines), "two ready engines")
        yield client


@pytest.fixture
def proxy(tmp_path: Path, router: Client, bodies: list[dict[str, Any]]) -> Generator[Client]:
    """Starts Envoy with the configuration of its pod, before the router."""
    with run_proxy(tmp_path, read_configuration(bodies), router.port) as client:
        yield client


def read_configuration(bodies: list[dict[str, Any]]) -> str:
    return example_services.find(bodies, "ConfigMap", "chat-proxy")["data"]["envoy.json"]


@contextmanager
def run_proxy(tmp_path: Path, text: str, router_port: int) -> Generator[Client]:
    client = Client(free_port())
    ports = {PORT: client.port, PROXY_ADMIN_PORT: free_port(), PROXY_METRICS_PORT: free_port()}
    for port, own_port in ports.items():
        text = text.replace(f'"port_value": {port}', f'"port_value": {own_port}')
    config = tmp_path / "envoy.json"
    config.write_text(text.replace(ENDPOINTS_DIR, str(tmp_path)))
    write(tmp_path / "servers.json", discovery(CLUSTER, [Endpoint(address=HOST, port=router_port)]))
    words = [find_envoy(), "-c", str(config), "-l", "warning", "--use-dynamic-base-id"]
    with (tmp_path / "envoy.log").open("wb") as out, running(words, out):
        until(lambda: asks_router(client), "Envoy asks the router")
        yield client


def asks_router(client: Client) -> bool:
    """Returns whether a request reaches the router, which has no such path."""
    try:
        return client.request("GET", "/v2/none").json["error"]["message"] == "no such path"
    except (OSError, ValueError, http.client.HTTPException):
        return False


def localize(command: list[str], port: int, engines: list[Served]) -> list[str]:
    """Returns the command with addresses of this machine; engines answer their probes here."""
    assert option(command, "--port") == str(PORT)
    assert option(command, "--health-port") == str(SIDECAR_PORT)
    assert option(command, "--health-path") == READY_PATH
    values = {
        "--servers": ",".join(f"{HOST}:{served.port}" for served in engines),
        "--port": str(port),
        "--health-port": "0",
    }
    words = [sys.executable, *command[1:]]
    for name, value in values.items():
        words[words.index(name) + 1] = value
    return words


def count_servers(client: Client) -> int:
    try:
        return count_ready(client)
    except OSError:
        return -1


def test_a_stream_is_whole_though_its_engine_is_killed(
    proxy: Client, router: Client, engines: list[Served]
) -> None:
    request: dict[str, Any] = {"prompt": "hello", "max_tokens": COUNT, "ignore_eos": True}
    stream = Stream(proxy.port, request | {"stream_options": {"include_usage": True}})
    until(lambda: len(stream.payloads) > COUNT // 10, "the stream is in its middle")
    busy = max(engines, key=lambda served: metric(served, "vllm:num_requests_running"))
    kill(busy)
    assert len(stream.payloads) < COUNT
    stream.wait()
    assert stream.is_whole, stream.payloads[-1:]
    assert stream.text == make_text("hello", COUNT)
    *_, last, usage = stream.events
    assert last["choices"][0]["finish_reason"] == "length"
    assert usage["usage"]["completion_tokens"] == COUNT
    assert metric(router, "holdfast_router_moved_total", 'cause="died"') == 1


def test_comments_keep_a_waiting_stream_open(tmp_path: Path, bodies: list[dict[str, Any]]) -> None:
    """Envoy ends what is silent for a time, which is a second here."""
    text = read_configuration(bodies)
    assert text.count('"idle_timeout": "300s"') == 1
    text = text.replace('"idle_timeout": "300s"', '"idle_timeout": "1s"')
    port = free_port()
    options = ("--servers", f"{HOST}:{port}", "--set", "comment_s=0.3")
    with (
        fleet.router(tmp_path, *options, ready=0) as served,
        run_proxy(tmp_path, text, served.port) as proxy,
    ):
        stream = Stream(proxy.port, {"prompt": "hello", "max_tokens": COUNT, "ignore_eos": True})
        until(lambda: stream.comments >= 10, "it waits for longer than that")
        with engine(tmp_path, port=port):
            stream.wait()
    assert stream.is_whole, stream.payloads[-1:]
    assert stream.text == make_text("hello", COUNT)
