"""Tests of idle and of many connections: they are closed, and do not keep others out."""

import socket
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from workloads.library.tests.inference.server.serving import (
    Served,
    head,
    receive_all,
    serve,
    texts,
)
from workloads.library.tests.processes import until

pytestmark = pytest.mark.process
EARLY = b"POST /v3 HTTP/1.1\r\nHost: here\r\nContent-Length: 100\r\n\r\n"
PROBE = b"GET /v2/health/live HTTP/1.1\r\nHost: here\r\n\r\n"
LARGE = 7 * 1024 * 1024
"""More than the kernel keeps of a response for a client that does not read."""
CONNECTIONS = 4


def open_connections(server: Served) -> int:
    connections = psutil.Process(server.process.pid).net_connections("tcp")
    return sum(connection.status == psutil.CONN_ESTABLISHED for connection in connections)


def begin_body(server: Served, stack: ExitStack, body: bytes) -> socket.socket:
    """Sends the headers of a request; returns once the server reads its body."""
    connection = stack.enter_context(server.send(head(len(body), b"Expect: 100-continue")))
    assert connection.recv(65536).startswith(b"HTTP/1.1 100 ")
    return connection


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([], id="silent"),
        pytest.param([b"\r\n"], id="empty lines"),
        pytest.param([PROBE], id="after a request"),
        pytest.param([EARLY, b"x"], id="in a body that was answered early"),
    ],
)
def test_an_idle_connection_is_closed(tmp_path: Path, parts: list[bytes]) -> None:
    with serve(tmp_path, "--set", "idle_s=2") as server:
        connection = server.send()
        response = b""
        for part in parts:
            connection.sendall(part)
            if part.startswith((b"GET", b"POST")):
                response = connection.recv(65536)
        assert receive_all(connection) == b"", response
        assert server.infer("after").status == 200


@pytest.mark.parametrize("requests", [1, 2])
def test_a_client_that_does_not_read_keeps_no_connection(tmp_path: Path, requests: int) -> None:
    options = ("--window", "60", "--set", "idle_s=1")
    with serve(tmp_path, *options) as server, ExitStack() as stack:
        connection = stack.enter_context(socket.socket())
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", server.port))
        body = texts("x" * LARGE)
        for _ in range(requests):
            connection.sendall(head(len(body)) + body)
        answered = 'holdfast_server_requests_total\\{code="200"\\}'
        until(lambda: server.metric(answered) > 0, "a response")
        until(lambda: open_connections(server) == 0, "the server to close the connection")
        assert len(receive_all(connection)) < LARGE, "the server drops the rest"


def test_a_new_connection_replaces_a_silent_one(tmp_path: Path) -> None:
    with serve(tmp_path, "--set", f"connections={CONNECTIONS}") as server, ExitStack() as stack:
        kept = stack.enter_context(server.send(PROBE))
        assert kept.recv(65536).startswith(b"HTTP/1.1 200 ")
        silent = [stack.enter_context(server.send()) for _ in range(CONNECTIONS - 1)]
        until(lambda: open_connections(server) == CONNECTIONS, "the connections")
        assert server.infer("new").status == 200
        assert silent[0].recv(1) == b"", "the oldest silent one"
        for connection in (kept, *silent[1:]):
            connection.sendall(PROBE)
            assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_a_connection_too_many_is_refused_while_all_others_have_requests(tmp_path: Path) -> None:
    options = ("--window", "300", "--set", f"connections={CONNECTIONS}")
    body = texts("x")
    with serve(tmp_path, *options) as server, ExitStack() as stack:
        busy = [begin_body(server, stack, body) for _ in range(CONNECTIONS)]
        response = receive_all(server.send())
        assert response.startswith(b"HTTP/1.1 503 ")
        for connection in busy:
            connection.sendall(body)
            assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
        assert server.infer("after").status == 200
