"""Tests of Envoy's limits for clients, with a real Envoy that has no servers."""

import json
import socket
import struct
import urllib.request
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.drill.serving.fleet import admin, free_port
from holdfast.inference.proxy.endpoints import discovery, write
from holdfast.manifests.envoy import CLUSTER, Proxy, bootstrap
from holdfast.vocabulary import serving
from workloads.library.tests.inference.server.serving import PATIENCE_S, Client, envoy
from workloads.library.tests.processes import until

pytestmark = pytest.mark.process
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME = struct.Struct(">BHBBI")
SETTING = struct.Struct(">HI")
SETTINGS = 4
WINDOW_UPDATE = 8
MAX_CONCURRENT_STREAMS = 3
INITIAL_WINDOW_SIZE = 4
KIB = 1024
LIMIT = "envoy.resource_monitors.global_downstream_max_connections"
PROBE = b"GET /v2 HTTP/1.1\r\nHost: here\r\n\r\n"


def make_proxy(folder: Path) -> Proxy:
    endpoints = folder / "servers.json"
    write(endpoints, discovery(CLUSTER, []))
    return Proxy(
        endpoints_file=str(endpoints),
        longest_request_s=7.0,
        host="127.0.0.1",
        port=free_port(),
        admin_port=free_port(),
        metrics_port=free_port(),
    )


@contextmanager
def run_proxy(folder: Path, proxy: Proxy, content: dict[str, Any]) -> Generator[Client]:
    config = folder / "envoy.json"
    config.write_text(json.dumps(content))
    with envoy(config, proxy.admin_port) as count_healthy:
        until(lambda: count_healthy() == 0, "the proxy")
        until(lambda: has_started(proxy), "its listeners")
        yield Client(proxy.port)


def has_started(proxy: Proxy) -> bool:
    _, text = admin(proxy.admin_port, "/stats?filter=^listener_manager.workers_started$")
    return text.rpartition(":")[2].strip() == "1"


def receive_frame(connection: socket.socket) -> tuple[int, bytes]:
    """Receives a frame of HTTP/2; returns its type and payload."""
    head = connection.recv(FRAME.size, socket.MSG_WAITALL)
    high, low, kind, _, _ = FRAME.unpack(head)
    return kind, connection.recv(high << 16 | low, socket.MSG_WAITALL)


def test_clients_of_http2_get_few_streams_and_small_windows(tmp_path: Path) -> None:
    proxy = make_proxy(tmp_path)
    with run_proxy(tmp_path, proxy, bootstrap(proxy)) as client:
        no_settings = FRAME.pack(0, 0, SETTINGS, 0, 0)
        with client.send(PREFACE, no_settings) as connection:
            kind, payload = receive_frame(connection)
            assert kind == SETTINGS
            kind, update = receive_frame(connection)
            while kind != WINDOW_UPDATE:  # it may acknowledge our settings first
                kind, update = receive_frame(connection)
    settings = dict(SETTING.iter_unpack(payload))
    assert settings[MAX_CONCURRENT_STREAMS] == 100
    assert settings[INITIAL_WINDOW_SIZE] == 64 * KIB
    (more_bytes,) = struct.unpack(">I", update)
    assert 65_535 + more_bytes == 1024 * KIB, "the window of the connection"


def test_connections_are_limited_and_metrics_stay_readable(tmp_path: Path) -> None:
    proxy = make_proxy(tmp_path)
    content = bootstrap(proxy)
    monitors = {
        monitor["name"]: monitor for monitor in content["overload_manager"]["resource_monitors"]
    }
    limit = monitors[LIMIT]["typed_config"]
    assert 1000 < limit["max_active_downstream_connections"] < 10_000
    limit["max_active_downstream_connections"] = 4
    with run_proxy(tmp_path, proxy, content) as client, ExitStack() as stack:
        held = [stack.enter_context(client.send(PROBE)) for _ in range(4)]
        for connection in held:
            assert connection.recv(65536).startswith(b"HTTP/1.1 503 "), "there is no server"
        assert is_closed(client)
        assert Client(proxy.metrics_port).request("GET", "/stats/prometheus").status == 200
        held[0].close()
        until(lambda: not is_closed(client), "room for another connection")


def is_closed(client: Client) -> bool:
    """Returns whether the proxy closes a new connection without a response."""
    with socket.create_connection(("127.0.0.1", client.port), timeout=PATIENCE_S) as connection:
        try:
            connection.sendall(PROBE)
            return not connection.recv(65536)
        except ConnectionError:
            return True


def test_an_autoscaler_reads_one_series(tmp_path: Path) -> None:
    """GKE's adapter takes a path and no label: another series would be counted as well."""
    proxy = make_proxy(tmp_path)
    with run_proxy(tmp_path, proxy, bootstrap(proxy)):
        url = f"http://127.0.0.1:{proxy.metrics_port}{serving.PROXY_ACTIVE_PATH}"
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as response:
            lines = response.read().decode().splitlines()
    series = [line for line in lines if line and not line.startswith("#")]
    (line,) = series
    assert line.startswith(f'{serving.PROXY_ACTIVE}{{envoy_http_conn_manager_prefix="requests"}} ')
    assert f"# TYPE {serving.PROXY_ACTIVE} gauge" in lines
