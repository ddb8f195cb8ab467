"""The router's HTTP client: one connection for each request to a server, with limits.

A request is ended by closing its connection, which the server notices at once. Nothing is pooled,
so no connection can be closed by the other side while a request is written to it.
"""

import asyncio
import contextlib
import math
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import httptools

from holdfast.support.errors import HoldfastError

_MOST_HEADER_BYTES = 64 * 1024
SOCKET_BUFFER_BYTES = 128 * 1024
"""The kernel's buffer of a connection, which counts in a container's memory: its default grows to
megabytes for each client that does not read.
"""
_MOST_BUFFER_BYTES = 256 * 1024
"""The buffer for a client that reads slowly; above it the server waits."""


class EngineLost(HoldfastError):
    """Raised when a server does not continue a request."""

    def __init__(self, cause: str) -> None:
        self.cause = cause
        super().__init__(cause)


@dataclass(frozen=True, slots=True)
class Head:
    status: int
    headers: Mapping[str, str]
    """The headers, with names in lower case."""


class EngineConnection(asyncio.Protocol):
    def __init__(self, loop: asyncio.AbstractEventLoop, *, has_body: bool = True) -> None:
        self._loop = loop
        self._has_body = has_body
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._headers: dict[str, str] = {}
        self._head: Head | None = None
        self._header_bytes = 0
        self._chunks: list[bytes] = []
        self._size = 0
        self._is_paused = False
        self._is_complete = False
        self._cause = ""
        self._waiter: asyncio.Future[None] | None = None
        self.waits_since: float | None = None
        """The time since which the router waits for data; None while it waits for its client."""
        self.received_at = -math.inf
        """The time of the last data. A connection alone does not count: the kernel of a hung
        server accepts it.
        """
        self.is_movable = True
        """True if the request can go on at another server."""
        self.limit_s = math.inf
        """The silence that counts as a hang."""

    def silence_s(self, now: float) -> float:
        """Returns the time for which the router has waited for data."""
        if self.waits_since is None:
            return 0.0
        return now - max(self.waits_since, self.received_at)

    def close(self) -> None:
        """Closes the connection; a server whose response is not complete ends the request."""
        if self._transport is not None:
            self._transport.abort()

    def fail(self, cause: str) -> None:
        """Ends the response with EngineLost, after what has arrived."""
        if not self._cause and not self._is_complete:
            self._cause = cause
            self.close()
            self._wake()

    async def read_head(self) -> Head:
        """Waits for the status and the headers. Raises EngineLost."""
        while self._head is None:
            if self._cause:
                raise EngineLost(self._cause)
            await self._wait()
        return self._head

    async def read(self) -> bytes:
        """Waits for more of the body; b"" at its end. Raises EngineLost."""
        while not self._chunks:
            if self._is_complete:
                return b""
            if self._cause:
                raise EngineLost(self._cause)
            await self._wait()
        data = b"".join(self._chunks)
        self._chunks.clear()
        self._size = 0
        if self._is_paused and self._transport is not None and not self._transport.is_closing():
            self._is_paused = False
            self._transport.resume_reading()
        return data

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        self.waits_since = self._loop.time()
        try:
            await self._waiter
        finally:
            self._waiter = None
            self.waits_since = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._cause:
            return
        self.received_at = self._loop.time()
        if self._head is None:
            self._header_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.fail("protocol")
            return
        if self._head is None and self._header_bytes > _MOST_HEADER_BYTES:
            self.fail("protocol")
            return
        if self._size > _MOST_BUFFER_BYTES and not self._is_paused and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()
        if self._chunks or self._is_complete or self._head is not None:
            self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._head is not None and not self._is_complete and self._ends_with_connection():
            self._is_complete = True
        if not self._is_complete and not self._cause:
            self._cause = "died"
        self._wake()

    def _ends_with_connection(self) -> bool:
        names = ("content-length", "transfer-encoding")
        return not any(name in self._headers for name in names)

    # httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head is None:  # trailers are dropped
            self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._head = Head(self._parser.get_status_code(), self._headers)
        if not self._has_body and self._head.status >= 200:
            self._is_complete = True  # its length may be that of a body that does not follow

    def on_body(self, body: bytes) -> None:
        self._chunks.append(body)
        self._size += len(body)

    def on_message_complete(self) -> None:
        if self._head is not None and self._head.status >= 200:
            self._is_complete = True
        else:
            self._head = None  # an interim response
            self._headers = {}


async def connect(
    host: str,
    port: int,
    request: bytes,
    *,
    timeout_s: float,
    has_body: bool = True,
) -> EngineConnection:
    """Connects and sends a request, whose response may have a body. Raises EngineLost."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            transport, connection = await loop.create_connection(
                lambda: EngineConnection(loop, has_body=has_body), host, port
            )
    except (OSError, TimeoutError):
        raise EngineLost("unreachable") from None
    transport.get_extra_info("socket").setsockopt(
        socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES
    )
    transport.write(request)
    return connection


def make_request(
    method: str,
    path: str,
    host: str,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"host: {host}", "connection: close"]
    if body or method not in ("GET", "HEAD"):
        lines.append(f"content-length: {len(body)}")
    for name, value in (headers or {}).items():
        lines.append(f"{name}: {value}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


async def ask(
    host: str,
    port: int,
    request: bytes,
    *,
    timeout_s: float,
    most_bytes: int = 1024 * 1024,
) -> tuple[int, bytes]:
    """Sends a request and returns the status and the body of the response. Raises EngineLost."""
    connection: Any = None
    try:
        async with asyncio.timeout(timeout_s):
            connection = await connect(host, port, request, timeout_s=timeout_s)
            head = await connection.read_head()
            body = b""
            while data := await connection.read():
                body += data
                if len(body) > most_bytes:
                    raise EngineLost("protocol")
            return head.status, body
    except TimeoutError:
        raise EngineLost("silent") from None
    finally:
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.close()
