"""Tests of bad requests and clients that disconnect: each gets its code, and the server runs on."""

import json
import socket
from collections.abc import Callable

import pytest

from holdfast.inference.server.http_protocol import MAX_HEADER_BYTES
from workloads.library.tests.inference.server.serving import (
    INFER,
    Served,
    head,
    receive_all,
    texts,
    until,
)

pytestmark = pytest.mark.process
GOOD = {
    "name": "x",
    "datatype": "FP32",
    "shape": [2],
    "data": [1.0, 2.0],
}
CLASSIFICATION = {
    "name": "said",
    "parameters": {"classification": 2},
}
CHUNKED = (
    b"POST " + INFER.encode() + b" HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n"
)
TOO_LONG = MAX_HEADER_BYTES + 20
DISCONNECTED = 'holdfast_server_requests_total\\{code="499"\\}'
Attempt = Callable[[Served], int]


def post(body: bytes, path: str = INFER, **headers: str) -> Attempt:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda server: server.request("POST", path, body, named).status


def infer(**fields: object) -> Attempt:
    return post(json.dumps({"inputs": [GOOD]} | fields).encode())


def tensor(**changes: object) -> Attempt:
    return infer(inputs=[GOOD | changes])


def send(*parts: bytes) -> Attempt:
    """Sends bytes on a connection that only the server closes."""

    def attempt(server: Served) -> int:
        response = receive_all(server.send(*parts))
        return int(response.split()[1])

    return attempt


def disconnect(server: Served, connection: socket.socket) -> int:
    count = server.metric(DISCONNECTED)
    connection.close()
    until(lambda: server.metric(DISCONNECTED) > count, "the server to notice it")
    return 499


def disconnect_in_body(server: Served) -> int:
    return disconnect(server, server.send(head(100), b"half"))


def disconnect_while_computing(server: Served) -> int:
    gate = server.log.with_suffix(".gate")
    body = texts(f"wait {gate}")
    connection = server.send(head(len(body)) + body)
    until(gate.with_suffix(".begun").exists, "the batch to start")
    status = disconnect(server, connection)
    gate.touch()
    return status


CASES: dict[str, tuple[Attempt, int]] = {
    "a good one": (infer(), 200),
    "no JSON": (post(b"{"), 400),
    "no UTF-8": (post(b'{"inputs": "\xff"}'), 400),
    "a list": (post(b"[]"), 400),
    "nested 100,000 deep": (post(b"[" * 50_000), 400),
    "NaN": (tensor(data=[float("nan"), 1]), 400),
    "no inputs": (post(b"{}"), 400),
    "NaN shape": (tensor(shape=[float("nan")]), 400),
    "negative shape": (tensor(shape=[-2]), 400),
    "shape of true": (tensor(shape=[True, 2]), 400),
    "shape that does not fit": (tensor(shape=[3]), 400),
    "ragged data": (tensor(shape=[2, 2], data=[[1, 2, 3], [4]]), 400),
    "data nested otherwise than its shape": (
        tensor(shape=[2, 2, 2], data=[[1, 2, 3, 4], [5, 6, 7, 8]]),
        400,
    ),
    "data nested and flat": (tensor(shape=[2, 2], data=[[1, 2], 3, 4]), 400),
    "an integer beyond every float": (tensor(datatype="FP64", data=[10**400, 1]), 400),
    "huge shape": (tensor(shape=[2**31, 2**31, 2**31]), 400),
    "unknown datatype": (tensor(datatype="FP8"), 400),
    "text for numbers": (tensor(data=["1", "2"]), 400),
    "half a surrogate pair": (tensor(datatype="BYTES", shape=[1], data=["\ud800"]), 400),
    "shared memory": (tensor(parameters={"shared_memory_region": "r"}), 400),
    "binary data": (tensor(parameters={"binary_data_size": 1}), 400),
    "the binary extension": (post(texts("a"), inference_header_content_length="20"), 400),
    "compressed": (post(texts("a"), content_encoding="gzip"), 415),
    "a sequence": (infer(parameters={"sequence_id": 2}), 400),
    "a classification": (infer(outputs=[CLASSIFICATION]), 400),
    "an unknown output": (infer(outputs=[{"name": "nothing"}]), 400),
    "more items than a batch": (post(texts(*"123456789")), 413),
    "unknown model": (post(texts("x"), "/v2/models/other/infer"), 404),
    "unknown path": (post(texts("x"), "/v3"), 404),
    "wrong method": (lambda server: server.request("GET", INFER).status, 405),
    "timeout of nothing": (post(texts("x"), x_request_timeout_ms="0"), 400),
    "20 MB": (post(b"x" * 20_000_000), 413),
    "no HTTP": (send(b"\x16\x03\x01\x02\r\n\r\n"), 400),
    "endless headers": (send(b"GET / HTTP/1.1\r\nx: ", b"a" * 90_000), 431),
    "endless trailers": (send(CHUNKED, b"0\r\n", (b"a:b\r\n" * TOO_LONG)[:TOO_LONG]), 431),
    "an endless trailer": (send(CHUNKED, b"0\r\na: ", b"b" * TOO_LONG), 431),
    "an endless extension of a chunk": (send(CHUNKED, b"1;a=", b"b" * TOO_LONG), 431),
    "a header that never ends": (send(b"POST / HTTP/1.1\r\nHost: x"), 408),
    "a body that never ends": (send(head(100, b"x-request-timeout-ms: 300"), b"half"), 408),
    "a body cut off": (disconnect_in_body, 499),
    "a client gone while its answer is computed": (disconnect_while_computing, 499),
    "chunks of more than the maximum body size": (
        send(CHUNKED, b"30d40\r\n", b"x" * 200_000, b"\r\n0\r\n\r\n"),
        413,
    ),
    "a body announced too large": (send(head(200_000, b"Expect: 100-continue")), 413),
    "chunks of no size": (send(CHUNKED, b"zz\r\n"), 400),
    "chunks and a length": (send(head(5, b"Transfer-Encoding: chunked")), 400),
    "two lengths": (send(head(5, b"Content-Length: 6")), 400),
    "a length of more digits than a number has": (send(head(10**30)), 400),
    "a length below 0": (send(head(-5)), 400),
    "no body": (post(b""), 400),
}


@pytest.mark.parametrize("name", CASES)
def test_each_request_gets_its_code_and_the_server_stays_up(server: Served, name: str) -> None:
    attempt, status = CASES[name]
    assert attempt(server) == status
    assert server.infer("after").status == 200
    severities = {line["severity"] for line in server.lines()}
    assert "ERROR" not in severities, server.log.read_text()


def test_small_chunks_and_trailers_are_accepted(server: Served) -> None:
    body = texts("x" * 20_000)
    chunks = b""
    for n in range(len(body)):
        chunks += b"1\r\n" + body[n : n + 1] + b"\r\n"
    assert len(chunks) - len(body) > MAX_HEADER_BYTES
    request = CHUNKED + chunks + b"0\r\nchecksum: 1\r\n\r\n"
    connection = server.send(request, head(len(body), b"Connection: close") + body)
    assert receive_all(connection).count(b"HTTP/1.1 200 ") == 2


def test_unknown_routes_are_answered_in_json(server: Served) -> None:
    assert server.request("GET", "/v2/nothing").json == {"error": "Not Found"}


def test_a_model_exception_text_is_only_in_the_log(server: Served) -> None:
    answer = server.infer("raise confidential password=hunter2")
    assert answer.status == 422
    assert answer.json == {
        "error": "the model rejects this input: ValueError; its text is in the server's log"
    }
    (line,) = [line for line in server.lines() if "rejects" in line["message"]]
    assert line["severity"] == "WARNING"
    assert "ValueError: asked to by" in line["message"]
    assert "confidential" not in line["message"], "content of a request is in no log"
    assert "hunter2" not in line["message"]
