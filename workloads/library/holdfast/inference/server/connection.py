"""One HTTP connection: uvicorn's, with read timeouts of its own, a bound on headers, and no request
cut at a drain.

uvicorn takes a connection whose headers are not complete for an idle one and closes it, and waits
for slow senders without end. Here a request counts from its first byte, and an answer leaves whole.
"""

import asyncio
import math
from dataclasses import dataclass
from typing import Any, cast

from starlette.requests import Request as HttpRequest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from holdfast.inference.errors import Refused
from holdfast.inference.server.drain import Drain

MAX_HEADER_BYTES = 64 * 1024
_HEADER_S = 5.0
"""Within which a request's headers must have come."""
BEGAN = "holdfast.began"
"""In the scope: when the first byte came, on the loop's clock."""


class _Together:
    """What is written in one turn of the loop leaves at once, and not first the headers and then
    the body.

    A server that dies in between has begun an answer, which no proxy can ask for again.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held = list[bytes]()

    def write(self, data: bytes) -> None:
        if not self._held:
            self._loop.call_soon(self._flush)
        self._held.append(data)

    def _flush(self) -> None:
        data = b"".join(self._held)
        self._held = []
        if data and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Connection(HttpToolsProtocol):
    drain: Drain
    header_s: float

    @classmethod
    def of(cls, drain: Drain, request_s: float) -> type["Connection"]:
        """A class for one server: uvicorn makes the instances itself."""
        return type(
            "ServerConnection",
            (cls,),
            {
                "drain": drain,
                "header_s": min(request_s, _HEADER_S),
            },
        )

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._open = 0
        """Requests that have begun and are not answered."""
        self._began_at = 0.0
        self._header_bytes = -1
        """Of the request whose headers are being read; -1: none is."""
        self._header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast("asyncio.Transport", _Together(transport, self.loop)))

    def data_received(self, data: bytes) -> None:
        was_reading = self._header_bytes >= 0
        super().data_received(data)
        if self._header_bytes < 0 or self.transport.is_closing():
            return
        self._header_bytes = self._header_bytes + len(data) if was_reading else len(data)
        if self._header_bytes > MAX_HEADER_BYTES:
            self._refuse(b"431 Request Header Fields Too Large")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._open += 1
        self.drain.began()
        self._began_at = self.loop.time()
        self._header_bytes = 0
        self._header_timer = self.loop.call_later(
            self.header_s, self._refuse, b"408 Request Timeout"
        )

    def on_headers_complete(self) -> None:
        self._headers_done()
        # Into the scope before the application is started with it.
        self.scope["state"][BEGAN] = self._began_at  # pyright: ignore[reportTypedDictNotRequiredAccess]
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        self._answered(1)
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._headers_done()
        self._answered(self._open)
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Close when idle; a request that has begun, even with half of its headers, is answered
        first.
        """
        if not self._open:
            self.transport.close()
        elif self.cycle is not None:  # pyright: ignore[reportUnnecessaryComparison]  None until the first headers
            self.cycle.keep_alive = False

    def _answered(self, count: int) -> None:
        for _ in range(min(count, self._open)):
            self._open -= 1
            self.drain.ended()

    def _headers_done(self) -> None:
        self._header_bytes = -1
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _refuse(self, status: bytes) -> None:
        self._headers_done()
        self.transport.write(
            b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        )
        self.transport.close()


DEADLINE_HEADERS = ("x-request-timeout-ms", "x-envoy-expected-rq-timeout-ms")
"""Milliseconds that the client, or the proxy before us, still waits."""
ATTEMPT_HEADER = "x-envoy-attempt-count"
_TRY_SPARE_S = 0.5
"""Of a try's time, a tenth at most: the proxy must have the answer before it gives the try up."""


@dataclass(frozen=True, slots=True)
class Deadline:
    at_s: float
    """On the loop's clock."""
    tries: int = 0
    """Of a proxy that has time for another server after this: 1 for its first try, 2 for any other.
    Else 0.
    """


def deadline(request: HttpRequest, longest_s: float) -> Deadline:
    """The server's longest request, or sooner where the caller says so."""
    client_s, try_s = (_stated_s(request, name) for name in DEADLINE_HEADERS)
    try_s -= min(_TRY_SPARE_S, try_s / 10)
    own_s = min(longest_s, client_s)
    attempt = request.headers.get(ATTEMPT_HEADER, "1")
    tries = (2 if attempt != "1" else 1) if try_s < own_s else 0
    return Deadline(request.scope["state"][BEGAN] + min(own_s, try_s), tries)


def _stated_s(request: HttpRequest, name: str) -> float:
    text = request.headers.get(name)
    if not text:
        return math.inf
    if not text.isascii() or not text.isdecimal() or len(text) > 9 or not int(text):
        raise Refused(400, f"{name} must be a whole number of milliseconds above 0")
    return int(text) / 1000
