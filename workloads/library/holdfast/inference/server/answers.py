"""Answers that are no prediction: refusals, and what a leaving server adds."""

import json
from collections.abc import Mapping

from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.inference.errors import Refused
from holdfast.inference.server.drain import Drain

# An Envoy that checks health takes this server out with the first such answer, and not after its next check.
_OUT = {"x-envoy-immediate-health-check-fail": "true"}
_LEAVING = ((b"connection", b"close"), *((name.encode(), value.encode()) for name, value in _OUT.items()))


async def no_route(request: HttpRequest, error: Exception) -> Response:
    """No such route, or no such method."""
    assert isinstance(error, HTTPException)
    response = refusal(Refused(error.status_code, error.detail))
    response.headers.update(error.headers or {})
    return response


def refusal(refused: Refused) -> Response:
    headers = {} if refused.retry_after_s is None else {"retry-after": str(refused.retry_after_s)}
    # What was read of a request that came too slowly cannot be distinguished from the next one.
    if refused.status in (408, 413):
        headers["connection"] = "close"
    if refused.reason in ("overdue", "restarting"):
        headers |= _OUT
    return json_response({"error": refused.message}, refused.status, headers)


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
