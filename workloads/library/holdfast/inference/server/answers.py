"""Answers that are no prediction: refusals in the words of the API that was asked, and what a leaving server adds."""

import json
import zlib
from collections.abc import Mapping

from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.inference.errors import Refused
from holdfast.inference.server import completions
from holdfast.inference.server.drain import Drain

PACKED_FROM_BYTES = 16 * 1024  # below, packing costs a client more time than it saves
# An Envoy that checks health takes this server out with the first such answer, and not after its next check.
_OUT = {"x-envoy-immediate-health-check-fail": "true"}
_LEAVING = ((b"connection", b"close"), *((name.encode(), value.encode()) for name, value in _OUT.items()))


async def no_route(request: HttpRequest, error: Exception) -> Response:
    """No such route, or no such method."""
    assert isinstance(error, HTTPException)
    response = refusal(Refused(error.status_code, error.detail), request)
    response.headers.update(error.headers or {})
    return response


def refusal(refused: Refused, request: HttpRequest) -> Response:
    """In the words of the API that was asked."""
    openai = request.url.path.startswith("/v1/")
    content = completions.problem(refused) if openai else {"error": refused.message}
    headers = {} if refused.retry_after_s is None else {"retry-after": str(refused.retry_after_s)}
    # What was read of a request that came too slowly cannot be distinguished from the next one.
    if refused.status in (408, 413):
        headers["connection"] = "close"
    if refused.reason in ("overdue", "restarting"):
        headers |= _OUT
    return json_response(content, refused.status, headers)


def closing_when_leaving(app: ASGIApp, drain: Drain) -> ASGIApp:
    """Each answer of a leaving server ends its connection: a kept one would stay with this pod whatever endpoints say."""

    async def outer(scope: Scope, receive: Receive, send: Send) -> None:
        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start" and drain.leaving:
                message["headers"] = [*message["headers"], *_LEAVING]
            await send(message)

        await app(scope, receive, marked)

    return outer


def json_response(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(json.dumps(value), status, headers, media_type="application/json")


def takes_gzip(accepted: str) -> bool:
    """By an Accept-Encoding header: named, or by *, and not with a quality of 0."""
    parts = (each.replace(" ", "").lower().partition(";") for each in accepted.split(","))
    named = {name: quality for name, _, quality in parts}
    quality = named.get("gzip", named.get("*", "q=0"))
    return not quality or bool(quality.strip("q=0."))


def pack(body: bytes) -> bytes:
    """At the level at which a network of a data centre gains by it."""
    packing = zlib.compressobj(1, wbits=zlib.MAX_WBITS | 16)
    return packing.compress(body) + packing.flush()
