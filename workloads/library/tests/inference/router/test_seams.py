"""Streams cut at every event and continued: equal to those that were not cut."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.inference.router.detokenizer import count_parts, split_piece
from holdfast.inference.router.events import EventReader, decode, read_piece
from holdfast.inference.router.generation import parse
from holdfast.inference.router.transcript import Transcript
from holdfast.inference.small_engine import model
from holdfast.inference.small_engine.app import EngineSettings, Job

Document = dict[str, Any]
CHAT = [{"role": "system", "content": "be short"}, {"role": "user", "content": "hello €"}]
BASE: Document = {
    "model": "small",
    "stream": True,
    "return_token_ids": True,
    "max_tokens": 40,
}
USAGE = {"include_usage": True}


class Recorder:
    """The client of an engine's job, which keeps what is sent."""

    def __init__(self) -> None:
        self.data = b""

    async def start(self, status: int, headers: object) -> None:
        assert status == 200

    async def write(self, data: bytes) -> None:
        self.data += data

    async def finish(self, data: bytes = b"") -> None:
        self.data += data


def run_engine(body: Document, pair_every: int, *, is_chat: bool) -> list[Document]:
    """Returns the events of an engine."""
    options = EngineSettings(
        tokens_per_s=0,
        prefill_s=0,
        pair_every=pair_every,
    )
    recorder = Recorder()
    job = Job(body, options, is_chat=is_chat)
    asyncio.run(job.run(recorder, lambda count: None))  # type: ignore[arg-type]
    *payloads, _ = EventReader(1 << 20).add(recorder.data)
    return [decode(payload) for payload in payloads]


def summarize(events: Sequence[Document]) -> Document:
    """Returns what a client makes of its events, however they are divided."""
    text = ""
    ids: list[int] = []
    prompt_ids: list[int] = []
    logprobs: list[Any] = []
    summary: Document = {}
    for event in events:
        summary["usage"] = event.get("usage")
        for choice in event["choices"]:
            delta = choice.get("delta")
            text += choice["text"] if delta is None else delta.get("content", "")
            ids += choice.get("token_ids", [])
            prompt_ids += choice.get("prompt_token_ids") or event.get("prompt_token_ids") or []
            columns = choice["logprobs"]
            if columns and delta is None:
                keys = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
                logprobs += zip(*(columns[key] for key in keys), strict=True)
            elif columns:
                logprobs += columns["content"]
            if choice["finish_reason"]:
                summary["finish"] = (choice["finish_reason"], choice["stop_reason"])
    return summary | {
        "text": text,
        "ids": ids,
        "prompt_ids": prompt_ids,
        "logprobs": logprobs,
    }


async def texts(ids: Sequence[int]) -> str:
    """Returns the text of tokens, as an engine's /detokenize does."""
    return model.decode(ids)


def carry(
    body: Document,
    cuts: Sequence[int],
    pair_every: int,
    *,
    is_chat: bool,
) -> list[Document]:
    """Returns the events that a client gets if each server is lost after as many events as `cuts`.

    The last server is not lost.
    """
    generation = parse(json.dumps(body).encode(), is_chat=is_chat)
    assert not generation.obstacle
    transcript = Transcript(generation)
    received: list[Document] = []
    remaining = list(cuts)
    is_native = is_chat
    request = json.loads(generation.first_body())
    while not transcript.is_finished:
        events = run_engine(request, pair_every, is_chat=is_native)
        for event in events[: remaining[0]] if remaining else events:
            piece = read_piece(event)
            transcript.read_head(event, piece)
            if piece is None:
                continue
            if not received and is_chat:
                head = transcript.head_chunk()
                assert head is not None
                received.append(head)
            parts = [piece]
            if transcript.is_split_needed(piece):
                parts = asyncio.run(split_piece(texts, piece, transcript.ids[-8:].tolist()))
            for part in parts:
                if not transcript.is_finished:
                    received += [transcript.chunk(item) for item in transcript.add(part)]
        if transcript.is_finished:
            break
        del remaining[:1]
        transcript.rewind()
        ids = transcript.doubtful_ids()
        transcript.settle(asyncio.run(count_parts(texts, ids)) if ids else 0)
        if transcript.is_full:
            received += [transcript.chunk(item) for item in transcript.finish_full()]
            break
        if transcript.prompt_ids is not None:
            is_native = False
            request = json.loads(
                generation.continuation_body(transcript.prompt_ids, transcript.ids, keep_seed=True)
            )
    return [*received, transcript.usage_chunk()]


def expect_equal(
    body: Document,
    cuts: Sequence[int],
    pair_every: int,
    *,
    is_chat: bool = False,
) -> None:
    expected = summarize(run_engine(body, pair_every=0, is_chat=is_chat))
    actual = summarize(carry(body, cuts, pair_every, is_chat=is_chat))
    assert actual == expected


REQUESTS: dict[str, tuple[Document, bool]] = {
    "greedy": ({"prompt": "hello the model €"}, False),
    "ids": (
        {
            "prompt": [104, 105, 33],
            "ignore_eos": True,
        },
        False,
    ),
    "stops": (
        {
            "prompt": "stop here",
            "stop": [" the model", "日本", "€ "],
        },
        False,
    ),
    "stop shown": (
        {
            "prompt": "a train",
            "stop": ["and", "🙂"],
            "include_stop_str_in_output": True,
        },
        False,
    ),
    "late stop": (
        {
            "prompt": "wait",
            "stop": [" "],
            "min_tokens": 17,
        },
        False,
    ),
    "stop before the least number of tokens": (
        {
            "prompt": [0],
            "stop": [" the", "e"],
            "min_tokens": 4,
        },
        False,
    ),
    "stop after the middle of a character": (
        {
            "prompt": [230],
            "stop": ["e"],
        },
        False,
    ),
    "seed": (
        {
            "prompt": "dice",
            "temperature": 1.0,
            "seed": 7,
            "ignore_eos": True,
        },
        False,
    ),
    "logprobs": (
        {
            "prompt": "numbers",
            "logprobs": 3,
            "ignore_eos": True,
        },
        False,
    ),
    "chat": ({"messages": CHAT, "ignore_eos": True}, True),
    "chat logprobs": (
        {
            "messages": CHAT,
            "logprobs": True,
            "top_logprobs": 2,
            "ignore_eos": True,
        },
        True,
    ),
    "chat stop": (
        {
            "messages": CHAT,
            "stop": " of",
            "ignore_eos": True,
        },
        True,
    ),
}


@pytest.mark.parametrize("pair_every", [0, 1, 2, 3])
@pytest.mark.parametrize("name", REQUESTS)
def test_every_cut_gives_the_undisturbed_stream(name: str, pair_every: int) -> None:
    fields, is_chat = REQUESTS[name]
    body = BASE | fields | {"stream_options": USAGE}
    count = len(run_engine(body, pair_every, is_chat=is_chat))
    for cut in range(count + 1):
        expect_equal(body, [cut], pair_every, is_chat=is_chat)


@settings(max_examples=150, deadline=None)
@given(
    prompt=st.lists(st.integers(0, model.VOCABULARY - 1), min_size=1, max_size=8),
    cuts=st.lists(st.integers(0, 12), max_size=6),
    pair_every=st.integers(0, 4),
    fields=st.fixed_dictionaries(
        {},
        optional={
            "stop": st.lists(
                st.sampled_from([" the", "e", "€", "日本", ". ", "and", " and ", "!!"]),
                min_size=1,
                max_size=3,
            ),
            "include_stop_str_in_output": st.booleans(),
            "min_tokens": st.integers(0, 20),
            "logprobs": st.integers(0, 3),
            "seed": st.integers(0, 5),
            "temperature": st.sampled_from([0.0, 0.7]),
            "ignore_eos": st.booleans(),
            "max_tokens": st.integers(1, 50),
        },
    ),
)
def test_any_cuts_give_the_undisturbed_stream(
    prompt: list[int],
    cuts: list[int],
    pair_every: int,
    fields: Document,
) -> None:
    body = BASE | fields | {"prompt": prompt, "stream_options": USAGE}
    if "seed" not in body:
        body["temperature"] = 0.0
    expect_equal(body, cuts, pair_every)
