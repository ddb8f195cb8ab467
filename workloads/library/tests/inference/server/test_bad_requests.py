"""Requests that no client should send, and clients that do not stay: each gets its code, and the server is up after it."""

import json
from collections.abc import Callable, Generator

import pytest

from workloads.library.tests.inference.server.serving import (
    INFER,
    Served,
    head,
    received,
    served,
    texts,
    until,
)

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    """One that every bad request is sent to, and that must be up afterwards."""
    with served(tmp_path_factory.mktemp("server"), "--batch", "8", "--set", "body_bytes=100000") as running:
        yield running


def raw(server: Served, *parts: bytes) -> bytes:
    return received(server.send(*parts))


def code(answer: bytes) -> int:
    return int(answer.split()[1])


def posted(body: bytes, path: str = INFER) -> Callable[[Served], int]:
    return lambda server: server.request("POST", path, body).status


def tensor(**changes: object) -> bytes:
    good = {"name": "x", "datatype": "FP32", "shape": [2], "data": [1.0, 2.0]}
    return json.dumps({"inputs": [good | changes]}).encode()


CHUNKED = b"POST " + INFER.encode() + b" HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n"
BAD: dict[str, tuple[Callable[[Served], int], int]] = {
    "no JSON": (posted(b"{"), 400),
    "no UTF-8": (posted(b'{"inputs": "\xff"}'), 400),
    "a list": (posted(b"[]"), 400),
    "nested 100,000 deep": (posted(b"[" * 50_000), 400),
    "NaN": (posted(b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[NaN]}]}'), 400),
    "no inputs": (posted(b"{}"), 400),
    "NaN shape": (posted(b'{"inputs":[{"name":"x","datatype":"FP32","shape":[NaN],"data":[1]}]}'), 400),
    "negative shape": (posted(tensor(shape=[-2])), 400),
    "shape of true": (posted(tensor(shape=[True, 2])), 400),
    "shape that does not fit": (posted(tensor(shape=[3])), 400),
    "ragged data": (posted(tensor(shape=[2, 2], data=[[1, 2, 3], [4]])), 400),
    "data nested otherwise than its shape": (posted(tensor(shape=[2, 2, 2], data=[[1, 2, 3, 4], [5, 6, 7, 8]])), 400),
    "data nested and flat": (posted(tensor(shape=[2, 2], data=[[1, 2], 3, 4])), 400),
    "an integer beyond every float": (posted(tensor(datatype="FP64", data=[10**400, 1])), 400),
    "huge shape": (posted(tensor(shape=[2**31, 2**31, 2**31])), 400),
    "unknown datatype": (posted(tensor(datatype="FP8")), 400),
    "text for numbers": (posted(tensor(data=["1", "2"])), 400),
    "half a surrogate pair": (
        posted(b'{"inputs":[{"name":"x","datatype":"BYTES","shape":[1],"data":["\\ud800"]}]}'),
        400,
    ),
    "more items than a batch": (posted(texts(*"123456789")), 413),
    "unknown model": (posted(texts("x"), "/v2/models/other/infer"), 404),
    "unknown path": (posted(texts("x"), "/v3"), 404),
    "wrong method": (lambda server: server.request("GET", INFER).status, 405),
    "timeout of nothing": (lambda server: server.infer("x", x_request_timeout_ms="0").status, 400),
    "100 MB": (posted(b"x" * 100_000_000), 413),
    "no HTTP": (lambda server: code(raw(server, b"\x16\x03\x01\x02\r\n\r\n")), 400),
    "endless headers": (lambda server: code(raw(server, b"GET / HTTP/1.1\r\nx: ", b"a" * 90_000)), 431),
    "a header that never ends": (lambda server: code(raw(server, b"POST / HTTP/1.1\r\nHost: x")), 408),
    "a body that never ends": (
        lambda server: code(raw(server, head(100, INFER, b"x-request-timeout-ms: 300"), b"half")),
        408,
    ),
    "a body cut off": (lambda server: _cut_off(server), 499),
    "a client gone while its answer is computed": (lambda server: _gone(server), 499),
    "chunks of more than the maximum body size is": (
        lambda server: code(raw(server, CHUNKED, b"30d40\r\n", b"x" * 200_000, b"\r\n0\r\n\r\n")),
        413,
    ),
    "a body announced too large": (
        lambda server: code(raw(server, head(200_000, INFER, b"Expect: 100-continue"))),
        413,
    ),
    "chunks of no size": (lambda server: code(raw(server, CHUNKED, b"zz\r\n")), 400),
    "chunks and a length": (lambda server: code(raw(server, head(5, INFER, b"Transfer-Encoding: chunked"))), 400),
    "two lengths": (lambda server: code(raw(server, head(5, INFER, b"Content-Length: 6"))), 400),
    "a length of more digits than a number has": (lambda server: code(raw(server, head(10**30))), 400),
    "a length below 0": (lambda server: code(raw(server, head(-5))), 400),
    "no body": (posted(b""), 400),
}


GONE = 'holdfast_server_requests_total\\{code="499"\\}'


def _cut_off(server: Served) -> int:
    before = server.metric(GONE)
    server.send(head(100), b"half").close()
    until(lambda: server.metric(GONE) > before, "the cut to be noticed")
    return 499


def _gone(server: Served) -> int:
    before, gate = server.metric(GONE), server.log.with_suffix(".gate")
    body = texts(f"wait {gate}")
    end = server.send(head(len(body)) + body)
    until(gate.with_suffix(".begun").exists, "the batch to begin")
    end.close()
    until(lambda: server.metric(GONE) > before, "the end to be noticed")
    gate.touch()
    return 499


@pytest.mark.parametrize("name", BAD)
def test_bad_input_gets_its_code_and_the_server_stays_up(server: Served, name: str) -> None:
    attempt, status = BAD[name]
    assert attempt(server) == status
    assert server.infer("after").status == 200
    assert not any(line["severity"] == "ERROR" for line in server.lines()), server.log.read_text()
