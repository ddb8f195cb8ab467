"""The routes: Open Inference Protocol v2, and metrics; refusals, and what a leaving server adds to
an answer.

Edges only: state is elsewhere.
"""

import asyncio
import json
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.inference.errors import Refused
from holdfast.inference.server import tensors
from holdfast.inference.server.batcher import Ticket
from holdfast.inference.server.connection import BEGAN, Deadline, deadline
from holdfast.inference.server.drain import Drain, Phase
from holdfast.inference.server.lane import Lane, Request, Values
from holdfast.inference.server.metrics import Metrics
from holdfast.inference.server.reading import GONE, Budget, Held, declared_bytes, read_body
from holdfast.inference.server.settings import ServerSettings
from holdfast.vocabulary.serving import LIVE_PATH, READY_PATH

_BINARY = "inference-header-content-length"
"""The length of the JSON before binary tensors, of the protocol's extension."""
_INFER = "/infer"
_OFF_LOOP_BYTES = 256 * 1024
"""A larger body is parsed in a thread, one at a time: it becomes many times its text, and takes up
to a second.
"""
# An Envoy that checks health takes this server out with the first such answer, and not after its
# next check.
_OUT = {"x-envoy-immediate-health-check-fail": "true"}
_LEAVING = (
    (b"connection", b"close"),
    *((name.encode(), value.encode()) for name, value in _OUT.items()),
)


class App:
    def __init__(
        self,
        settings: ServerSettings,
        drain: Drain,
        lane: Lane,
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._drain = drain
        self._lane = lane
        self._metrics = metrics
        self._budget = Budget()
        self._parsing = ThreadPoolExecutor(1, thread_name_prefix="parser")

    def routes(self) -> list[Route]:
        model = "/v2/models/{model}"
        one = model + "/versions/{version:path}"  # a commit's name has slashes
        return [
            Route(LIVE_PATH, self.live),
            Route(READY_PATH, self.ready),
            Route("/v2", self.server),
            *(Route(at + "/ready", self.model_ready) for at in (one, model)),
            *(Route(at + _INFER, self.infer, methods=["POST"]) for at in (one, model)),
            *(Route(at, self.metadata) for at in (one, model)),
            Route("/metrics", self.scrape),
        ]

    def asgi(self) -> ASGIApp:
        handlers = {
            404: no_route,
            405: no_route,
            Refused: self._refused,
            Exception: failed,
        }
        app = Starlette(routes=self.routes(), exception_handlers=handlers)

        async def outer(scope: Scope, receive: Receive, send: Send) -> None:
            predicts = scope["method"] == "POST" and scope["path"].endswith(_INFER)

            async def marked(message: Message) -> None:
                if message["type"] == "http.response.start":
                    if predicts:
                        self._metrics.requests.labels(str(message["status"])).inc()
                        self._metrics.request_seconds.observe(
                            time.monotonic() - scope["state"][BEGAN]
                        )
                    # A connection that stays open would stay with this pod after its endpoint is
                    # removed.
                    if self._drain.leaving:
                        message["headers"] = [*message["headers"], *_LEAVING]
                await send(message)

            if predicts:
                self._drain.predicting(time.monotonic())
            await app(scope, receive, marked)

        return outer

    async def _refused(self, _: HttpRequest, error: Exception) -> Response:
        assert isinstance(error, Refused)
        self._metrics.refused.labels(error.reason).inc()
        return refusal(error)

    async def live(self, _: HttpRequest) -> Response:
        """200 for as long as this process can answer at all: a kubelet must not end a server that
        drains.
        """
        return json_response({"live": True})

    async def ready(self, _: HttpRequest) -> Response:
        """The only thing that takes a pod out of its Service when a Spot node goes."""
        ok = self.is_ready()
        state = {"phase": self._drain.phase.value, "model": self._lane.hindered or "well"}
        return json_response({"ready": ok, **state}, 200 if ok else 503)

    def is_ready(self) -> bool:
        return self._drain.phase is Phase.READY and not self._lane.hindered

    async def server(self, _: HttpRequest) -> Response:
        return json_response({"name": "holdfast", "extensions": []})

    async def metadata(self, request: HttpRequest) -> Response:
        lane = self.lane(request)
        # Any other input is an item of JSON; what comes back is as the model answered its warm-up.
        texts = {
            "name": "text",
            "datatype": "BYTES",
            "shape": [-1],
        }
        outputs = [] if lane.sample is None else tensors.outputs_like(lane.sample)
        found = {
            "name": self._settings.model,
            "versions": [lane.commit],
            "platform": "holdfast",
            "inputs": [texts],
        }
        return json_response(found | {"outputs": outputs})

    async def model_ready(self, request: HttpRequest) -> Response:
        self.lane(request)
        return await self.ready(request)

    async def infer(self, request: HttpRequest) -> Response:
        until = deadline(request, self._settings.request_s)
        lane = self.lane(request)
        with closing(Held(self._budget)) as held:
            self.refuse_unread(request, held, lane, until.at_s)
            if _BINARY in request.headers:
                raise Refused(400, "binary tensors are not supported; send data as JSON")
            body = await read_body(
                request,
                held,
                most_bytes=self._settings.body_bytes,
                until_s=until.at_s,
            )
            most = self._settings.batch_items
            parse = partial(tensors.parse, body, most)
            large = len(body) > _OFF_LOOP_BYTES
            if large:
                wanted = await asyncio.get_running_loop().run_in_executor(self._parsing, parse)
            else:
                wanted = parse()
            del body, parse
            values = await self.predicted(request, lane, wanted.bodies, until)
            commit = lane.commit
            content = tensors.answer(
                values,
                model=self._settings.model,
                commit=commit,
                request=wanted,
            )
            return json_response(content, headers={"x-model-commit": commit})

    async def scrape(self, _: HttpRequest) -> Response:
        self._metrics.ready.set(self.is_ready())
        return Response(self._metrics.text(), media_type=CONTENT_TYPE_LATEST)

    def lane(self, request: HttpRequest) -> Lane:
        """The model that the URL names."""
        name = request.path_params.get("model", self._settings.model)
        if name != self._settings.model:
            raise Refused(404, f"no model {name[:80]!r} here; there is {self._settings.model!r}")
        lane = self._lane
        if not lane.loaded:
            raise Refused(
                503,
                "the model is not loaded",
                retry_after_s=1.0,
                reason="loading",
            )
        wanted = request.path_params.get("version")
        there = lane.commit
        if wanted is not None and wanted != there:
            raise Refused(404, f"no version {wanted[:80]!r} of {name!r} here; there is {there!r}")
        if not self._drain.serving:
            raise Refused(
                503,
                "this server is shutting down",
                retry_after_s=1.0,
                reason="leaving",
            )
        return lane

    def refuse_unread(
        self,
        request: HttpRequest,
        held: Held,
        lane: Lane,
        until_s: float,
    ) -> None:
        """By its headers alone, where not even the smallest request could be let in: under load a
        body is not worth reading. A leaving server reads it: it closes the connection, and a client
        that still writes would see a reset in place of the answer.
        """
        length = declared_bytes(request)
        if self._drain.leaving or length is None or length > self._settings.body_bytes:
            return
        now = time.monotonic()
        refused = lane.refusal(Ticket(items=1, arrived_s=now, deadline_s=until_s), now)
        if refused:
            raise refused
        held.require(length)

    async def predicted(
        self,
        request: HttpRequest,
        lane: Lane,
        bodies: list[bytes],
        until: Deadline,
    ) -> Values:
        """Refused when the queue, the deadline or the model refuses, or when the client
        disconnects.
        """
        now = time.monotonic()
        wanted = Request(
            items=len(bodies),
            arrived_s=now,
            deadline_s=until.at_s,
            bodies=bodies,
            tries=until.tries,
        )
        refused = lane.refusal(wanted, now)
        if refused:
            raise refused
        lane.add(wanted)
        gone = asyncio.ensure_future(request.receive())
        try:
            async with asyncio.timeout_at(until.at_s):
                await asyncio.wait({wanted.answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            raise wanted.late(computing=not lane.discard(wanted)) from None
        finally:
            gone.cancel()
            if not wanted.answer.done():
                wanted.answer.cancel()
                lane.discard(wanted)
        if wanted.answer.cancelled():
            raise Refused(GONE, "the client disconnected")
        return wanted.answer.result()


async def no_route(request: HttpRequest, error: Exception) -> Response:
    """No such route, or no such method."""
    assert isinstance(error, HTTPException)
    response = refusal(Refused(error.status_code, error.detail))
    response.headers.update(error.headers or {})
    return response


async def failed(_: HttpRequest, __: Exception) -> Response:
    """A bug of the server, whose traceback is in the log."""
    return refusal(Refused(500, "internal error"))


def refusal(refused: Refused) -> Response:
    headers = {} if refused.retry_after_s is None else {"retry-after": str(refused.retry_after_s)}
    # What was read of a request that came too slowly cannot be distinguished from the next one.
    if refused.status in (408, 413):
        headers["connection"] = "close"
    if refused.reason in ("overdue", "restarting"):
        headers |= _OUT
    return json_response({"error": refused.message}, refused.status, headers)


def json_response(
    value: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(json.dumps(value), status, headers, media_type="application/json")
