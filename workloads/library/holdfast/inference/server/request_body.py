"""Request bodies, read within one budget of bytes for all requests of the server."""

import asyncio
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest

from holdfast.inference.errors import Refused
from holdfast.inference.server.http_protocol import CONNECTION, Connection

DISCONNECTED = 499
"""The code of a client that has disconnected, which only our metrics see."""
_MOST_BYTES = 64 * 1024 * 1024
_SMALL_BYTES = 64 * 1024
_FOR_SMALL_BYTES = _MOST_BYTES // 8
"""The part of the budget for small bodies, so that a few large ones do not use all of it."""


@dataclass
class ByteBudget:
    """The budget of all requests that are read or wait for their response."""

    free_bytes: int = _MOST_BYTES


@dataclass
class Reservation:
    """The part of the budget that one request has until it is closed."""

    budget: ByteBudget
    size: int = 0

    def require(self, count: int) -> None:
        """Raises Refused with 429 if the budget has no room for `count` more bytes."""
        is_small = self.size + count <= _SMALL_BYTES
        reserved = 0 if is_small else _FOR_SMALL_BYTES
        if count > self.budget.free_bytes - reserved:
            raise Refused(
                429,
                "the requests that are read and wait are too large together",
                retry_after_s=1.0,
                reason="bytes",
            )

    def take(self, count: int) -> None:
        self.require(count)
        self.budget.free_bytes -= count
        self.size += count

    def close(self) -> None:
        self.budget.free_bytes += self.size
        self.size = 0


def declared_bytes(request: HttpRequest) -> int | None:
    """Returns the length of the body by its header; None if that is missing or invalid."""
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdecimal():
        return int(length)
    return None


async def read_body(
    request: HttpRequest,
    reservation: Reservation,
    *,
    most_bytes: int,
    until_s: float,
) -> bytes:
    """Reads a body. Raises Refused with 408, 413, 415, 429, or 499 if the client disconnects."""
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refused(415, "a compressed body is not supported; send it without content-encoding")
    length = declared_bytes(request)
    # A response before the last byte would be a reset for a client that only writes, so the rest is
    # read and dropped.
    fits = length is None or length <= most_bytes
    if not fits and request.headers.get("expect", "").lower() == "100-continue":
        raise _too_large(most_bytes)
    try:
        async with _limit_time(request, until_s):
            body, size = await _receive(
                request,
                reservation,
                most_bytes if fits else 0,
            )
    except TimeoutError:
        raise Refused(408, "the body did not arrive in time") from None
    except ClientDisconnect:
        raise Refused(DISCONNECTED, "the client disconnected") from None
    if size > most_bytes or not fits:
        raise _too_large(most_bytes)
    return body


def _limit_time(request: HttpRequest, until_s: float) -> AbstractAsyncContextManager[object]:
    """Returns the timeout of a body; none if all of it has arrived, which needs no timer."""
    connection: Connection = request.scope["state"][CONNECTION]
    return asyncio.timeout_at(until_s) if connection.is_receiving else nullcontext()


async def _receive(
    request: HttpRequest,
    reservation: Reservation,
    keep_bytes: int,
) -> tuple[bytes, int]:
    """Returns the body and its size; the body is empty if it is longer than `keep_bytes`."""
    body = bytearray()
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size <= keep_bytes:
            reservation.take(len(chunk))
            body += chunk
        elif body:
            reservation.close()
            body.clear()
    return bytes(body), size


def _too_large(most_bytes: int) -> Refused:
    return Refused(413, f"the maximum body size is {most_bytes} bytes")
