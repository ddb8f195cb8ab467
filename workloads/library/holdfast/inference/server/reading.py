"""What comes with a request: its body within limits of size and time, and its deadline."""

import asyncio

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest

from holdfast.inference.server.connection import BEGAN
from holdfast.inference.server.errors import Refused

DEADLINE_HEADERS = ("x-request-timeout-ms", "x-envoy-expected-rq-timeout-ms")
"""Milliseconds that the client, or the proxy before us, still waits."""
GONE = 499
"""The client is: nobody reads this code but our metrics."""


def began_at(request: HttpRequest) -> float:
    return request.scope["state"][BEGAN]


def deadline(request: HttpRequest, longest_s: float) -> float:
    """On the loop's clock: the server's longest request, or sooner where the caller says so."""
    seconds = longest_s
    for name in DEADLINE_HEADERS:
        if text := request.headers.get(name):
            if not text.isascii() or not text.isdecimal() or len(text) > 9 or not int(text):
                raise Refused(400, f"{name} must be a whole number of milliseconds above 0")
            seconds = min(seconds, int(text) / 1000)
    return began_at(request) + seconds


def declared_bytes(request: HttpRequest) -> int | None:
    """None where the headers do not say how long the body is."""
    declared = request.headers.get("content-length", "")
    return int(declared) if declared.isascii() and declared.isdecimal() else None


async def read_body(request: HttpRequest, *, most_bytes: int, until_s: float) -> bytes:
    """Refused with 413, 408 or 400; with 499 when the client goes away."""
    declared = declared_bytes(request)
    # An answer before the last byte would be a reset for a client that only writes: the rest is read, and forgotten.
    keep = declared is None or declared <= most_bytes
    if not keep and request.headers.get("expect", "").lower() == "100-continue":
        raise _too_large(most_bytes)
    try:
        async with asyncio.timeout_at(until_s):
            body, size = await _read(request, most_bytes if keep else 0)
    except TimeoutError:
        raise Refused(408, "the body did not arrive in time") from None
    except ClientDisconnect:
        raise Refused(GONE, "the client disconnected") from None
    if size > most_bytes or not keep:
        raise _too_large(most_bytes)
    return body


async def _read(request: HttpRequest, keep_bytes: int) -> tuple[bytes, int]:
    chunks, size = list[bytes](), 0
    async for chunk in request.stream():
        size += len(chunk)
        if size <= keep_bytes:
            chunks.append(chunk)
        else:
            chunks.clear()
    return b"".join(chunks), size


def _too_large(most_bytes: int) -> Refused:
    return Refused(413, f"the maximum body size is {most_bytes} bytes")
