"""A real server process under real signals: no request that it took in is dropped, and it leaves in
its window.
"""

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
    received,
    served,
    texts,
)
from workloads.library.tests.processes import until

pytestmark = pytest.mark.process
BUDGET = drain_budget(15)


def begun(pool: ThreadPoolExecutor, server: Served, gate: Path) -> Future[Answer]:
    """A request that holds the model until `gate` exists; it is being computed."""
    asking = pool.submit(server.infer, f"wait {gate}")
    until(gate.with_suffix(".begun").exists, "the batch to begin")
    return asking


def test_a_server_that_is_still_loading_answers_probes_and_leaves_at_once(tmp_path: Path) -> None:
    with served(
        tmp_path,
        "--model",
        str(tmp_path / "never"),
        predictor=f"{PREDICTORS}:slow",
        ready=False,
    ) as loading:
        assert loading.ready() == 503
        assert loading.request("GET", "/v2/health/live").status == 200
        refused = loading.infer("early")
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        noticed = loading.signal(signal.SIGTERM)
        assert loading.ended() == 143
        assert time.monotonic() - noticed < BUDGET.accept_s


@pytest.mark.parametrize(("predictor", "code"), [(f"{PREDICTORS}:bug", 70), ("nothing-such", 2)])
def test_a_model_that_cannot_be_loaded_ends_the_server_with_the_right_code(
    tmp_path: Path, predictor: str, code: int
) -> None:
    with served(tmp_path, predictor=predictor, ready=False) as server:
        assert server.ended() == code


def test_a_notice_drops_nothing_that_has_begun_and_nothing_that_comes_while_endpoints_move(
    tmp_path: Path,
) -> None:
    gate = tmp_path / "gate"
    with served(tmp_path) as server, ThreadPoolExecutor(1) as pool:
        computing = begun(pool, server, gate)
        body = texts("late")
        whole = head(len(body)) + body
        half_head = server.send(whole[:30])
        half_body = server.send(whole[:-5])
        noticed = server.signal(signal.SIGTERM)
        until(lambda: server.ready() == 503, "readiness to end")
        assert server.request("GET", "/v2/health/live").status == 200
        gate.touch()
        answer = computing.result()
        # The endpoints still lead here: a new connection is as good as before, and is told to be
        # the last.
        fresh = server.infer("fresh")
        assert time.monotonic() - noticed < BUDGET.accept_s, "too slow a machine to judge this"
        assert (fresh.status, fresh.headers["connection"]) == (200, "close")
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        half_head.sendall(whole[30:])
        assert received(half_head).startswith(b"HTTP/1.1 200 ")
        until(lambda: not _accepts(server), "the listener to close")
        assert BUDGET.accept_s <= time.monotonic() - noticed
        half_body.sendall(whole[-5:])
        assert received(half_body).startswith(b"HTTP/1.1 200 "), "it outlives the listener"
        assert server.ended() == 143
        assert any(
            line["action"] == "drain" and line.get("seconds", 99.0) < BUDGET.leave_s
            for line in server.lines()
        )


def test_a_model_that_hangs_does_not_hold_a_server_beyond_its_window(tmp_path: Path) -> None:
    with served(tmp_path, "--window", "9") as server:
        hanging = begun(ThreadPoolExecutor(1), server, tmp_path / "never")
        noticed = server.signal(signal.SIGTERM)
        assert hanging.result().status == 504
        assert server.ended() == 143
        assert time.monotonic() - noticed < 9.0


def test_an_answer_leaves_whole(server: Served) -> None:
    """Headers and body together: a server that dies in between would have begun an answer that
    cannot be repeated.
    """
    body = texts("x")
    end = server.send()
    for _ in range(20):
        end.sendall(head(len(body)) + body)
        headers, _, answer = end.recv(65536).partition(b"\r\n\r\n")
        assert headers.startswith(b"HTTP/1.1 200 ")
        assert json.loads(answer)
    end.close()


def test_a_killed_model_and_a_request_that_ends_it_cost_no_other_request(
    server: Served, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    before = server.metric("holdfast_server_predictor_deaths_total")
    with ThreadPoolExecutor(5) as pool:
        first = begun(pool, server, gate)
        answers = [pool.submit(server.infer, text) for text in ("text", "kill", "raise", "text")]
        until(lambda: server.metric("holdfast_server_requests_waiting") == 4, "the others to wait")
        model = server.model()
        gate.touch()
        model.kill()
        assert [answer.result().status for answer in (first, *answers)] == [200, 200, 500, 422, 200]
    assert server.metric("holdfast_server_predictor_deaths_total") >= before + 2
    assert server.infer("after").status == 200


def test_load_is_refused_with_the_time_to_come_back_and_a_gone_client_leaves_the_queue(
    server: Served, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    holding = begun(ThreadPoolExecutor(1), server, gate)
    body = texts("gone")
    waiting = [server.send(head(len(body)) + body) for _ in range(4)]
    until(lambda: server.metric("holdfast_server_requests_waiting") == 4, "a full queue")
    began = time.monotonic()
    refused = server.infer("too many")
    assert refused.status == 429
    assert int(refused.headers["retry-after"]) >= 1
    body = texts("x" * 50_000)
    unread = server.send(head(len(body)))
    assert unread.recv(65536).startswith(b"HTTP/1.1 429 "), "refused by its headers"
    for end in waiting:
        end.close()
    until(
        lambda: server.metric("holdfast_server_requests_waiting") == 0,
        "the gone to leave the queue",
    )
    late = server.infer("late", x_request_timeout_ms="100")
    assert late.status in (429, 504), time.monotonic() - began
    gate.touch()
    holding.result()
    until(lambda: server.infer("after").status == 200, "the server to answer again")
    # The same connection goes on: what was refused is passed over, and the next request begins
    # behind it.
    unread.sendall(body + head(len(body), b"Connection: close") + body)
    assert b"HTTP/1.1 200 " in received(unread)


def _accepts(server: Served) -> bool:
    try:
        server.send().close()
    # reset: it closed while this one waited to be accepted
    except (ConnectionRefusedError, ConnectionResetError):
        return False
    return True
