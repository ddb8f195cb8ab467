"""Bodies that arrive slowly, largely or together: their bytes have one budget, and parsing them
stops no probe.
"""

import contextlib
import json
import socket
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from workloads.library.tests.inference.server.serving import INFER, Served, head, served, texts
from workloads.library.tests.processes import until

pytestmark = pytest.mark.process
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    with served(tmp_path_factory.mktemp("memory"), "--longest-request", "7") as running:
        yield running


def refused(ends: list[socket.socket]) -> int:
    """How many have an answer, which can only be a refusal."""
    count = 0
    for end in ends:
        end.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            count += end.recv(64, socket.MSG_PEEK).startswith(b"HTTP/1.1 429 ")
    return count


@pytest.mark.parametrize("declared", [True, False])
def test_unfinished_bodies_share_one_budget(server: Served, declared: bool) -> None:
    process = psutil.Process(server.process.pid)
    size = 8 * MIB
    part = b"x" * (6 * MIB)
    before = process.memory_info().rss
    chunked = (
        f"POST {INFER} HTTP/1.1\r\nHost: here\r\nTransfer-Encoding:"
        f" chunked\r\n\r\n{len(part):x}\r\n".encode()
    )
    begin = head(size) if declared else chunked

    def begun(_: int) -> socket.socket:
        end = server.send()
        end.settimeout(0.5)
        with contextlib.suppress(TimeoutError):  # it is refused, and not read to its end
            end.sendall(begin + part)
        return end

    with ThreadPoolExecutor(16) as pool, contextlib.ExitStack() as opened:
        ends = [opened.enter_context(end) for end in pool.map(begun, range(30))]
        until(lambda: refused(ends) >= 20, "the budget to be spent")
        assert process.memory_info().rss - before < 140 * MIB, "64 MiB, and buffers"
        assert server.infer("small").status == 200, "what is small has a part of its own"
    large = texts("x" * (7 * MIB))
    until(
        lambda: server.request("POST", INFER, large).status == 200, "the budget to be whole again"
    )


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
    slowest = 0.0
    all_began = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(server.request, "POST", INFER, body) for _ in range(2)]
        while not all(answer.done() for answer in answers):
            began = time.monotonic()
            assert server.request("GET", "/v2/health/live").status == 200
            slowest = max(slowest, time.monotonic() - began)
    found = [answer.result() for answer in answers]
    assert {answer.status for answer in found} <= {200, 429, 503, 504}
    # On a busy machine the model may be overdue; a server that goes would say so with 503, too.
    refused = [answer.body for answer in found if answer.status == 503]
    assert all(
        b"the model does not answer" in body or b"the model is being reloaded" in body
        for body in refused
    )
    # Reading JSON holds the interpreter: a probe may meet one such call, and not all that both
    # bodies need.
    assert slowest < max(1.0, (time.monotonic() - all_began) / 3), "what a probe waits"


def test_a_body_of_more_values_than_its_bytes_suggest_is_refused(server: Served) -> None:
    many = (
        b'{"inputs":[{"name":"x","datatype":"INT8","shape":[1,2000000],"data":['
        + b"1," * 1_999_999
        + b"1]}]}"
    )
    assert server.request("POST", INFER, many).status == 413
    unending = b'{"inputs": "' + b"\\," * 2_000_000
    assert server.request("POST", INFER, unending).status == 400, (
        "in no time that grows with its square"
    )
    assert server.infer("," * 3_000_000).status == 200, "those of a text are no values"
