"""The routes of the server: Open Inference Protocol v2, probes and metrics.

It also makes the responses to refused requests, and marks those of a server that shuts down. It
holds no state of its own.
"""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.inference.errors import ItemFault, Refused, redact
from holdfast.inference.server import tensors
from holdfast.inference.server.batcher import Ticket
from holdfast.inference.server.drain import Drain, Phase
from holdfast.inference.server.http_protocol import (
    CONNECTION,
    STARTED_AT,
    Connection,
    Deadline,
    find_deadline,
)
from holdfast.inference.server.metrics import Metrics
from holdfast.inference.server.model_queue import ModelQueue
from holdfast.inference.server.rejection_reports import exchange_reports
from holdfast.inference.server.rejections import digest_items
from holdfast.inference.server.request_body import (
    ByteBudget,
    Reservation,
    declared_bytes,
    read_body,
)
from holdfast.inference.server.requests import Request, Values
from holdfast.inference.server.settings import ServerSettings
from holdfast.runtime import logs
from holdfast.vocabulary.serving import LIVE_PATH, READY_PATH, REJECTIONS_PATH

_BINARY = "inference-header-content-length"
"""The header of the protocol's extension for binary tensors: the length of the JSON before them."""
_INFER = "/infer"
_OFF_LOOP_BYTES = 256 * 1024
"""The size above which bodies are parsed in a thread, one at a time.

A parsed body has many times the size of its text, and parsing takes up to a second.
"""
# An Envoy that checks health removes this server with the first such response, not after its next
# check.
_EJECT_HEADER = "x-envoy-immediate-health-check-fail"
_EJECT = {_EJECT_HEADER: "true"}
LEAVING_HEADERS = (
    (b"connection", b"close"),
    (_EJECT_HEADER.encode(), b"true"),
)


class App:
    def __init__(
        self,
        settings: ServerSettings,
        drain: Drain,
        model: ModelQueue,
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._request_s = settings.request_s
        self._drain = drain
        self._model = model
        self._metrics = metrics
        self._budget = ByteBudget()
        self._parsing = ThreadPoolExecutor(1, thread_name_prefix="parser")

    def routes(self) -> list[Route]:
        model = "/v2/models/{model}"
        version = model + "/versions/{version:path}"  # the name of a commit has slashes
        routes = [
            Route(LIVE_PATH, self.live),
            Route(READY_PATH, self.ready),
            Route("/v2", self.server),
            Route("/metrics", self.scrape),
            Route(REJECTIONS_PATH, self.exchange_rejections, methods=["GET", "POST"]),
        ]
        # The first match wins: a version's path ends in anything, so its longer routes come first.
        for path in (version, model):
            routes.append(Route(path + "/ready", self.model_ready))
        for path in (version, model):
            routes.append(Route(path + _INFER, self.infer, methods=["POST"]))
        for path in (version, model):
            routes.append(Route(path, self.metadata))
        return routes

    def asgi(self) -> ASGIApp:
        handlers = {
            404: respond_no_route,
            405: respond_no_route,
            Refused: self._respond_refused,
            Exception: respond_bug,
        }
        routes = self.routes()
        predictions = [route for route in routes if route.endpoint == self.infer]
        app = Starlette(routes=routes, exception_handlers=handlers)

        async def handle(scope: Scope, receive: Receive, send: Send) -> None:
            is_prediction = scope["method"] == "POST" and scope["path"].endswith(_INFER)

            async def send_marked(message: Message) -> None:
                if message["type"] == "http.response.start":
                    if is_prediction:
                        self._count_response(scope, message)
                    # An open connection would stay with this pod after its endpoint is removed.
                    if self._drain.leaving:
                        message["headers"] = [*message["headers"], *LEAVING_HEADERS]
                await send(message)

            if is_prediction:
                self._drain.record_prediction(time.monotonic())
                if _matches_any(predictions, scope):
                    await self._handle_prediction(scope, receive, send_marked)
                    return
            await app(scope, receive, send_marked)

        return handle

    async def _handle_prediction(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles a prediction without Starlette's layers, which cost a third of a request."""
        request = HttpRequest(scope, receive)
        try:
            response = await self.infer(request)
        except Refused as error:
            response = await self._respond_refused(request, error)
        except Exception as error:
            response = await respond_bug(request, error)
            await response(scope, receive, send)
            raise
        await response(scope, receive, send)

    def _count_response(self, scope: Scope, message: Message) -> None:
        seconds = time.monotonic() - scope["state"][STARTED_AT]
        self._metrics.count_response(message["status"])
        self._metrics.request_seconds.observe(seconds)

    async def _respond_refused(self, _: HttpRequest, error: Exception) -> Response:
        assert isinstance(error, Refused)
        self._metrics.refused.labels(error.reason).inc()
        return make_refusal(error)

    async def live(self, _: HttpRequest) -> Response:
        """Responds with 200 even during a drain: the kubelet must not kill a draining server."""
        return make_json({"live": True})

    async def ready(self, _: HttpRequest) -> Response:
        """Responds 200 or 503; on a Spot notice only this removes the pod from its Service."""
        is_ready = self.is_ready()
        content = {
            "ready": is_ready,
            "phase": self._drain.phase.value,
            "model": self._model.hindered or "well",
        }
        return make_json(content, 200 if is_ready else 503)

    def is_ready(self) -> bool:
        return self._drain.phase is Phase.READY and not self._model.hindered

    async def server(self, _: HttpRequest) -> Response:
        return make_json({"name": "holdfast", "extensions": []})

    async def metadata(self, request: HttpRequest) -> Response:
        model = self.find_model(request)
        # The outputs are those of the warm-up.
        outputs = [] if model.sample is None else tensors.describe_outputs(model.sample)
        return make_json(
            {
                "name": self._settings.model,
                "versions": [model.commit],
                "platform": "holdfast",
                "inputs": model.describe_inputs(),
                "outputs": outputs,
            }
        )

    async def model_ready(self, request: HttpRequest) -> Response:
        self.find_model(request)
        return await self.ready(request)

    async def exchange_rejections(self, request: HttpRequest) -> Response:
        """Tells other servers which requests ended this model, and learns from them.

        A server that leaves only learns: its model may have been ended with the machine.
        """
        model = self._model
        if not model.loaded or (self._drain.leaving and request.method == "GET"):
            return make_json({})
        report = await exchange_reports(request, model.rejections, model.commit, self._budget)
        return make_json(report)

    async def infer(self, request: HttpRequest) -> Response:
        deadline = find_deadline(request, self._request_s)
        model = self.find_model(request)
        with closing(Reservation(self._budget)) as reservation:
            self.refuse_unread(
                request,
                reservation,
                model,
                deadline,
            )
            if _BINARY in request.headers:
                raise Refused(400, "binary tensors are not supported; send data as JSON")
            body = await read_body(
                request,
                reservation,
                most_bytes=self._settings.body_bytes,
                until_s=deadline.at_s,
            )
            infer_request = await self._parse(body)
            del body
            try:
                values = await self.predict(
                    request,
                    model,
                    infer_request.bodies,
                    deadline,
                )
            except ItemFault as error:
                await self._log_fault(error, infer_request.bodies)
                message = "the model rejects this input"
                name = redact(error.error_class)
                raise Refused(422, f"{message}: {name}; its text is in the server's log") from None
            commit = model.commit
            content = tensors.encode_response(
                values,
                model=self._settings.model,
                commit=commit,
                request=infer_request,
            )
            return make_json(content, headers={"x-model-commit": commit})

    async def _parse(self, body: bytes) -> tensors.InferRequest:
        parse = partial(tensors.parse, body, self._settings.batch_items)
        if len(body) > _OFF_LOOP_BYTES:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._parsing, parse)
        return parse()

    async def _digest(self, bodies: list[bytes]) -> str:
        if sum(map(len, bodies)) > _OFF_LOOP_BYTES:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._parsing, digest_items, bodies)
        return digest_items(bodies)

    async def _log_fault(self, error: ItemFault, bodies: Sequence[bytes]) -> None:
        """Logs an exception of the model, without content of the request or secrets."""
        # In a thread: each word of the text is searched for in the bodies.
        loop = asyncio.get_running_loop()
        text = await loop.run_in_executor(
            self._parsing,
            partial(redact, str(error), content=b"\n".join(bodies)),
        )
        name = redact(error.error_class)
        logs.warning("predictor", f"the model rejects an input: {name}: {text}")

    async def scrape(self, _: HttpRequest) -> Response:
        self._metrics.ready.set(self.is_ready())
        self._model.update_metrics()
        return Response(self._metrics.text(), media_type=CONTENT_TYPE_LATEST)

    def find_model(self, request: HttpRequest) -> ModelQueue:
        """Returns the model that the URL names. Raises Refused if it is not here."""
        name = request.path_params.get("model", self._settings.model)
        if name != self._settings.model:
            raise Refused(404, f"no model {name[:80]!r} here; there is {self._settings.model!r}")
        model = self._model
        if not model.loaded:
            raise Refused(
                503,
                "the model is not loaded",
                retry_after_s=1.0,
                reason="loading",
            )
        version = request.path_params.get("version")
        commit = model.commit
        if version is not None and version != commit:
            raise Refused(404, f"no version {version[:80]!r} of {name!r} here; there is {commit!r}")
        if not self._drain.serving:
            raise Refused(
                503,
                "this server is shutting down",
                retry_after_s=1.0,
                reason="leaving",
            )
        return model

    def refuse_unread(
        self,
        request: HttpRequest,
        reservation: Reservation,
        model: ModelQueue,
        deadline: Deadline,
    ) -> None:
        """Raises Refused, before the body is read, if not even a small request can be accepted.

        Under load a body is not worth reading. A server that shuts down reads it: it closes the
        connection, and a client that still writes would see a reset instead of the response.
        """
        length = declared_bytes(request)
        if self._drain.leaving or length is None or length > self._settings.body_bytes:
            return
        now = time.monotonic()
        ticket = Ticket(items=1, arrived_s=now, deadline_s=deadline.at_s)
        refused = model.refusal(ticket, now, deadline.tries)
        if refused:
            raise refused
        reservation.require(length)

    async def predict(
        self,
        http_request: HttpRequest,
        model: ModelQueue,
        bodies: list[bytes],
        deadline: Deadline,
    ) -> Values:
        """Queues a request and awaits its values.

        Raises Refused if the queue or the deadline refuses it, or if the client disconnects.
        Raises ItemFault if the model raises an exception for it.
        """
        digest = await self._digest(bodies)
        now = time.monotonic()
        request = Request(
            items=len(bodies),
            arrived_s=now,
            deadline_s=deadline.at_s,
            bodies=bodies,
            digest=digest,
            tries=deadline.tries,
        )
        refused = model.check(digest) or model.refusal(request, now, deadline.tries)
        if refused:
            raise refused
        model.add(request)
        connection: Connection = http_request.scope["state"][CONNECTION]
        connection.watch(partial(model.abandon, request))
        loop = asyncio.get_running_loop()
        timer = loop.call_at(deadline.at_s, model.expire, request)
        try:
            return await request.answer
        finally:
            timer.cancel()
            connection.watch(None)
            if request.answer.cancelled():
                model.discard(request)
            # Its error has a traceback with this frame: without this, the bodies would live until
            # the next garbage collection, outside of the budget.
            del request


def _matches_any(routes: Sequence[Route], scope: Scope) -> bool:
    """Returns whether a route takes the request, and adds its path parameters to the scope."""
    for route in routes:
        match, parameters = route.matches(scope)
        if match is Match.FULL:
            scope.update(parameters)
            return True
    return False


async def respond_no_route(request: HttpRequest, error: Exception) -> Response:
    """Responds to an unknown route or method."""
    assert isinstance(error, HTTPException)
    response = make_refusal(Refused(error.status_code, error.detail))
    response.headers.update(error.headers or {})
    return response


async def respond_bug(_: HttpRequest, __: Exception) -> Response:
    """Responds after a bug of the server, whose traceback is in the log."""
    return make_refusal(Refused(500, "internal error"))


def make_refusal(refused: Refused) -> Response:
    headers: dict[str, str] = {}
    if refused.retry_after_s is not None:
        headers["retry-after"] = str(refused.retry_after_s)
    # The unread rest of such a request cannot be distinguished from the next one.
    if refused.status in (408, 413):
        headers["connection"] = "close"
    if refused.reason in ("overdue", "restarting"):
        headers |= _EJECT
    return make_json(
        {"error": refused.message},
        refused.status,
        headers,
    )


def make_json(
    content: object,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> Response:
    return Response(
        json.dumps(content),
        status,
        headers,
        media_type="application/json",
    )
