"""Tests of a server process with real signals: it drops no request and exits in its window."""

import json
import signal
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.vocabulary.serving import drain_budget
from workloads.library.tests.inference.server.serving import (
    PREDICTORS,
    Answer,
    Served,
    head,
    receive_all,
    serve,
    texts,
)
from workloads.library.tests.processes import until

pytestmark = pytest.mark.process
LONG_WINDOW_S = 300


def block_model(pool: ThreadPoolExecutor, server: Served, gate: Path) -> Future[Answer]:
    """Sends a request that blocks the model until `gate` exists; returns once it is begun."""
    request = pool.submit(server.infer, f"wait {gate}")
    until(gate.with_suffix(".begun").exists, "the batch to start")
    return request


def test_a_loading_server_answers_probes_and_exits_at_once(tmp_path: Path) -> None:
    with serve(
        tmp_path,
        "--model",
        str(tmp_path / "never"),
        "--window",
        str(LONG_WINDOW_S),
        predictor=f"{PREDICTORS}:slow",
        ready=False,
    ) as loading:
        assert loading.ready() == 503
        assert loading.request("GET", "/v2/health/live").status == 200
        refusal = loading.infer("early")
        assert refusal.status == 503
        assert refusal.headers["retry-after"] == "1"
        notice_time = loading.signal(signal.SIGTERM)
        assert loading.wait() == 143
        assert time.monotonic() - notice_time < drain_budget(LONG_WINDOW_S).accept_s


@pytest.mark.parametrize(("predictor", "code"), [(f"{PREDICTORS}:bug", 70), ("nothing-such", 2)])
def test_a_model_that_cannot_be_loaded_sets_the_exit_code(
    tmp_path: Path, predictor: str, code: int
) -> None:
    with serve(tmp_path, predictor=predictor, ready=False) as server:
        assert server.wait() == code


def test_a_notice_drops_no_started_and_no_new_request(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    window_s = 70
    budget = drain_budget(window_s)
    options = ("--window", str(window_s))
    with serve(tmp_path, *options) as server, ThreadPoolExecutor(1) as pool:
        computing = block_model(pool, server, gate)
        body = texts("late")
        request = head(len(body)) + body
        half_head = server.send(request[:30])
        half_body = server.send(request[:-5])
        notice_time = server.signal(signal.SIGTERM)
        until(lambda: server.ready() == 503, "readiness to end")
        half_head.sendall(request[30:])
        assert server.request("GET", "/v2/health/live").status == 200
        gate.touch()
        answer = computing.result()
        # Clients still have this endpoint: a new connection works, and its response closes it.
        fresh = server.infer("fresh")
        assert time.monotonic() - notice_time < budget.accept_s, (
            "the machine is too slow for this test"
        )
        for response in (fresh, answer):
            assert response.status == 200
            assert response.headers["connection"] == "close"
        assert receive_all(half_head).startswith(b"HTTP/1.1 200 ")
        until(lambda: not _accepts(server), "the listener to close")
        assert budget.accept_s <= time.monotonic() - notice_time
        half_body.sendall(request[-5:])
        assert receive_all(half_body).startswith(b"HTTP/1.1 200 "), (
            "it lasts longer than the listener"
        )
        assert server.wait() == 143
        drains = [line for line in server.lines() if "seconds" in line]
        assert drains[-1]["action"] == "drain"
        assert drains[-1]["seconds"] < budget.leave_s


def test_a_hanging_model_does_not_extend_the_window(tmp_path: Path) -> None:
    window_s = 30
    options = ("--window", str(window_s), "--longest-request", "1")
    with serve(tmp_path, *options) as server:
        hanging = block_model(ThreadPoolExecutor(1), server, tmp_path / "never")
        notice_time = server.signal(signal.SIGTERM)
        assert hanging.result().status == 504
        assert server.wait() == 143
        assert time.monotonic() - notice_time < window_s


def test_a_response_is_sent_in_one_piece(server: Served) -> None:
    """A proxy cannot retry a request if the server dies between headers and body."""
    body = texts("x")
    connection = server.send()
    for _ in range(20):
        connection.sendall(head(len(body)) + body)
        headers, _, content = connection.recv(65536).partition(b"\r\n\r\n")
        assert headers.startswith(b"HTTP/1.1 200 ")
        assert json.loads(content)
    connection.close()


def test_a_killed_model_affects_no_other_request(server: Served, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    deaths = server.metric("holdfast_server_predictor_deaths_total")
    with ThreadPoolExecutor(5) as pool:
        first = block_model(pool, server, gate)
        answers = [pool.submit(server.infer, text) for text in ("text", "kill", "raise", "text")]
        until(lambda: server.metric("holdfast_server_requests_waiting") == 4, "the others to wait")
        # Before the gate opens: the next batch kills the model too.
        server.model().kill()
        gate.touch()
        statuses = [answer.result().status for answer in (first, *answers)]
    assert statuses == [200, 200, 422, 422, 200]
    assert server.metric("holdfast_server_predictor_deaths_total") >= deaths + 2
    assert server.infer("after").status == 200


def test_overload_is_refused_and_disconnected_clients_leave_the_queue(
    server: Served, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    blocking = block_model(ThreadPoolExecutor(1), server, gate)
    body = texts("disconnected")
    waiting = [server.send(head(len(body)) + body) for _ in range(4)]
    until(lambda: server.metric("holdfast_server_requests_waiting") == 4, "a full queue")
    start = time.monotonic()
    refusal = server.infer("too many")
    assert refusal.status == 429
    assert int(refusal.headers["retry-after"]) >= 1
    body = texts("x" * 50_000)
    unread = server.send(head(len(body)))
    assert unread.recv(65536).startswith(b"HTTP/1.1 429 "), "the headers are enough to refuse it"
    for connection in waiting:
        connection.close()
    until(
        lambda: server.metric("holdfast_server_requests_waiting") == 0,
        "disconnected clients to leave the queue",
    )
    late = server.infer("late", x_request_timeout_ms="100")
    assert late.status in (429, 504), time.monotonic() - start
    gate.touch()
    blocking.result()
    until(lambda: server.infer("after").status == 200, "the server to answer again")
    # The connection still works: the refused body is skipped, and the next request follows it.
    unread.sendall(body + head(len(body), b"Connection: close") + body)
    assert b"HTTP/1.1 200 " in receive_all(unread)


def _accepts(server: Served) -> bool:
    try:
        server.send().close()
    except (ConnectionRefusedError, ConnectionResetError):  # reset before it was accepted
        return False
    return True
