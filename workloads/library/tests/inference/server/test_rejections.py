"""Tests of requests that end or hang the model: they cost one load, and no neighbor's answer."""

import json
import signal
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.inference.server.rejections import (
    REJECTED_S,
    Rejections,
    Verdict,
    digest_items,
)
from holdfast.vocabulary.serving import REJECTED, REJECTIONS_PATH
from workloads.library.tests.inference.server.serving import PREDICTORS, Answer, Served, serve
from workloads.library.tests.processes import until

WAITING = "holdfast_server_requests_waiting"
DEATHS = "holdfast_server_predictor_deaths_total"
HERE = digest_items([b"here"])
THERE = digest_items([b"there"])


def test_items_determine_the_digest() -> None:
    digest = digest_items([b"ab", b"c"])
    assert digest == digest_items([b"ab", b"c"])
    assert digest != digest_items([b"a", b"bc"])


def test_a_rejection_expires() -> None:
    rejections = Rejections()
    rejections.suspect(HERE)
    assert rejections.find(HERE, 0.0) is Verdict.SUSPECTED
    rejections.reject(HERE, 0.0)
    assert rejections.find(HERE, REJECTED_S - 1) is Verdict.REJECTED
    assert rejections.find(HERE, REJECTED_S) is None
    assert rejections.report(REJECTED_S) == {"rejected": {}, "suspected": []}


def test_servers_learn_from_each_other() -> None:
    first = Rejections()
    second = Rejections()
    first.reject(HERE, 0.0)
    first.suspect(THERE)
    second.learn(first.report(10.0), 1000.0)
    assert second.find(HERE, 1000.0) is Verdict.REJECTED
    assert second.find(THERE, 1000.0) is Verdict.SUSPECTED
    assert second.report(1000.0) == {
        "rejected": {HERE: int(REJECTED_S) - 10},
        "suspected": [],
    }
    first.learn(second.report(1300.0), 300.0)
    assert first.find(HERE, REJECTED_S) is None, "a report does not extend a rejection"
    first.note_answer(THERE)
    second.learn(first.report(300.0), 1300.0)
    assert second.find(THERE, 1300.0) is None, "it was examined and is not the cause"


def test_an_answered_request_is_not_suspected_elsewhere() -> None:
    rejections = Rejections()
    rejections.note_answer(HERE)
    rejections.learn({"rejected": {}, "suspected": [HERE]}, 0.0)
    assert rejections.find(HERE, 0.0) is None
    rejections.learn({"rejected": {HERE: 60}, "suspected": []}, 0.0)
    assert rejections.find(HERE, 0.0) is Verdict.REJECTED


@pytest.mark.parametrize(
    "report",
    [
        {},
        {"rejected": [HERE], "suspected": []},
        {"rejected": {HERE: 1e9}, "suspected": []},
        {
            "rejected": {HERE: int(REJECTED_S) + 1},
            "suspected": [],
        },
        {"rejected": {"short": 1}, "suspected": []},
        {"rejected": {}, "suspected": [1]},
    ],
)
def test_other_documents_are_no_reports(report: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        Rejections().learn(report, 0.0)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    # A request that ends the model waits for two loads of it, each of which may take seconds.
    with serve(tmp_path_factory.mktemp("rejections"), "--window", "30") as server:
        yield server


def infer_proxied(server: Served, text: str, attempt: int = 1) -> Answer:
    headers = {
        "x_envoy_expected_rq_timeout_ms": "2333",
        "x_envoy_attempt_count": str(attempt),
    }
    return server.infer(text, **headers)


def is_reloaded(server: Served) -> bool:
    """Asks as a proxy that waits for half a second; returns whether the model is being reloaded."""
    answer = server.infer("elsewhere", x_envoy_expected_rq_timeout_ms="500")
    return b"is being reloaded" in answer.body


def submit_waiting(server: Served, pool: ThreadPoolExecutor, gate: Path) -> Future[Answer]:
    """Returns a request that the model computes until the gate is there."""
    request = pool.submit(server.infer, f"wait {gate}")
    begun = gate.with_suffix(".begun")
    until(begun.exists, "the batch to start")
    return request


def count_deaths(server: Served) -> float:
    return server.metric(DEATHS)


def kill_while_computing(server: Served, pool: ThreadPoolExecutor, gate: Path) -> Answer:
    """Kills the model while it computes a request alone; returns the answer of that request."""
    begun = gate.with_suffix(".begun")
    begun.unlink(missing_ok=True)
    gate.unlink(missing_ok=True)
    request = submit_waiting(server, pool, gate)
    server.model().kill()
    gate.touch()
    return request.result()


@pytest.mark.process
def test_a_request_that_kills_the_model_costs_one_load(server: Served) -> None:
    deaths = server.metric(DEATHS)
    for _ in range(20):
        assert server.infer("kill and kill again").status == 422
    assert server.metric(DEATHS) == deaths + 1
    assert server.infer("after").status == 200


@pytest.mark.process
def test_copies_that_wait_cost_no_further_load(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    options = ("--batch", "2", "--window", "60")
    with serve(tmp_path, *options) as server, ThreadPoolExecutor(8) as pool:
        blocking = submit_waiting(server, pool, gate)
        copies = [pool.submit(server.infer, "kill") for _ in range(6)]
        until(lambda: server.metric(WAITING) == 6, "copies to wait")
        gate.touch()
        assert blocking.result().status == 200
        statuses = {copy.result().status for copy in copies}
        assert statuses <= {422, 503}
        assert server.infer("kill").status == 422
        assert count_deaths(server) == 1
        assert server.metric(REJECTED) == 1


@pytest.mark.process
def test_a_hang_ends_when_no_client_waits(server: Served) -> None:
    deaths = server.metric(DEATHS)
    rejected = server.metric(REJECTED)
    assert infer_proxied(server, "hang", attempt=2).status == 504
    until(lambda: server.metric(DEATHS) == deaths + 1, "the hanging process to be ended")
    until(lambda: server.ready() == 200, "the model")
    while server.metric(REJECTED) == rejected:
        assert infer_proxied(server, "hang").status in (422, 503)
        assert server.infer("meanwhile").status == 200
    assert infer_proxied(server, "hang").status == 422
    assert server.metric(DEATHS) == deaths + 1
    messages = [line["message"] for line in server.lines()]
    assert "no client waits" in "\n".join(messages)


@pytest.mark.process
def test_a_request_that_was_answered_before_is_not_suspected(
    server: Served, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    assert server.infer(f"wait {gate}").status == 200
    rejected = server.metric(REJECTED)
    with ThreadPoolExecutor(1) as pool:
        assert kill_while_computing(server, pool, gate).status == 200
        assert server.infer(f"wait {gate}").status == 200
    assert server.metric(REJECTED) == rejected


@pytest.mark.process
def test_copies_that_were_answered_before_are_not_suspected(server: Served, tmp_path: Path) -> None:
    before = tmp_path / "before"
    gate = tmp_path / "gate"
    gate.touch()
    assert server.infer(f"wait {gate}").status == 200
    gate.unlink()
    gate.with_suffix(".begun").unlink()
    deaths = count_deaths(server)
    with ThreadPoolExecutor(3) as pool:
        blocking = submit_waiting(server, pool, before)
        copies = [pool.submit(server.infer, f"wait {gate}") for _ in range(2)]
        until(lambda: server.metric(WAITING) == 2, "copies to wait for one batch")
        before.touch()
        until(gate.with_suffix(".begun").exists, "the batch to start")
        server.model().kill()
        until(lambda: count_deaths(server) == deaths + 1, "the death to be noticed")
        report = server.request("GET", REJECTIONS_PATH).json
        gate.touch()
        statuses = [answer.result().status for answer in (blocking, *copies)]
    assert statuses == [200, 200, 200]
    assert report["suspected"] == []


@pytest.mark.process
def test_an_innocent_suspect_is_answered(server: Served, tmp_path: Path) -> None:
    rejected = server.metric(REJECTED)
    with ThreadPoolExecutor(1) as pool:
        gate = tmp_path / "new"
        assert kill_while_computing(server, pool, gate).status == 200
        assert server.infer(f"wait {gate}").status == 200
    assert server.metric(REJECTED) == rejected
    assert server.model(), "the second process ends"


@pytest.mark.process
def test_slow_first_predictions_make_no_request_guilty(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with (
        # Longer than a request may take in the second process.
        serve(tmp_path, "--model", "3", predictor=f"{PREDICTORS}:lazy") as server,
        ThreadPoolExecutor(1) as pool,
    ):
        kill_while_computing(server, pool, gate)
        until(lambda: server.infer(f"wait {gate}").status in (200, 422), "the verdict")
        assert server.infer(f"wait {gate}").status == 200
        assert server.metric(REJECTED) == 0


@pytest.mark.process
def test_suspects_are_examined_here_without_room_for_a_second_process(tmp_path: Path) -> None:
    options = ("--model", str(tmp_path / "lock"), "--window", "60")
    with serve(tmp_path, *options, predictor=f"{PREDICTORS}:single") as server:
        assert server.infer("kill").status == 422
        assert server.metric(DEATHS) == 2
        until(lambda: server.ready() == 200, "the model")
        assert server.infer("kill").status == 422
        assert server.infer("after").status == 200
        assert server.metric(DEATHS) == 2


@pytest.mark.process
def test_a_request_that_another_server_refused_waits_for_the_reload(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    options = ("--model", str(gate), "--window", "300")
    proxied = {"x_envoy_expected_rq_timeout_ms": "60000"}
    with (
        ThreadPoolExecutor(2) as pool,
        serve(tmp_path, *options, predictor=f"{PREDICTORS}:slow") as server,
    ):
        server.model().kill()
        pool.submit(server.infer, "finds it dead", **proxied)
        loads = gate.with_suffix(".loading")
        until(lambda: loads.read_text() == "xx", "the reload")
        until(lambda: is_reloaded(server), "the reload to take longer than the first")
        waiting = pool.submit(
            server.infer,
            "here",
            x_envoy_attempt_count="2",
            **proxied,
        )
        until(lambda: server.metric(WAITING) > 0, "it to wait")
        gate.touch()
        assert waiting.result().status == 200


@pytest.mark.process
def test_only_servers_report_rejections(server: Served) -> None:
    report = server.request("GET", REJECTIONS_PATH).json
    assert report["commit"]
    report["rejected"] = {HERE: 60}
    body = json.dumps(report).encode()
    by_proxy = {"x-envoy-attempt-count": "1"}
    assert server.request("GET", REJECTIONS_PATH, headers=by_proxy).status == 404
    assert server.request("POST", REJECTIONS_PATH, body, by_proxy).status == 404
    assert server.infer("here").status == 200
    other_report = report | {"commit": "another"}
    other = json.dumps(other_report).encode()
    assert server.request("POST", REJECTIONS_PATH, other).status == 200
    assert server.infer("here").status == 200
    assert server.request("POST", REJECTIONS_PATH, body).status == 200
    assert server.infer("here").status == 422
    assert server.request("POST", REJECTIONS_PATH, b"[1]").status == 400


@pytest.mark.process
def test_a_server_that_leaves_accuses_no_request(tmp_path: Path) -> None:
    # The server goes on accepting for longer than a request takes to end the model twice.
    with serve(tmp_path, "--window", "300") as server:
        server.signal(signal.SIGTERM)
        until(lambda: server.ready() == 503, "the notice")
        assert server.infer("kill").status == 422
        assert server.metric(REJECTED) == 1
        assert server.request("GET", REJECTIONS_PATH).json == {}
