"""Clients that hold text streams of small engines open, and judge each token of them.

The next token of a small engine is a function of the tokens before, so a client can tell a token
that was lost, doubled or changed.
"""

import asyncio
import itertools
import json
import math
import threading
import time
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from holdfast.drill.serving.fleet import HOST
from holdfast.inference.router.engine_connection import EngineLost, connect, make_request
from holdfast.inference.router.events import EventReader, MalformedEvent
from holdfast.inference.small_engine import model

_PATH = "/v1/completions"
_JSON = {"content-type": "application/json"}
_CONNECT_S = 30.0
_RETRY_S = 0.1


@dataclass(frozen=True, slots=True)
class StreamResult:
    is_cut: bool
    tokens: int
    missing: int
    doubled: int
    is_different: bool
    longest_gap_s: float
    seconds: float

    @property
    def is_whole(self) -> bool:
        """True if it has the text of an undisturbed stream."""
        return not (self.is_cut or self.missing or self.doubled or self.is_different)


async def read_stream(port: int, prompt: str, count: int, host: str = HOST) -> StreamResult:
    """Reads a stream to its end and compares it with what the model makes of the prompt."""
    body: dict[str, Any] = {
        "prompt": prompt,
        "max_tokens": count,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
    }
    content = json.dumps(body).encode()
    request = make_request("POST", _PATH, host, content, _JSON)
    reader = EventReader(1 << 24)
    payloads: list[bytes] = []
    start = time.monotonic()
    previous = 0.0
    longest_gap_s = 0.0
    is_cut = True
    connection = None
    try:
        connection = await connect(host, port, request, timeout_s=_CONNECT_S)
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
) -> StreamResult:
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
    return StreamResult(
        is_cut=is_cut,
        tokens=len(ids),
        missing=max(0, count - len(ids)),
        doubled=max(0, len(ids) - count),
        is_different=ids != expected[: len(ids)] or "".join(texts) != text,
        longest_gap_s=longest_gap_s,
        seconds=seconds,
    )


class StreamLoad:
    """Clients that read one stream after the other."""

    def __init__(self, *, clients: int, tokens: int, host: str = HOST) -> None:
        self.clients = clients
        self.tokens = tokens
        self.host = host
        self.results: list[StreamResult] = []
        self._numbers = itertools.count()

    @contextmanager
    def reading(self, port: int) -> Generator[None]:
        """Reads streams during the block; returns after the end of the open ones."""
        stop = threading.Event()
        thread = threading.Thread(
            target=lambda: asyncio.run(self._read_all(port, stop)),
            name="streams",
            daemon=True,
        )
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    async def _read_all(self, port: int, stop: threading.Event) -> None:
        clients: list[Coroutine[Any, Any, None]] = []
        for number in range(1, self.clients + 1):
            # Streams of one length would all end at once, and a fault at that time would meet none.
            tokens = math.ceil(self.tokens * number / self.clients)
            clients.append(self._read(port, stop, tokens))
        await asyncio.gather(*clients)

    async def _read(self, port: int, stop: threading.Event, tokens: int) -> None:
        """Reads a first stream of `tokens`, then whole ones."""
        while not stop.is_set():
            prompt = f"stream {next(self._numbers)}"
            result = await read_stream(port, prompt, tokens, self.host)
            self.results.append(result)
            tokens = self.tokens
            if not result.tokens:
                await asyncio.sleep(_RETRY_S)
