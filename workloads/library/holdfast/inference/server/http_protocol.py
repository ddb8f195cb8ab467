"""The HTTP protocol of a connection: uvicorn's, with read timeouts and a limit on headers.

uvicorn closes a connection with incomplete headers as an idle one, and waits for slow senders
without end. Here a request counts from its first byte, so that no drain cuts it, and a response is
written as a whole.
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
"""The maximum time for the headers of a request."""
STARTED_AT = "holdfast.started_at"
"""The key in the scope for the time of the first byte, on the loop's clock."""


class _BufferedTransport:
    """Sends the data of one iteration of the loop in one write: headers with their body.

    A proxy cannot retry a request if the server dies after the first part of its response.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._buffer: list[bytes] = []

    def write(self, data: bytes) -> None:
        if not self._buffer:
            self._loop.call_soon(self._flush)
        self._buffer.append(data)

    def _flush(self) -> None:
        data = b"".join(self._buffer)
        self._buffer = []
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
    def bind(cls, drain: Drain, request_s: float) -> type["Connection"]:
        """Makes the class of one server, as uvicorn makes the instances itself."""
        return type(
            "ServerConnection",
            (cls,),
            {
                "drain": drain,
                "header_s": min(request_s, _HEADER_S),
            },
        )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._open = 0
        """The number of requests that have started and are not answered."""
        self._started_at = 0.0
        self._header_bytes = -1
        """The size of the headers that are being read; -1 if none are."""
        self._header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        buffered = _BufferedTransport(transport, self.loop)
        super().connection_made(cast("asyncio.Transport", buffered))

    def data_received(self, data: bytes) -> None:
        was_reading = self._header_bytes >= 0
        super().data_received(data)
        if self._header_bytes < 0 or self.transport.is_closing():
            return
        if not was_reading:
            self._header_bytes = 0
        self._header_bytes += len(data)
        if self._header_bytes > MAX_HEADER_BYTES:
            self._refuse(b"431 Request Header Fields Too Large")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._open += 1
        self.drain.begin_request()
        self._started_at = self.loop.time()
        self._header_bytes = 0
        self._header_timer = self.loop.call_later(
            self.header_s, self._refuse, b"408 Request Timeout"
        )

    def on_headers_complete(self) -> None:
        self._finish_headers()
        # It has to be in the scope before the application starts.
        self.scope["state"][STARTED_AT] = self._started_at  # pyright: ignore[reportTypedDictNotRequiredAccess]
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        self._count_answered(1)
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish_headers()
        self._count_answered(self._open)
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Closes an idle connection; a started request, even with half its headers, is answered."""
        if not self._open:
            self.transport.close()
        elif self.cycle is not None:  # pyright: ignore[reportUnnecessaryComparison]  None until the first headers
            self.cycle.keep_alive = False

    def _count_answered(self, count: int) -> None:
        for _ in range(min(count, self._open)):
            self._open -= 1
            self.drain.end_request()

    def _finish_headers(self) -> None:
        self._header_bytes = -1
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _refuse(self, status: bytes) -> None:
        self._finish_headers()
        headers = b"content-length: 0\r\nconnection: close"
        self.transport.write(b"HTTP/1.1 " + status + b"\r\n" + headers + b"\r\n\r\n")
        self.transport.close()


DEADLINE_HEADERS = ("x-request-timeout-ms", "x-envoy-expected-rq-timeout-ms")
"""The headers with the milliseconds that the client, or the proxy, still waits."""
ATTEMPT_HEADER = "x-envoy-attempt-count"
_TRY_SPARE_S = 0.5
"""The margin before a proxy's timeout, at most a tenth of it, so that the response is in time."""


@dataclass(frozen=True, slots=True)
class Deadline:
    at_s: float
    """The deadline on the loop's clock."""
    tries: int = 0
    """The try of a proxy that has time for another server: 1 for the first, 2 for any other.

    0 if there is no such proxy.
    """


def find_deadline(request: HttpRequest, longest_s: float) -> Deadline:
    """Returns the deadline: the server's longest request, or earlier if the caller says so."""
    client_header, try_header = DEADLINE_HEADERS
    own_s = min(longest_s, _parse_seconds(request, client_header))
    try_s = _parse_seconds(request, try_header)
    try_s -= min(_TRY_SPARE_S, try_s / 10)
    tries = 0
    if try_s < own_s:
        attempt = request.headers.get(ATTEMPT_HEADER, "1")
        tries = 1 if attempt == "1" else 2
    start = request.scope["state"][STARTED_AT]
    return Deadline(start + min(own_s, try_s), tries)


def _parse_seconds(request: HttpRequest, header: str) -> float:
    text = request.headers.get(header)
    if not text:
        return math.inf
    is_number = text.isascii() and text.isdecimal() and len(text) <= 9
    if not is_number or not int(text):
        raise Refused(400, f"{header} must be a whole number of milliseconds above 0")
    return int(text) / 1000
