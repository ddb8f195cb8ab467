"""Connections that say nothing, little or too much hold neither threads nor memory, and shut out no
other.
"""

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


def asked(port: int) -> int:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request("GET", "/")
        return connection.getresponse().status


def test_half_open_connections_hold_a_bounded_number_of_threads_and_make_room(port: int) -> None:
    # A connection for which the kernel's queue has no room is tried again after a second, then two,
    # then four.
    ends = [socket.create_connection(("127.0.0.1", port), timeout=0.9) for _ in range(100)]
    assert [asked(port) for _ in range(20)] == [200] * 20
    assert (
        sum("process_request_thread" in thread.name for thread in threading.enumerate())
        <= Server.most
    )
    for end in ends:
        end.close()


def test_a_slow_sender_is_cut_at_the_deadline(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_http, "READ_S", 0.3)
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), timeout=10) as end, pytest.raises(OSError):
        while time.monotonic() - began < 10:
            end.sendall(b"G")
            time.sleep(0.02)
    assert time.monotonic() - began < 5


def test_headers_end_at_their_bound(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as end:
        end.sendall(b"GET / HTTP/1.0\r\n" + (b"x: " + b"y" * 1000 + b"\r\n") * 40)
        assert end.recv(64).startswith(b"HTTP/1.0 200 ")
