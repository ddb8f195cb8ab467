"""Requests that wait for the first server of a service that sleeps."""

import http.client
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast.drill.serving.fleet import free_port
from workloads.library.tests.inference.router.fleet import (
    CHAT,
    COMPLETIONS,
    HOST,
    JSON_BODY,
    Stream,
    complete,
    engine,
    make_text,
    metric,
    router,
)
from workloads.library.tests.inference.server.serving import PATIENCE_S, Answer, Served
from workloads.library.tests.processes import until

pytestmark = pytest.mark.process
COUNT = 20
OPEN = "holdfast_router_streams"
COMMENTS = ("--set", "comment_s=0.2")


def servers_at(port: int) -> tuple[str, ...]:
    return ("--servers", f"{HOST}:{port}")


def read_raw(served: Served, body: dict[str, Any], path: str = COMPLETIONS) -> bytes:
    """Returns a stream with its comments."""
    connection = http.client.HTTPConnection(HOST, served.port, timeout=PATIENCE_S)
    try:
        connection.request("POST", path, json.dumps(body | {"stream": True}).encode(), JSON_BODY)
        response = connection.getresponse()
        assert response.status == 200
        assert response.getheader("x-holdfast-stream") == "waiting"
        return response.read()
    finally:
        connection.close()


def test_a_stream_waits_with_comments(tmp_path: Path) -> None:
    port = free_port()
    options = (*servers_at(port), *COMMENTS)
    body = {"prompt": "early", "max_tokens": COUNT, "ignore_eos": True}
    with router(tmp_path, *options, ready=0) as served:
        stream = Stream(served.port, body)
        until(lambda: stream.headers.get("x-holdfast-stream") == "waiting", "it is told to wait")
        assert not stream.payloads
        with engine(tmp_path, port=port):
            stream.wait()
    assert stream.is_whole
    assert stream.text == make_text("early", COUNT)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_a_comment_says_that_a_stream_is_carried(tmp_path: Path, path: str) -> None:
    port = free_port()
    options = (*servers_at(port), *COMMENTS)
    body: dict[str, Any] = {"max_tokens": COUNT, "ignore_eos": True}
    if path == CHAT:
        body["messages"] = [{"role": "user", "content": "early"}]
    else:
        body["prompt"] = "early"
    with router(tmp_path, *options, ready=0) as served:
        texts: list[bytes] = []
        thread = threading.Thread(target=lambda: texts.append(read_raw(served, body, path)))
        thread.start()
        until(lambda: metric(served, "holdfast_router_waiting") == 1, "it waits")
        with engine(tmp_path, port=port):
            thread.join(PATIENCE_S)
    (text,) = texts
    waiting, _, carried = text.partition(b": carried\n\n")
    assert set(waiting.split(b"\n\n")) <= {b": waiting for a server", b""}
    events = carried.split(b"\n\n")
    assert events[-2:] == [b"data: [DONE]", b""]
    first = json.loads(events[0].removeprefix(b"data: "))
    if path == CHAT:
        assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}


def test_a_request_that_is_not_streamed_waits(tmp_path: Path) -> None:
    port = free_port()
    with router(tmp_path, *servers_at(port), ready=0) as served:
        answers: list[Answer] = []

        def ask() -> None:
            answers.append(complete(served, prompt="early", max_tokens=COUNT, ignore_eos=True))

        thread = threading.Thread(target=ask)
        thread.start()
        until(lambda: metric(served, OPEN) == 1, "it waits")
        with engine(tmp_path, port=port):
            thread.join(PATIENCE_S)
    (answer,) = answers
    assert answer.status == 200
    assert answer.json["choices"][0]["text"] == make_text("early", COUNT)


def test_a_refusal_after_a_wait_is_an_event(tmp_path: Path) -> None:
    """The status is sent by then."""
    port = free_port()
    with router(tmp_path, *servers_at(port), *COMMENTS, ready=0) as served:
        stream = Stream(served.port, {"prompt": "x" * 100_000, "max_tokens": COUNT})
        until(lambda: stream.headers.get("x-holdfast-stream") == "waiting", "it is told to wait")
        with engine(tmp_path, port=port):
            stream.wait()
    (event,) = stream.events
    assert "a server refused the request with 400: " in event["error"]["message"]
    assert stream.is_whole


def test_a_stream_that_waits_too_long_ends_with_an_event(tmp_path: Path) -> None:
    options = (*servers_at(free_port()), *COMMENTS, "--hold", "1")
    with router(tmp_path, *options, ready=0) as served:
        stream = Stream(served.port, {"prompt": "early", "max_tokens": COUNT}).wait()
        assert [event["error"]["message"] for event in stream.events] == ["no server is ready"]
        answer = complete(served, prompt="early", max_tokens=COUNT)
    assert answer.status == 503
    assert answer.headers["retry-after"]
