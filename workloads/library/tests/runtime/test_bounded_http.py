"""Silent, slow and oversized connections use bounded threads and memory and block no others."""

import http.client
import socket
import threading
import time
from collections.abc import Generator
from contextlib import closing

import pytest

from holdfast.runtime import bounded_http
from holdfast.runtime.bounded_http import BoundedHandler, BoundedServer


class Handler(BoundedHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()


class Server(BoundedServer):
    most = 8


@pytest.fixture
def port() -> Generator[int]:
    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(
            target=server.serve_forever,
            args=(0.02,),
            daemon=True,
        ).start()
        yield server.server_port
        server.shutdown()


def request(port: int) -> int:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET", "/")
        return connection.getresponse().status


def count_threads() -> int:
    names = [thread.name for thread in threading.enumerate()]
    return sum("process_request_thread" in name for name in names)


def test_half_open_connections_use_bounded_threads_and_make_room(port: int) -> None:
    # A connection without room in the kernel's queue is retried after one, two and four seconds.
    connections = []
    for _ in range(100):
        connections.append(socket.create_connection(("127.0.0.1", port), timeout=0.9))
    for _ in range(20):
        assert request(port) == 200
    assert count_threads() <= Server.most
    for connection in connections:
        connection.close()


def test_a_slow_sender_is_disconnected(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_http, "READ_S", 0.3)
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    with connection, pytest.raises(OSError):
        while True:  # until the test's own time is over
            connection.sendall(b"G")
            time.sleep(0.02)


def test_headers_are_limited(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        header = b"x: " + b"y" * 1000 + b"\r\n"
        connection.sendall(b"GET / HTTP/1.0\r\n" + header * 40)
        assert connection.recv(64).startswith(b"HTTP/1.0 200 ")


def test_a_thread_that_cannot_start_takes_no_room(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod at its limit of processes can start none for a while."""
    start = threading.Thread.start
    failures = iter(range(2 * Server.most))

    def fail_at_first(thread: threading.Thread) -> None:
        if next(failures, None) is not None:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fail_at_first)
    for _ in range(2 * Server.most):
        with pytest.raises((OSError, http.client.HTTPException)):
            request(port)
    assert request(port) == 200
