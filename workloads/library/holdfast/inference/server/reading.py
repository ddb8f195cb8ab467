"""Bodies: read within one budget of bytes, from the first one to the answer."""

import asyncio
from dataclasses import dataclass

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest

from holdfast.inference.errors import Refused

GONE = 499
"""The client has disconnected: only our metrics read this code."""
_MOST_BYTES = 64 * 1024 * 1024
_SMALL_BYTES = 64 * 1024
_FOR_SMALL_BYTES = _MOST_BYTES // 8
"""For bodies that are small: a few large ones do not shut out all others."""


@dataclass
class Budget:
    """Of all requests that are read or wait for their answer."""

    left: int = _MOST_BYTES


@dataclass
class Held:
    """The part of one request, which it has until it is closed."""

    budget: Budget
    size: int = 0

    def require(self, more: int) -> None:
        """Refused with 429 where there is no room for as much."""
        kept = 0 if self.size + more <= _SMALL_BYTES else _FOR_SMALL_BYTES
        if more > self.budget.left - kept:
            reason = "the requests that are read and wait are too large together"
            raise Refused(429, reason, retry_after_s=1.0, reason="bytes")

    def take(self, more: int) -> None:
        self.require(more)
        self.budget.left -= more
        self.size += more

    def close(self) -> None:
        self.budget.left += self.size
        self.size = 0


def declared_bytes(request: HttpRequest) -> int | None:
    """None where the headers do not say how long the body is."""
    declared = request.headers.get("content-length", "")
    return int(declared) if declared.isascii() and declared.isdecimal() else None


async def read_body(
    request: HttpRequest,
    held: Held,
    *,
    most_bytes: int,
    until_s: float,
) -> bytes:
    """Refused with 413, 408, 415 or 429; with 499 when the client goes away."""
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refused(415, "a compressed body is not supported; send it without content-encoding")
    declared = declared_bytes(request)
    # An answer before the last byte would be a reset for a client that only writes: the rest is
    # read, and forgotten.
    keep = declared is None or declared <= most_bytes
    if not keep and request.headers.get("expect", "").lower() == "100-continue":
        raise _too_large(most_bytes)
    try:
        async with asyncio.timeout_at(until_s):
            body, size = await _read(request, held, most_bytes if keep else 0)
    except TimeoutError:
        raise Refused(408, "the body did not arrive in time") from None
    except ClientDisconnect:
        raise Refused(GONE, "the client disconnected") from None
    if size > most_bytes or not keep:
        raise _too_large(most_bytes)
    return body


async def _read(request: HttpRequest, held: Held, keep_bytes: int) -> tuple[bytes, int]:
    body = bytearray()
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size <= keep_bytes:
            held.take(len(chunk))
            body += chunk
        elif body:
            held.close()
            body.clear()
    return bytes(body), size


def _too_large(most_bytes: int) -> Refused:
    return Refused(413, f"the maximum body size is {most_bytes} bytes")
