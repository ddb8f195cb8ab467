"""The routes: Open Inference Protocol v2, completions of text, Triton's route to load a model, metrics.

Edges only: state is elsewhere.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from holdfast.contract.serving import LIVE_PATH, READY_PATH
from holdfast.inference.errors import Refused
from holdfast.inference.server import completions, tensors
from holdfast.inference.server.answers import (
    PACKED_FROM_BYTES,
    closing_when_leaving,
    json_response,
    no_route,
    pack,
    refusal,
    takes_gzip,
)
from holdfast.inference.server.batcher import Ticket
from holdfast.inference.server.binary import LENGTH_HEADER
from holdfast.inference.server.completions import Piece
from holdfast.inference.server.connection import Deadline, began_at, deadline
from holdfast.inference.server.drain import Drain, Phase
from holdfast.inference.server.lane import Lane, Request, Values
from holdfast.inference.server.metrics import Metrics
from holdfast.inference.server.models import Models, commit_of
from holdfast.inference.server.reading import GONE, Budget, Held, Parser, declared_bytes, read_body
from holdfast.inference.server.settings import ServerSettings

Handler = Callable[[HttpRequest], Awaitable[Response]]
_ADMIN_BODY_BYTES = 64 * 1024
_HELD = "holdfast.held"
_LOAD = "/v2/repository/models/{model}/load"


class App:
    def __init__(self, settings: ServerSettings, drain: Drain, models: Models, metrics: Metrics) -> None:
        self._settings, self._drain, self._models, self._metrics = settings, drain, models, metrics
        self._budget, self._parser = Budget(settings.limits.queue_bytes), Parser()

    def routes(self) -> list[Route]:
        model = "/v2/models/{model}"
        one = model + "/versions/{version:path}"  # a commit's name has slashes
        return [
            Route(LIVE_PATH, self.live),
            Route(READY_PATH, self.ready),
            Route("/v2", self.server),
            *(Route(at + "/ready", self.refusing(self.model_ready)) for at in (one, model)),
            *(Route(at + "/infer", self.counted(self.infer), methods=["POST"]) for at in (one, model)),
            *(Route(at, self.refusing(self.metadata)) for at in (one, model)),
            *([Route(_LOAD, self.refusing(self.load), methods=["POST"])] if self._settings.management_port else []),
            Route("/v1/models", self.refusing(self.models)),
            Route("/v1/completions", self.counted(self.complete), methods=["POST"]),
            Route("/metrics", self.scrape),
        ]

    def asgi(self) -> ASGIApp:
        handlers = dict.fromkeys((404, 405), no_route) | {Exception: self._failed}
        return closing_when_leaving(Starlette(routes=self.routes(), exception_handlers=handlers), self._drain)

    async def _failed(self, request: HttpRequest, _: Exception) -> Response:
        """A bug of the server, whose traceback is in the log."""
        if request.method == "POST":
            self._count(request, 500)
        return refusal(Refused(500, "internal error"), request)

    async def live(self, _: HttpRequest) -> Response:
        """200 for as long as this process can answer at all: a kubelet must not end a server that drains."""
        return json_response({"live": True})

    async def ready(self, _: HttpRequest) -> Response:
        """The only thing that takes a pod out of its Service when a Spot node goes."""
        ok = self.is_ready()
        lane = self._models.current
        state = {"phase": self._drain.phase.value, "model": (lane and lane.hindered) or "well"}
        return json_response({"ready": ok, **state}, 200 if ok else 503)

    def is_ready(self) -> bool:
        lane = self._models.current
        return self._drain.phase is Phase.READY and not (lane and lane.hindered)

    async def server(self, _: HttpRequest) -> Response:
        return json_response({"name": "holdfast", "extensions": ["binary_tensor_data"]})

    async def metadata(self, request: HttpRequest) -> Response:
        lane = self.lane(request)
        commit = commit_of(lane.configuration)
        # Any other input is an item of JSON; what comes back is as the model answered its warm-up.
        texts = {"name": "text", "datatype": "BYTES", "shape": [-1]}
        outputs = [] if lane.sample is None else tensors.outputs_like(lane.sample)
        found = {"name": self._settings.model, "versions": [commit], "platform": "holdfast", "inputs": [texts]}
        return json_response(found | {"outputs": outputs})

    async def model_ready(self, request: HttpRequest) -> Response:
        self.lane(request)
        return await self.ready(request)

    async def infer(self, request: HttpRequest) -> Response:
        until = deadline(request, self._settings.request_s)
        lane = self.lane(request)
        self.refuse_unread(request, lane, until.at_s)
        body = await self.body(request, until)
        most, length = self._settings.limits.batch_items, request.headers.get(LENGTH_HEADER)
        asked = await self._parser.parsed(lambda given: tensors.parse(given, most, length), body)
        del body
        values = await self.predicted(request, lane, asked.bodies, until)
        commit = commit_of(lane.configuration)
        content, json_bytes = tensors.answer(values, model=self._settings.model, commit=commit, request=asked)
        headers = {"x-model-commit": commit}
        if json_bytes is None:
            return await self.packed(request, Response(content, media_type="application/json", headers=headers))
        headers[LENGTH_HEADER] = str(json_bytes)
        return await self.packed(request, Response(content, media_type="application/octet-stream", headers=headers))

    async def models(self, request: HttpRequest) -> Response:
        return json_response(completions.models(self._settings.model, commit_of(self.lane(request).configuration)))

    async def complete(self, request: HttpRequest) -> Response:
        """The first piece before the first byte: until then a refusal has its own status."""
        # The proxy's header holds the whole time of a text: no other server has any after it.
        until = Deadline(deadline(request, self._settings.request_s).at_s)
        wanted = await self._parser.parsed(completions.parse, await self.body(request, until))
        lane = self.lane(request, wanted.model)
        if not lane.configuration.get(completions.COMPLETES):
            raise Refused(400, f"{wanted.model} does not complete text; use /v2/models/{wanted.model}/infer")
        pieces = self.pieces(request, lane, wanted, until)
        first = await anext(pieces)
        headers = {"x-model-commit": commit_of(lane.configuration)}
        write = completions.writer(request.headers.get("x-request-id", ""), wanted.model)
        if wanted.usage and completions.usage([first]) is None:
            await pieces.aclose()
            raise Refused(400, f"{wanted.model} does not count tokens, so include_usage is not supported")
        if wanted.stream:
            return completions.EventStream(first, pieces, write, headers, counted=wanted.usage)
        content = await completions.whole(first, pieces, write)
        return await self.packed(request, json_response(content, 200, headers))

    async def packed(self, request: HttpRequest, response: Response) -> Response:
        """Compressed where it is large and the client takes gzip, in a thread."""
        body = bytes(response.body)
        if len(body) >= PACKED_FROM_BYTES:
            response.headers["vary"] = "accept-encoding"
            if takes_gzip(request.headers.get("accept-encoding", "")):
                response.body = await self._parser.parsed(pack, body)
                response.headers.update({"content-encoding": "gzip", "content-length": str(len(response.body))})
        return response

    async def pieces(
        self, request: HttpRequest, lane: Lane, wanted: completions.Wanted, until: Deadline
    ) -> AsyncGenerator[Piece]:
        text = ""
        with lane.held():
            for _ in range(completions.MAX_PIECES):
                item = wanted.item(text)
                # Admitted once: a stream that is refused in its middle has cost more than its rest.
                [value] = await self.predicted(request, lane, [item], until, admitted=bool(text))
                yield (piece := Piece.of(value))
                if piece.finish_reason:
                    return
                text += piece.text
        raise Refused(500, "the model does not finish")

    async def load(self, request: HttpRequest) -> Response:
        """Triton's route; `parameters.step` names a commit other than the newest. Not for clients, whom a proxy lets
        reach every path of the other port."""
        if request.scope["server"][1] != self._settings.management_port:
            raise Refused(404, "this port loads no model; the management port does")
        self.lane(request)
        until_s = deadline(request, self._settings.request_s).at_s
        with self._budget.holding() as held:
            body = await read_body(request, held, most_bytes=_ADMIN_BODY_BYTES, until_s=until_s)
        parameters = tensors.json_object(body or b"{}").get("parameters", {})
        step = parameters.get("step") if isinstance(parameters, dict) else None
        if step is not None and (type(step) is not int or step < 0):
            raise Refused(400, "parameters.step must be a whole number")
        outcome = await self._models.swap(step)
        return json_response({"outcome": outcome, "model_version": commit_of(self.lane(request).configuration)})

    async def scrape(self, _: HttpRequest) -> Response:
        self._metrics.ready.set(self.is_ready())
        return Response(self._metrics.text(), media_type=CONTENT_TYPE_LATEST)

    def lane(self, request: HttpRequest, named: str = "") -> Lane:
        """The model that the URL or the body names, as of now: a request stays with it to its end."""
        name = named or request.path_params.get("model", self._settings.model)
        if name != self._settings.model:
            raise Refused(404, f"no model {name[:80]!r} here; there is {self._settings.model!r}")
        lane = self._models.current
        if lane is None:
            raise Refused(503, "the model is being loaded", retry_after_s=1.0, reason="loading")
        wanted, there = request.path_params.get("version"), commit_of(lane.configuration)
        if wanted is not None and wanted != there:
            raise Refused(404, f"no version {wanted[:80]!r} of {name!r} here; there is {there!r}")
        if not self._drain.serving:
            raise Refused(503, "this server is shutting down", retry_after_s=1.0, reason="leaving")
        return lane

    def refuse_unread(self, request: HttpRequest, lane: Lane, until_s: float) -> None:
        """By its headers alone, where not even the smallest request could be let in: under load a body is not worth
        reading. A leaving server reads it: it closes the connection, and a client that still writes would see a reset
        in place of the answer."""
        length = declared_bytes(request)
        if self._drain.leaving or length is None or length > self._settings.body_bytes:
            return
        now = time.monotonic()
        if refused := lane.refusal(Ticket(items=1, arrived_s=now, deadline_s=until_s), now):
            raise refused
        self.held(request).require(length)

    async def body(self, request: HttpRequest, until: Deadline) -> bytes:
        return await read_body(request, self.held(request), most_bytes=self._settings.body_bytes, until_s=until.at_s)

    @staticmethod
    def held(request: HttpRequest) -> Held:
        return request.scope["state"][_HELD]

    async def predicted(
        self, request: HttpRequest, lane: Lane, bodies: list[bytes], until: Deadline, *, admitted: bool = False
    ) -> Values:
        """Refused when the queue, the deadline or the model refuses, or when the client is gone."""
        now = time.monotonic()
        wanted = Request(items=len(bodies), arrived_s=now, deadline_s=until.at_s, bodies=bodies, tries=until.tries)
        if not admitted and (refused := lane.refusal(wanted, now)):
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

    def counted(self, handler: Handler) -> Handler:
        """A route that predicts: it keeps a drain from being quiet, and its answers are counted."""
        inner = self.refusing(handler)

        async def handle(request: HttpRequest) -> Response:
            self._drain.asked(time.monotonic())
            with contextlib.ExitStack() as until_answered:
                request.scope["state"][_HELD] = until_answered.enter_context(self._budget.holding())
                response = await inner(request)
                if isinstance(response, completions.EventStream):
                    response.ended = lambda code: self._count(request, code)
                    response.holding = until_answered.pop_all()
                else:
                    self._count(request, response.status_code)
            return response

        return handle

    def _count(self, request: HttpRequest, code: int) -> None:
        self._metrics.requests.labels(str(code)).inc()
        self._metrics.request_seconds.observe(time.monotonic() - began_at(request))

    def refusing(self, handler: Handler) -> Handler:
        async def handle(request: HttpRequest) -> Response:
            try:
                return await handler(request)
            except Refused as refused:
                self._metrics.refused.labels(refused.reason).inc()
                return refusal(refused, request)

        return handle
