"""The route by which servers, or routers, learn of each other's rejections."""

import json
import time
from contextlib import closing

from starlette.requests import Request as HttpRequest

from holdfast.inference.errors import Refused
from holdfast.inference.server.http_protocol import ATTEMPT_HEADER, STARTED_AT
from holdfast.inference.server.rejections import Rejections
from holdfast.inference.server.request_body import ByteBudget, Reservation, read_body

_MOST_BYTES = 1024 * 1024
_READ_S = 5.0


async def exchange_reports(
    request: HttpRequest, rejections: Rejections, commit: str, budget: ByteBudget
) -> dict[str, object]:
    """Returns the report of this process, or learns the one in the body of a POST.

    Reports of another commit are ignored. Raises Refused if the proxy passed a client's request on:
    clients reject nothing.
    """
    if ATTEMPT_HEADER in request.headers:
        raise Refused(404, "Not Found")
    if request.method == "GET":
        return {"commit": commit, **rejections.report(time.monotonic())}
    with closing(Reservation(budget)) as reservation:
        body = await read_body(
            request,
            reservation,
            most_bytes=_MOST_BYTES,
            until_s=request.scope["state"][STARTED_AT] + _READ_S,
        )
    try:
        report = json.loads(body)
        if report["commit"] == commit:
            rejections.learn(report, time.monotonic())
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
        raise Refused(400, "this is no report of another server") from None
    return {}
