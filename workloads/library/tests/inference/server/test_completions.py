"""Text in pieces from a real server process: whole and streamed, refused before the first byte, cut at the bound."""

import json
import signal
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from workloads.library.tests.inference.server.serving import Served, head, received, stepped
from workloads.library.tests.processes import until

pytestmark = pytest.mark.process
PATH = "/v1/completions"
NARROW = ("--queue", "2", "--batch", "1", "--longest-request", "5")


def asked(**fields: object) -> bytes:
    return json.dumps({"model": "model", "prompt": "count", **fields}).encode()


def opened(server: Served, **fields: object) -> Any:
    body = asked(stream=True, **fields)
    return server.send(head(len(body), PATH) + body)


def events(answer: bytes) -> list[str]:
    return [line.removeprefix("data: ").strip() for line in answer.decode().splitlines() if line.startswith("data: ")]


def text_of(found: list[str]) -> str:
    return "".join(json.loads(each)["choices"][0]["text"] for each in found if each != "[DONE]")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    with stepped(tmp_path_factory.mktemp("completions"), *NARROW, predictor="completing") as (running, _):
        yield running


def test_a_completion_comes_whole_or_in_pieces(server: Served) -> None:
    listed = server.request("GET", "/v1/models").json
    assert [model["id"] for model in listed["data"]] == ["model"]
    whole = server.request("POST", PATH, asked(max_tokens=3))
    assert whole.json["choices"][0]["text"] == "1.1 1.2 1.3 "
    assert whole.json["choices"][0]["finish_reason"] == "length"
    assert whole.headers["x-model-commit"] == "run/step-1/played"
    streamed = server.request("POST", PATH, asked(max_tokens=3, stream=True))
    assert streamed.headers["content-type"].startswith("text/event-stream")
    found = events(streamed.body)
    assert (len(found), found[-1], text_of(found)) == (4, "[DONE]", "1.1 1.2 1.3 ")


def test_tokens_are_counted_where_the_model_counts_them(server: Served) -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11}
    assert server.request("POST", PATH, asked(max_tokens=3)).json["usage"] == usage
    wanted = {"stream": True, "max_tokens": 3, "stream_options": {"include_usage": True}}
    streamed = server.request("POST", PATH, asked(**wanted))
    *pieces, last, done = map(json.loads, [each for each in events(streamed.body) if each != "[DONE]"] + ["1"])
    assert [piece["usage"] for piece in pieces] == [None] * 3 and done == 1
    assert (last["choices"], last["usage"]) == ([], usage)
    assert "usage" not in server.request("POST", PATH, asked(prompt="uncounted")).json
    assert "usage" not in json.loads(events(server.request("POST", PATH, asked(stream=True)).body)[0])
    refused = server.request("POST", PATH, asked(prompt="uncounted", **wanted))
    assert refused.status == 400 and "tokens" in refused.json["error"]["message"]


BAD = {
    "usage of a whole answer": ({"stream_options": {"include_usage": True}}, 400),
    "usage as a word": ({"stream": True, "stream_options": {"include_usage": "yes"}}, 400),
    "another option of streams": ({"stream": True, "stream_options": {"include_obfuscation": True}}, 400),
    "no prompt": ({"prompt": ""}, 400),
    "several prompts": ({"prompt": ["a", "b"]}, 400),
    "max_tokens of 0": ({"max_tokens": 0}, 400),
    "max_tokens of true": ({"max_tokens": True}, 400),
    "stream of text": ({"stream": "yes"}, 400),
    "two answers": ({"n": 2}, 400),
    "an unknown model": ({"model": "other", "stream": True}, 404),
    "a model that answers nonsense": ({"prompt": "nonsense", "stream": True}, 500),
    "a model that raises": ({"prompt": "raise", "stream": True}, 422),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_before_the_first_byte(server: Served, name: str) -> None:
    fields, status = BAD[name]
    refused = server.request("POST", PATH, asked(**fields))
    assert (refused.status, refused.json["error"]["code"]) == (status, status)
    assert server.request("POST", PATH, asked()).status == 200


def test_load_is_refused_before_the_first_byte_and_a_cut_stream_counts_as_failed(
    server: Served, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(server.request, "POST", PATH, asked(prompt=f"wait {gate}", stream=True))
        until(gate.with_suffix(".begun").exists, "the first piece to begin")
        waiting = [pool.submit(server.request, "POST", PATH, asked(stream=True)) for _ in range(2)]
        until(lambda: server.metric("holdfast_server_requests_waiting") == 2, "a full queue")
        refused = server.request("POST", PATH, asked(stream=True))
        assert (refused.status, int(refused.headers["retry-after"]) >= 1) == (429, True)
        gate.touch()
        assert [each.result().status for each in (first, *waiting)] == [200] * 3
    failed = 'holdfast_server_requests_total\\{code="504"\\}'
    before = server.metric(failed)
    cut = server.request("POST", PATH, asked(stream=True, max_tokens=60_000), {"x-request-timeout-ms": "400"})
    *pieces, last = events(cut.body)
    assert (cut.status, json.loads(last)["error"]["code"]) == (200, 504)
    assert text_of(pieces).startswith("1.1 1.2 ")
    assert server.metric(failed) == before + 1


def test_a_stream_outlives_its_predictor_and_stays_with_the_model_that_began_it(tmp_path: Path) -> None:
    with stepped(tmp_path, *NARROW, predictor="completing") as (server, step):
        stream = opened(server, max_tokens=60)
        got = b""
        while b"1.3 " not in got:
            got += stream.recv(4096)
        server.model().kill()
        while b"1.9 " not in got:
            got += stream.recv(4096)
        step.write_text("2")
        assert server.load().json["outcome"] == "taken"
        assert server.request("POST", PATH, asked(max_tokens=1)).json["choices"][0]["text"] == "2.1 "
        while b"1.60 " not in got:
            more = stream.recv(4096)
            assert more, got[-500:]
            got += more
        stream.close()


def test_a_notice_at_the_first_and_at_the_last_byte_of_an_answer_cuts_none(tmp_path: Path) -> None:
    with stepped(tmp_path, predictor="completing") as (server, _):
        ending, beginning = opened(server, max_tokens=3), opened(server, max_tokens=60)
        nearly = b""
        while b"1.3 " not in nearly:
            nearly += ending.recv(1)
        first = beginning.recv(1)
        server.signal(signal.SIGTERM)
        assert text_of(events(nearly + received(ending))) == "1.1 1.2 1.3 "
        *pieces, last = events(first + received(beginning))
        assert (text_of(pieces).split()[-1], last) == ("1.60", "[DONE]")
        assert server.ended() == 143


def test_a_server_that_leaves_waits_for_its_streams_and_cuts_them_at_the_bound(tmp_path: Path) -> None:
    with stepped(tmp_path, "--window", "11", "--longest-request", "3", predictor="completing") as (server, _):
        noticed = server.signal(signal.SIGTERM)
        until(lambda: server.ready() == 503, "readiness to end")
        short, endless = opened(server, max_tokens=20), opened(server, max_tokens=60_000)
        assert text_of(events(received(short))).endswith("1.20 ")
        *pieces, last = events(received(endless))
        assert json.loads(last)["error"]["code"] == 504, last
        assert len(pieces) > 20
        assert server.ended() == 143
        assert time.monotonic() - noticed < 11
        [gone] = [line for line in server.lines() if "answered" in line]
        assert gone["answered"] == {"200": 1, "504": 1}
