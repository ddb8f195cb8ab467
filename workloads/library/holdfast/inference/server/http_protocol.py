"""Extends uvicorn's HTTP protocol by timeouts and by limits on headers and connections.

uvicorn closes a connection with incomplete headers as an idle one, and waits without end for slow
senders and for the first request. Here a request counts from its first byte, so that no drain cuts
it, and a response is written as a whole.
"""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, cast

from starlette.requests import Request as HttpRequest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from holdfast.inference.errors import Refused
from holdfast.inference.server.drain import Drain
from holdfast.inference.server.idle_connections import IdleConnections

MAX_HEADER_BYTES = 64 * 1024
"""The maximum of a request apart from its body: headers, trailers and extensions of chunks."""
_CHUNK_BYTES = 16
"""The bytes of a chunk in addition to its data that do not count: its size and two line ends."""
_HEADER_S = 5.0
"""The maximum time for the headers of a request."""
_SEND_S = 5.0
"""The maximum time in which a client takes the rest of its response, once its connection closes."""
STARTED_AT = "holdfast.started_at"
"""The key in the scope for the time of the first byte, on the loop's clock."""
CONNECTION = "holdfast.connection"
"""The key in the scope for the connection of the request."""


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


class ConnectionLimits(Protocol):
    @property
    def connections(self) -> int: ...

    @property
    def idle_s(self) -> float: ...

    @property
    def request_s(self) -> float: ...


class Connection(HttpToolsProtocol):
    drain: Drain
    idle_connections: IdleConnections
    idle_s: float
    header_s: float

    @classmethod
    def bind(cls, drain: Drain, settings: ConnectionLimits) -> type["Connection"]:
        """Makes the class of one server, as uvicorn makes the instances itself."""
        return type(
            "ServerConnection",
            (cls,),
            {
                "drain": drain,
                "idle_connections": IdleConnections(settings.connections),
                "idle_s": settings.idle_s,
                "header_s": min(settings.request_s, _HEADER_S),
            },
        )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._open = 0
        """The number of requests that have started and are not answered."""
        self._started_at = 0.0
        self.is_receiving = False
        """Whether a request has started whose last byte has not arrived."""
        self._is_lost = False
        self._on_loss: Callable[[], object] | None = None
        self._header_bytes = 0
        """What arrived of that request apart from its body."""
        self._is_in_headers = False
        self._header_timer: asyncio.TimerHandle | None = None
        """Runs only for headers whose end did not arrive with their first byte."""
        self._idle_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        buffered = _BufferedTransport(transport, self.loop)
        super().connection_made(cast("asyncio.Transport", buffered))
        is_full = len(self.connections) > self.idle_connections.most
        if is_full and not self.idle_connections.close_one():
            self._send_refusal(b"503 Service Unavailable")
            return
        self._begin_idle(is_silent=True)

    def data_received(self, data: bytes) -> None:
        self._header_bytes += len(data)
        super().data_received(data)
        if self._is_in_headers and self._header_timer is None:
            self._header_timer = self.loop.call_later(
                self.header_s, self._refuse, b"408 Request Timeout"
            )
        if not self.is_receiving:
            self._header_bytes = 0
        self._header_bytes = max(0, self._header_bytes)
        if self._header_bytes > MAX_HEADER_BYTES and not self.transport.is_closing():
            self._refuse(b"431 Request Header Fields Too Large")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._end_idle()
        self._open += 1
        self.drain.begin_request()
        self._started_at = self.loop.time()
        self.is_receiving = True
        self._is_in_headers = True

    def on_header(self, name: bytes, value: bytes) -> None:
        # Trailers come after the headers; nothing reads them, and uvicorn would keep each.
        if self._is_in_headers:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._finish_headers()
        # It has to be in the scope before the application starts.
        state = self.scope["state"]  # pyright: ignore[reportTypedDictNotRequiredAccess]
        state[STARTED_AT] = self._started_at
        state[CONNECTION] = self
        super().on_headers_complete()

    def on_chunk_header(self) -> None:
        self._header_bytes -= _CHUNK_BYTES

    def on_body(self, body: bytes) -> None:
        self._header_bytes -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self.is_receiving = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._count_answered(1)
        super().on_response_complete()
        if not self._open and not self.transport.is_closing():
            self._begin_idle(is_silent=False)

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish_headers()
        self._end_idle()
        self._end_stall()
        self._is_lost = True
        if self._on_loss is not None:
            self._on_loss()
        self._count_answered(self._open)
        super().connection_lost(exc)

    def watch(self, on_loss: Callable[[], object] | None) -> None:
        """Calls `on_loss` when the client disconnects, or at once if it has; None ends it."""
        self._on_loss = on_loss
        if on_loss is None:
            return
        # A paused connection does not notice that its client has closed it.
        self.flow.resume_reading()
        if self._is_lost:
            on_loss()

    def pause_writing(self) -> None:
        super().pause_writing()
        # Otherwise a client that does not read would keep the connection and its responses.
        self._stall_timer = self.loop.call_later(self.idle_s, self.transport.abort)

    def resume_writing(self) -> None:
        self._end_stall()
        super().resume_writing()

    def close_idle(self) -> None:
        """Closes the connection, after what is left to send of its last response."""
        self._end_idle()
        self.transport.close()
        # A client that does not read would keep it open.
        self.loop.call_later(_SEND_S, self.transport.abort)

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

    def _begin_idle(self, *, is_silent: bool) -> None:
        """Starts the time until the next request begins; bytes that begin none do not extend it."""
        self._end_idle()
        self._idle_timer = self.loop.call_later(self.idle_s, self.close_idle)
        self.idle_connections.add(self, is_silent=is_silent)

    def _end_idle(self) -> None:
        self.idle_connections.discard(self)
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

    def _end_stall(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _finish_headers(self) -> None:
        self._is_in_headers = False
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _refuse(self, status: bytes) -> None:
        is_head = self._is_in_headers
        self._finish_headers()
        # Its response may have been sent before the end of its body.
        if is_head or not self.cycle.response_started:
            self._send_refusal(status)
        else:
            self.transport.close()

    def _send_refusal(self, status: bytes) -> None:
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
    """The number of the try, if a proxy has time for another server: 1, or 2 for any later one.

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
