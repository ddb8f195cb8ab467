"""Tests of a model that hangs or restarts: the server is not ready, and requests go elsewhere."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from starlette.requests import Request as HttpRequest

from holdfast.inference.errors import Refused
from holdfast.inference.server.http_protocol import STARTED_AT, find_deadline
from holdfast.inference.server.overdue import release_in_turn, wait_running
from holdfast.inference.server.requests import Request
from holdfast.vocabulary.serving import PREDICTOR_DEATHS, RUNNING
from workloads.library.tests.inference.server.serving import PREDICTORS, serve
from workloads.library.tests.processes import until

WINDOW_S = "22"
"""The longest request takes 14 s, and a batch is overdue after 2.3 s."""
TRY_MS = "8000"
"""The rest of the proxy's timeout for a try: so much longer than the 2.3 s that the test sees the
overdue batch on a busy machine too.
"""
CLIENT_MS = "2000"
"""The client's own timeout, shorter than that of the proxy."""


def test_a_request_is_answered_before_its_proxy_gives_up() -> None:
    headers = [(b"x-envoy-expected-rq-timeout-ms", TRY_MS.encode())]
    scope = {"type": "http", "headers": headers, "state": {STARTED_AT: 100.0}}
    deadline = find_deadline(HttpRequest(scope), longest_s=14.0)
    assert deadline.at_s == 107.5
    assert deadline.tries == 1


class PausedMachine:
    """The clock of a machine that is paused for a minute in the second sleep."""

    def __init__(self) -> None:
        self.now = 0.0
        self._sleeps = 0

    def read_clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self._sleeps += 1
        self.now += seconds
        if self._sleeps == 2:
            self.now += 60.0


def test_a_paused_machine_makes_no_batch_overdue() -> None:
    machine = PausedMachine()
    waiting = wait_running(1.0, clock=machine.read_clock, sleep=machine.sleep)
    asyncio.run(waiting)
    assert machine.now > 60.8


def make_request(deadline_s: float, tries: int) -> Request:
    return Request(
        items=1,
        arrived_s=0.0,
        deadline_s=deadline_s,
        bodies=[b""],
        digest="",
        tries=tries,
    )


def test_an_overdue_batch_releases_its_requests_in_turn() -> None:
    """Those that have no other server to go to stay until their own deadline."""

    async def release() -> None:
        now = asyncio.get_running_loop().time()
        batch = [make_request(now + 8.0, tries) for tries in (1, 2, 1, 0, 1, 1)]
        timers = release_in_turn(batch)
        moments = [round(timer.when() - now) for timer in timers]
        assert moments == [2, 4, 6, 8]
        for timer in timers:
            timer.cancel()
        late = make_request(now - 1.0, 1)
        release_in_turn([late])
        with pytest.raises(Refused) as refused:
            await late.answer
        assert refused.value.status == 503

    asyncio.run(release())


@pytest.mark.process
def test_a_server_is_not_ready_while_its_model_hangs_or_restarts(tmp_path: Path) -> None:
    step = tmp_path / "step"
    step.write_text("1")
    stepped = serve(
        tmp_path,
        "--model",
        str(step),
        "--window",
        WINDOW_S,
        predictor=f"{PREDICTORS}:stepped",
    )
    with stepped as server, ThreadPoolExecutor(3) as pool:
        model = server.model()
        model.suspend()
        proxied = pool.submit(server.infer, "proxied", x_envoy_expected_rq_timeout_ms=TRY_MS)
        # In the batch that hangs: what waits for the next batch has another fate.
        until(lambda: server.metric(RUNNING) == 1, "a request in a batch")
        waiting = pool.submit(server.infer, "waiting", x_envoy_expected_rq_timeout_ms=TRY_MS)
        client = pool.submit(server.infer, "client", x_request_timeout_ms=CLIENT_MS)
        until(lambda: server.ready() == 503, "the batch to be overdue")
        fresh = server.infer("fresh")
        assert fresh.status == 503
        assert fresh.headers["x-envoy-immediate-health-check-fail"] == "true"
        assert server.request("GET", "/v2/health/live").status == 200
        assert waiting.result().status == 503
        assert not proxied.done(), "what waits behind the batch goes to another server first"
        assert proxied.result().status == 503, "the proxy may try another server"
        assert client.result().status == 504, "its time is over"
        until(lambda: server.ready() == 200, "the batch to be ended, as nobody waits for it")
        assert server.infer("after").status == 200
        messages = [line["message"] for line in server.lines()]
        assert any("overdue" in message for message in messages)
        # A request that hung two servers is not tried on a third.
        headers = {"x_envoy_expected_rq_timeout_ms": "3000", "x_envoy_attempt_count": "2"}
        assert server.infer("sleep 60", **headers).status == 504
        # The batch may be overdue only now: before that the server is ready, too.
        until(lambda: server.metric(PREDICTOR_DEATHS) == 2, "that batch to be ended")
        until(lambda: server.ready() == 200, "the model")

        model = server.model()
        step.write_text("hangs")
        model.kill()
        assert server.infer("proxied", x_envoy_expected_rq_timeout_ms="3000").status == 503
        until(lambda: server.ready() == 503, "the death to be noticed")
        assert server.metric("holdfast_server_ready") == 0
        assert server.infer("fresh", x_request_timeout_ms="500").status == 503
        step.write_text("1")
        until(lambda: server.ready() == 200, "the model, though no request asks for it")
        assert server.infer("after").status == 200
