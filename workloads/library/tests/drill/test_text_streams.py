"""Tests of the clients that judge text streams: what is whole, cut, or has another text."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from holdfast.drill.serving.text_streams import StreamLoad, StreamResult, read_stream
from holdfast.inference.small_engine import model
from workloads.library.tests.http_server import answering
from workloads.library.tests.inference.router.fleet import engine, kill
from workloads.library.tests.processes import until

PROMPT = "a prompt"
COUNT = 40
DONE = b"data: [DONE]\n\n"
ERROR = b'data: {"error": {"message": "no server is ready"}}\n\n'


def make_tokens() -> list[int]:
    state = model.Model(model.encode(PROMPT))
    return [state.next(may_end=False)[0] for _ in range(COUNT)]


def make_events(tokens: list[int]) -> bytes:
    decoder = model.Decoder()
    events = b""
    for token in tokens:
        choice = {"token_ids": [token], "text": decoder.add(token)}
        events += b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"
    return events


def judge(events: bytes) -> StreamResult:
    def answer(path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, object]:
        return 200, events

    with answering(answer) as url:
        port = int(url.rpartition(":")[2])
        return asyncio.run(read_stream(port, PROMPT, COUNT))


def test_the_whole_text_is_whole() -> None:
    result = judge(make_events(make_tokens()) + DONE)
    assert result.is_whole
    assert result.tokens == COUNT


def test_each_damage_is_seen() -> None:
    tokens = make_tokens()
    whole = make_events(tokens)
    assert judge(whole).is_cut, "without its last event"
    assert judge(whole + ERROR + DONE).is_cut, "with an error"
    assert judge(make_events(tokens[:-1]) + DONE).missing == 1
    assert judge(make_events([*tokens, tokens[-1]]) + DONE).doubled == 1
    swapped = [tokens[1], tokens[0], *tokens[2:]]
    assert tokens[0] != tokens[1]
    assert judge(make_events(swapped) + DONE).is_different
    other_text = whole.replace(b'"text": "', b'"text": "x', 1)
    assert judge(other_text + DONE).is_different


@pytest.mark.process
def test_a_killed_engine_cuts_its_streams(tmp_path: Path) -> None:
    load = StreamLoad(clients=2, tokens=100)
    with engine(tmp_path, tokens_per_s=50.0) as served, load.reading(served.port):
        until(lambda: len(load.results) >= 2, "two whole streams")
        assert all(result.is_whole for result in load.results)
        tokens = [result.tokens for result in load.results[:2]]
        assert tokens == [50, 100], "streams that end at once would all escape a fault"
        kill(served)
    assert any(result.is_cut and result.missing for result in load.results)
