"""Tests of large, slow and concurrent bodies: one budget of bytes, and parsing during probes."""

import contextlib
import json
import select
import socket
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from workloads.library.tests.inference.server.serving import INFER, Served, head, serve, texts
from workloads.library.tests.processes import until

pytestmark = pytest.mark.process
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    with serve(tmp_path_factory.mktemp("memory"), "--window", "60") as server:
        yield server


def count_refused(connections: list[socket.socket]) -> int:
    count = 0
    for connection in connections:
        connection.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            response = connection.recv(64, socket.MSG_PEEK)
            count += response.startswith(b"HTTP/1.1 429 ")
    return count


def send_until_answered(connection: socket.socket, data: bytes) -> None:
    """Sends all data, unless the server answers before: it reads nothing of what it refuses."""
    connection.setblocking(False)
    unsent = memoryview(data)
    while unsent:
        answered, _, _ = select.select([connection], [], [], 0)
        if answered:
            return
        _, writable, _ = select.select([], [connection], [], 0.01)
        if writable:
            count = connection.send(unsent)
            unsent = unsent[count:]


@pytest.mark.parametrize("declared", [True, False])
def test_unfinished_bodies_share_one_budget(server: Served, declared: bool) -> None:
    process = psutil.Process(server.process.pid)
    size = 8 * MIB
    part = b"x" * (6 * MIB)
    start_bytes = process.memory_info().rss
    chunked = (
        f"POST {INFER} HTTP/1.1\r\nHost: here\r\nTransfer-Encoding:"
        f" chunked\r\n\r\n{len(part):x}\r\n".encode()
    )
    headers = head(size) if declared else chunked

    def send_part(_: int) -> socket.socket:
        connection = server.send()
        send_until_answered(connection, headers + part)
        return connection

    with ThreadPoolExecutor(16) as pool, contextlib.ExitStack() as stack:
        connections = list(pool.map(send_part, range(30)))
        for connection in connections:
            stack.enter_context(connection)
        until(lambda: count_refused(connections) >= 20, "the budget to be used")
        used_bytes = process.memory_info().rss - start_bytes
        assert used_bytes < 140 * MIB, "64 MiB, and buffers"
        assert server.infer("small").status == 200, "small bodies have a part of the budget"
    large = texts("x" * (7 * MIB))
    until(lambda: server.request("POST", INFER, large).status == 200, "the budget to be free")


def test_trailers_take_no_memory(server: Served) -> None:
    process = psutil.Process(server.process.pid)
    start_bytes = process.memory_info().rss
    headers = f"POST {INFER} HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
    part = b"a:b\r\n" * 200_000
    connection = server.send(headers.encode())
    used_bytes = 0
    with connection, contextlib.suppress(ConnectionError):
        for _ in range(16):
            connection.sendall(part)
            used_bytes = max(used_bytes, process.memory_info().rss - start_bytes)
        pytest.fail("the server must close a connection with 16 MB of trailers")
    assert used_bytes < 32 * MIB
    assert server.infer("after").status == 200


def test_large_bodies_are_parsed_while_probes_are_answered(server: Served) -> None:
    count = 480_000
    tensor = {
        "name": "x",
        "datatype": "FP64",
        "shape": [1, count],
        "data": [0.123456789012] * count,
    }
    body = json.dumps({"inputs": [tensor]}).encode()
    assert 7 * MIB < len(body) < 8 * MIB
    slowest_s = 0.0
    start = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(server.request, "POST", INFER, body) for _ in range(2)]
        while not all(answer.done() for answer in answers):
            probe_start = time.monotonic()
            assert server.request("GET", "/v2/health/live").status == 200
            slowest_s = max(slowest_s, time.monotonic() - probe_start)
    total_s = time.monotonic() - start
    for future in answers:
        answer = future.result()
        assert answer.status in (200, 429, 503, 504)
        if answer.status == 503:
            # On a busy machine the model may be overdue; the server must not be shutting down.
            assert b"does not answer" in answer.body or b"is being reloaded" in answer.body
    # Parsing JSON blocks the interpreter: a probe may wait for one call, not for both bodies.
    assert slowest_s < max(1.0, total_s / 3), "a probe waited too long"


def test_a_small_body_with_too_many_values_is_refused(server: Served) -> None:
    many_values = (
        b'{"inputs":[{"name":"x","datatype":"INT8","shape":[1,2000000],"data":['
        + b"1," * 1_999_999
        + b"1]}]}"
    )
    assert server.request("POST", INFER, many_values).status == 413
    open_text = b'{"inputs": "' + b"\\," * 2_000_000
    answer = server.request("POST", INFER, open_text)
    assert answer.status == 400, "the time must not grow with the square of the length"
    assert server.infer("," * 3_000_000).status == 200, "commas of a text are no values"
