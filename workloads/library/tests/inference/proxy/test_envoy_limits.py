"""Tests of Envoy's limits for clients, with a real Envoy that has no servers."""

import contextlib
import json
import socket
import struct
import urllib.request
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from holdfast.drill.serving.fleet import admin, free_port
from holdfast.inference.proxy.endpoints import Endpoint, discovery, write
from holdfast.manifests.envoy import CLUSTER, PROXY_MEMORY_MIB, Proxy, bootstrap
from holdfast.vocabulary import serving
from workloads.library.tests.inference.server.serving import (
    PATIENCE_S,
    Client,
    envoy,
    receive_all,
)
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
DATA = 0
HEADERS = 1
END_HEADERS = 4
POST = b"\x83\x86\x04\x02/v\x01\x04here"
"""The headers of a request as HPACK without a table: POST, http, the path /v, the host here."""
NO_SETTINGS = FRAME.pack(0, 0, SETTINGS, 0, 0)
CONNECTIONS = 60
UPLOADS = 16
UPLOAD_BYTES = 60 * KIB
FRAME_BYTES = 10 * KIB
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
        yield Client(proxy.port)


def receive_frame(connection: socket.socket) -> tuple[int, bytes]:
    """Receives a frame of HTTP/2; returns its type and payload."""
    head = connection.recv(FRAME.size, socket.MSG_WAITALL)
    high, low, kind, _, _ = FRAME.unpack(head)
    return kind, connection.recv(high << 16 | low, socket.MSG_WAITALL)


def test_http2_clients_get_few_streams_and_small_windows(tmp_path: Path) -> None:
    proxy = make_proxy(tmp_path)
    with (
        run_proxy(tmp_path, proxy, bootstrap(proxy)) as client,
        client.send(PREFACE, NO_SETTINGS) as connection,
    ):
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


def test_a_request_without_a_server_may_be_sent_again(tmp_path: Path) -> None:
    proxy = make_proxy(tmp_path)
    with run_proxy(tmp_path, proxy, bootstrap(proxy)) as client:
        answer = client.request("GET", "/v2")
    assert answer.status == 503
    assert answer.headers.get("retry-after") == "1"


def test_connections_are_limited_and_metrics_stay_readable(tmp_path: Path) -> None:
    proxy = make_proxy(tmp_path)
    content = bootstrap(proxy)
    monitors = {}
    for monitor in content["overload_manager"]["resource_monitors"]:
        monitors[monitor["name"]] = monitor
    limit = monitors[LIMIT]["typed_config"]
    assert 1000 < limit["max_active_downstream_connections"] < 10_000
    limit["max_active_downstream_connections"] = 4
    with run_proxy(tmp_path, proxy, content) as client, ExitStack() as stack:
        connections = []
        for _ in range(4):
            connections.append(stack.enter_context(client.send(PROBE)))
        for connection in connections:
            assert connection.recv(65536).startswith(b"HTTP/1.1 503 "), "there is no server"
        assert is_closed(client)
        assert Client(proxy.metrics_port).request("GET", "/stats/prometheus").status == 200
        connections[0].close()
        until(lambda: not is_closed(client), "room for another connection")


def test_a_silent_connection_is_closed(tmp_path: Path) -> None:
    """The time is shorter here. Bytes that begin no request do not extend it."""
    proxy = make_proxy(tmp_path)
    content = bootstrap(proxy)
    (chain,) = content["static_resources"]["listeners"][0]["filter_chains"]
    manager = chain["filters"][0]["typed_config"]
    options = manager["common_http_protocol_options"]
    assert options == {"idle_timeout": f"{serving.KEEP_ALIVE_S}s"}
    options["idle_timeout"] = "1s"
    with run_proxy(tmp_path, proxy, content) as client, ExitStack() as stack:
        silent = []
        for parts in ((), (PROBE,), (PREFACE, NO_SETTINGS)):
            silent.append(client.send(*parts))
        for connection in silent:
            stack.enter_context(connection)
        for connection in silent:
            receive_all(connection)


@contextmanager
def silent_server() -> Generator[int]:
    """Accepts connections and reads nothing; yields its port."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        yield listener.getsockname()[1]


def begin_uploads(stack: ExitStack, client: Client) -> None:
    """Sends as many bytes as the windows allow, in 16 requests of one connection of HTTP/2."""
    connection = stack.enter_context(client.send(PREFACE, NO_SETTINGS))
    connection.settimeout(5.0)
    frames = bytearray()
    for number in range(UPLOADS):
        stream = 2 * number + 1
        frames += make_frame(HEADERS, END_HEADERS, stream, POST)
        for _ in range(UPLOAD_BYTES // FRAME_BYTES):
            frames += make_frame(DATA, 0, stream, bytes(FRAME_BYTES))
    with contextlib.suppress(TimeoutError, ConnectionError):  # the proxy may stop to read
        connection.sendall(frames)


def make_frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    length = len(payload)
    head = FRAME.pack(
        length >> 16,
        length & 0xFFFF,
        kind,
        flags,
        stream,
    )
    return head + payload


def test_uploads_over_http2_fit_into_the_memory(tmp_path: Path) -> None:
    """Servers that stop reading leave the proxy with all that its clients may send."""
    proxy = make_proxy(tmp_path)
    with silent_server() as port, ExitStack() as stack:
        write(
            Path(proxy.endpoints_file),
            discovery(CLUSTER, [Endpoint(address="127.0.0.1", port=port)]),
        )
        config = tmp_path / "envoy.json"
        config.write_text(json.dumps(bootstrap(proxy)))
        count_healthy = stack.enter_context(envoy(config, proxy.admin_port))
        until(lambda: count_healthy() == 0, "the proxy")
        process = find_listening_process(proxy.port)
        client = Client(proxy.port)
        start_bytes = process.memory_info().rss
        for _ in range(CONNECTIONS):
            begin_uploads(stack, client)
        until(lambda: count_requests(proxy) == CONNECTIONS * UPLOADS, "the requests")
        used_bytes = process.memory_info().rss - start_bytes
        assert used_bytes < PROXY_MEMORY_MIB * KIB * KIB // 2
        assert Client(proxy.metrics_port).request("GET", "/stats/prometheus").status == 200


def count_requests(proxy: Proxy) -> int:
    counter = f"http.{serving.PROXY_REQUESTS}.downstream_rq_total"
    _, text = admin(proxy.admin_port, f"/stats?filter=^{counter}$")
    return int(text.rpartition(":")[2])


def find_listening_process(port: int) -> psutil.Process:
    for process in psutil.Process().children():
        for connection in process.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port:
                return process
    raise AssertionError(f"no child listens on {port}")


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
