"""Clients that hold many streams open, and judge each token of them."""

import asyncio
import itertools
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from holdfast.inference.router.engine_connection import EngineLost, connect, make_request
from holdfast.inference.router.events import EventReader, MalformedEvent
from holdfast.inference.small_engine import model

HOST = "127.0.0.1"
_PATH = "/v1/completions"


@dataclass(frozen=True, slots=True)
class Result:
    is_cut: bool
    tokens: int
    missing: int
    doubled: int
    is_different: bool
    longest_gap_s: float
    seconds: float


@dataclass
class Tally:
    """Sums up the streams of a run."""

    results: list[Result] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        return sum(result.tokens for result in self.results)

    def count(self) -> dict[str, int]:
        cut = 0
        missing = 0
        doubled = 0
        different = 0
        for result in self.results:
            cut += result.is_cut
            missing += result.missing
            doubled += result.doubled
            different += result.is_different
        return {
            "streams": len(self.results),
            "cut": cut,
            "tokens": self.tokens,
            "tokens_lost": missing,
            "tokens_doubled": doubled,
            "streams_different": different,
        }

    def longest_gaps(self, count: int) -> list[float]:
        """Returns the longest gaps of the `count` streams that have the longest ones, sorted.

        With the number of streams that moved it judges all of them, or gaps that are longer.
        """
        gaps = sorted(result.longest_gap_s for result in self.results)
        return gaps[-count:] if count else gaps[:0]


async def read_stream(port: int, prompt: str, count: int) -> Result:
    """Reads a stream to its end and compares it with what the model makes of the prompt."""
    body: dict[str, Any] = {
        "prompt": prompt,
        "max_tokens": count,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
    }
    request = make_request("POST", _PATH, HOST, json.dumps(body).encode())
    reader = EventReader(1 << 24)
    payloads: list[bytes] = []
    start = time.monotonic()
    previous = 0.0
    longest_gap_s = 0.0
    is_cut = True
    connection = None
    try:
        connection = await connect(HOST, port, request, timeout_s=30.0)
        head = await connection.read_head()
        while head.status == 200 and (data := await connection.read()):
            now = time.monotonic()
            if previous:
                longest_gap_s = max(longest_gap_s, now - previous)
            previous = now
            payloads += reader.add(data)
        is_cut = payloads[-1:] != [b"[DONE]"]
    except (EngineLost, MalformedEvent):
        pass
    finally:
        if connection is not None:
            connection.close()
    seconds = time.monotonic() - start
    return _judge(payloads, prompt, count, is_cut, longest_gap_s, seconds)


def _judge(
    payloads: list[bytes],
    prompt: str,
    count: int,
    is_cut: bool,
    longest_gap_s: float,
    seconds: float,
) -> Result:
    ids: list[int] = []
    texts: list[str] = []
    for payload in payloads:
        if payload == b"[DONE]":
            continue
        event = json.loads(payload)
        is_cut = is_cut or "error" in event
        for choice in event.get("choices", ()):
            ids += choice["token_ids"]
            texts.append(choice["text"])
    state = model.Model(model.encode(prompt))
    decoder = model.Decoder()
    expected = []
    for _ in range(count):
        expected.append(state.next(may_end=False)[0])
    tokens = expected[: len(ids)]
    text = "".join(decoder.add(token) for token in tokens)
    return Result(
        is_cut=is_cut,
        tokens=len(ids),
        missing=max(0, count - len(ids)),
        doubled=max(0, len(ids) - count),
        is_different=ids != expected[: len(ids)] or "".join(texts) != text,
        longest_gap_s=longest_gap_s,
        seconds=seconds,
    )


async def run_streams(
    ports: list[int],
    *,
    streams: int,
    streams_open: int,
    draw_tokens: Callable[[random.Random], int],
    on_end: Callable[[int], None] = lambda count: None,
) -> Tally:
    """Holds `streams_open` streams open until `streams` have ended; ports take turns."""
    generator = random.Random(56)
    jobs = iter([(number, draw_tokens(generator)) for number in range(streams)])
    targets = itertools.cycle(ports)
    tally = Tally()
    start = time.monotonic()

    async def work() -> None:
        for number, count in jobs:
            tally.results.append(await read_stream(next(targets), f"stream {number}", count))
            on_end(len(tally.results))

    await asyncio.gather(*(work() for _ in range(min(streams_open, streams))))
    tally.seconds = time.monotonic() - start
    return tally
