"""The routes of the router: carried texts, requests that are passed on, probes, metrics."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Generator, Mapping
from contextlib import closing, contextmanager
from typing import TypeVar

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from holdfast.inference.errors import Refused
from holdfast.inference.router import generation
from holdfast.inference.router.carried_stream import CarriedStream
from holdfast.inference.router.client import Client, ClientGone
from holdfast.inference.router.events import make_error
from holdfast.inference.router.metrics import Metrics
from holdfast.inference.router.passed_request import PassedRequest
from holdfast.inference.router.prefixes import PrefixTraffic
from holdfast.inference.router.servers import DEATHS, ServerPool, State
from holdfast.inference.router.settings import RouterSettings
from holdfast.inference.server.app import LEAVING_HEADERS, make_json
from holdfast.inference.server.drain import Drain, Phase
from holdfast.inference.server.http_protocol import STARTED_AT, find_deadline
from holdfast.inference.server.rejection_reports import exchange_reports
from holdfast.inference.server.rejections import Rejections, digest_items
from holdfast.inference.server.request_body import (
    DISCONNECTED,
    ByteBudget,
    Reservation,
    declared_bytes,
    read_body,
)
from holdfast.runtime import logs
from holdfast.vocabulary.serving import LIVE_PATH, READY_PATH, REJECTIONS_PATH

T = TypeVar("T")

_API = "/v1/"
_METRICS = "/metrics"
_COMMIT = "router"
"""The version in reports of rejections, since routers do not know the version of the model."""
_BODY_S = 30.0
"""The maximum time for the body of a request."""
_DROPPED_HEADERS = frozenset(
    (
        "host",
        "connection",
        "content-length",
        "transfer-encoding",
        "keep-alive",
        "upgrade",
        "expect",
        "te",
        "trailer",
        "accept-encoding",
    )
)
"""Headers of a client that are not passed on: of its connection, or set by the router."""


class App:
    def __init__(
        self,
        settings: RouterSettings,
        drain: Drain,
        pool: ServerPool,
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._drain = drain
        self._pool = pool
        self._metrics = metrics
        self._prefixes = PrefixTraffic()
        self._budget = ByteBudget()
        self._rejections = Rejections()
        """Requests that lost several servers."""
        self._streams = set[CarriedStream | PassedRequest]()
        self._open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if not path.startswith(_API):
            response = await self._respond(path, HttpRequest(scope, receive))
            self._mark(response)
            await response(scope, receive, send)
            return
        self._drain.record_prediction(time.monotonic())
        status = 0

        async def send_marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if self._drain.leaving:
                    message["headers"] = [*message["headers"], *LEAVING_HEADERS]
            await send(message)

        client = Client(scope, receive, send_marked)
        try:
            await self._handle(client, HttpRequest(scope, receive))
        except Refused as refused:
            if not client.has_started:  # otherwise it has its error event
                self._metrics.refused.labels(refused.reason).inc()
                if refused.status != DISCONNECTED:
                    await make_refusal(refused)(scope, receive, send_marked)
        except ClientGone:
            # The response is not ended, so the connection is closed, which a client notices.
            status = status or DISCONNECTED
        except Exception as error:
            logs.error("router", "a request ended with a bug", cause=error)
            if status:
                raise
            await make_refusal(Refused(500, "internal error"))(scope, receive, send_marked)
        finally:
            self._metrics.requests.labels(str(status or DISCONNECTED)).inc()

    def end_streams(self) -> None:
        """Ends all open streams, each with an error event, because the process is about to exit."""
        for stream in list(self._streams):
            stream.end("leaving")

    def is_ready(self) -> bool:
        return self._drain.phase is Phase.READY

    async def _respond(self, path: str, request: HttpRequest) -> Response:
        """Responds to probes, scrapes and other routers.

        A router without ready servers is ready: it holds requests until a server is.
        """
        if path == LIVE_PATH:
            return make_json({"live": True})
        if path == READY_PATH:
            is_ready = self.is_ready()
            content = {
                "ready": is_ready,
                "phase": self._drain.phase.value,
                "servers": len(self._pool.ready()),
            }
            return make_json(content, 200 if is_ready else 503)
        if path == _METRICS:
            return self._scrape()
        if path == REJECTIONS_PATH:
            return await self._exchange_rejections(request)
        return make_refusal(Refused(404, "no such path"))

    async def _exchange_rejections(self, request: HttpRequest) -> Response:
        try:
            report = await exchange_reports(request, self._rejections, _COMMIT, self._budget)
        except Refused as refused:
            return make_refusal(refused)
        return make_json(report)

    def _scrape(self) -> Response:
        counts = Counter(server.state for server in self._pool.all())
        for state in State:
            self._metrics.servers.labels(state.value).set(counts[state])
        self._metrics.ready.set(self.is_ready())
        return Response(self._metrics.text(), media_type=CONTENT_TYPE_LATEST)

    def _mark(self, response: Response) -> None:
        if self._drain.leaving:
            response.raw_headers.extend(LEAVING_HEADERS)

    async def _handle(self, client: Client, request: HttpRequest) -> None:
        if not self._drain.serving:
            raise Refused(
                503,
                "this router is shutting down",
                retry_after_s=1.0,
                reason="leaving",
            )
        if self._open >= self._settings.streams:
            # The body is not read, so the connection cannot be used again.
            raise Refused(
                429,
                "this router has as many requests as it can hold",
                retry_after_s=1.0,
                reason="streams",
            )
        self._open += 1
        self._metrics.streams.inc()
        try:
            with closing(Reservation(self._budget)) as reservation:
                await self._route(client, request, reservation)
        finally:
            self._open -= 1
            self._metrics.streams.dec()

    async def _route(self, client: Client, request: HttpRequest, reservation: Reservation) -> None:
        length = declared_bytes(request)
        if length is not None and length <= self._settings.body_bytes:
            reservation.require(length)
        body = await read_body(
            request,
            reservation,
            most_bytes=self._settings.body_bytes,
            until_s=request.scope["state"][STARTED_AT] + _BODY_S,
        )
        path: str = request.scope["path"]
        headers = forward_headers(request)
        is_chat = path == generation.CHAT_PATH
        prefix_key = b""
        obstacle = ""
        hold_s = self._settings.silent_hold_s
        if request.method == "POST" and path in (generation.CHAT_PATH, generation.COMPLETIONS_PATH):
            text_request = generation.parse(body, is_chat=is_chat)
            obstacle = text_request.obstacle
            servers = len(self._pool.ready())
            prefix_key = self._prefixes.find_key(text_request.beginnings, servers)
            if not obstacle:
                if text_request.is_streamed:
                    hold_s = self._settings.hold_s
                stream = CarriedStream(
                    text_request,
                    prefix_key=prefix_key,
                    client=client,
                    pool=self._pool,
                    metrics=self._metrics,
                    settings=self._settings,
                    headers=headers,
                    until_s=find_deadline(request, hold_s).at_s,
                )
                with self._remember(path, body):
                    await self._carry(client, stream)
                return
            self._metrics.count_unmoved(obstacle)
        target = find_target(request)
        passed = PassedRequest(
            request.method,
            target,
            body,
            client=client,
            pool=self._pool,
            metrics=self._metrics,
            settings=self._settings,
            headers=headers,
            until_s=find_deadline(request, hold_s).at_s,
            prefix_key=prefix_key,
            obstacle=obstacle,
        )
        self._streams.add(passed)
        try:
            with self._remember(target, body):
                await _run_watched(client, passed.run())
        finally:
            self._streams.discard(passed)

    @contextmanager
    def _remember(self, path: str, body: bytes) -> Generator[None]:
        """Rejects a request that lost several servers before, and remembers one that does so.

        Raises Refused with 422.
        """
        digest = digest_items([path.encode(), body])
        if self._rejections.find(digest, time.monotonic()):
            raise Refused(422, "this request ended several servers", reason="rejected")
        try:
            yield
        except Refused as refused:
            is_cause = refused.status == 502 and refused.reason in DEATHS
            if is_cause and not self._rejections.is_answered(digest):
                logs.warning("router", f"a request is rejected from now on: {refused.message}")
                self._rejections.reject(digest, time.monotonic())
            raise
        self._rejections.note_answer(digest)

    async def _carry(self, client: Client, stream: CarriedStream) -> None:
        self._streams.add(stream)
        try:
            response = await _run_watched(client, stream.run())
        finally:
            self._streams.discard(stream)
        if response is not None:
            headers = [
                ("content-type", response.content_type),
                ("content-length", str(len(response.body))),
            ]
            await client.start(response.status, headers)
            await client.finish(response.body)


async def _run_watched(client: Client, work: Awaitable[T]) -> T:
    """Awaits `work`; ends it if the client disconnects. Raises ClientGone."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(client.watch(task.cancel))
    try:
        return await task
    except asyncio.CancelledError:
        if client.is_gone:
            raise ClientGone from None
        raise
    finally:
        watch.cancel()
        if not task.done():
            task.cancel()


def forward_headers(request: HttpRequest) -> Mapping[str, str]:
    headers: dict[str, str] = {}
    for name, value in request.headers.items():
        if name not in _DROPPED_HEADERS and not name.startswith("x-envoy-"):
            headers[name] = value
    return headers


def find_target(request: HttpRequest) -> str:
    """Returns path and query as the client has encoded them."""
    target: bytes = request.scope["raw_path"]
    if request.scope["query_string"]:
        target += b"?" + request.scope["query_string"]
    return target.decode("latin-1")


def make_refusal(refused: Refused) -> Response:
    """Makes the response to a refused request, with the error object of the OpenAI protocol."""
    headers: dict[str, str] = {}
    if refused.retry_after_s is not None:
        headers["retry-after"] = str(refused.retry_after_s)
    if refused.status in (408, 413, 429):
        headers["connection"] = "close"
    return make_json(make_error(refused.message, refused.status), refused.status, headers)
