"""A request that is passed through: to one server, whose response is the client's."""

import asyncio
from collections.abc import Mapping
from typing import Any

from holdfast.inference.errors import Refused
from holdfast.inference.router.client import CARRIED_HEADER, LEAVING, Client, ClientGone
from holdfast.inference.router.engine_connection import (
    EngineConnection,
    EngineLost,
    Head,
    connect,
    make_request,
)
from holdfast.inference.router.events import SERVER_ERROR, encode, make_error
from holdfast.inference.router.metrics import Metrics
from holdfast.inference.router.servers import Losses, Server, ServerPool
from holdfast.inference.router.settings import RouterSettings
from holdfast.vocabulary.serving import STREAM_IDLE_S

_PAUSE_S = 0.1
_HOP_HEADERS = frozenset(("connection", "keep-alive", "transfer-encoding", "upgrade", "trailer"))


class PassedRequest:
    def __init__(
        self,
        method: str,
        path: str,
        body: bytes,
        *,
        client: Client,
        pool: ServerPool,
        metrics: Metrics,
        settings: RouterSettings,
        headers: Mapping[str, str],
        until_s: float,
        prefix_key: bytes = b"",
        obstacle: str = "",
    ) -> None:
        self._method = method
        self._path = path
        self._body = body
        self._client = client
        self._pool = pool
        self._metrics = metrics
        self._settings = settings
        self._headers = headers
        self._until_s = until_s
        self._prefix_key = prefix_key
        self._obstacle = obstacle
        self._avoid = set[Server]()
        self._connection: EngineConnection | None = None
        self._ending = ""
        self._task: asyncio.Task[Any] | None = None

    def end(self, cause: str) -> None:
        """Ends the request from outside, when this router leaves."""
        self._ending = self._ending or cause
        if self._connection is not None:
            self._connection.fail(cause)
        elif self._task is not None:
            self._task.cancel()  # it waits for a server

    async def run(self) -> None:
        """Passes the request on, again if a server is lost before the first byte of a response.

        A text is a function of its request, so it may be made twice. Raises Refused.
        """
        self._task = asyncio.current_task()
        try:
            await self._try_servers()
        except asyncio.CancelledError:
            if not self._ending or self._client.is_gone or self._task is None:
                raise
            self._task.uncancel()
            raise self._make_refusal() from None

    async def _try_servers(self) -> None:
        losses = Losses()
        while True:
            server = await self._pool.take(
                self._prefix_key,
                until_s=self._until_s,
                avoid=self._avoid,
            )
            try:
                await self._pass_to(server)
                return
            except EngineLost as loss:
                if self._client.has_started:
                    await self._end(loss)
                    return
                if self._ending:
                    raise self._make_refusal() from None
                if loss.cause != "unreachable":
                    losses.add(server, loss.cause)
                if loss.cause != "drained":
                    self._pool.suspect(server)
                self._avoid.add(server)
                is_late = asyncio.get_running_loop().time() > self._until_s
                if not losses.remaining or is_late:
                    message = f"the server was lost ({loss.cause})"
                    raise Refused(502, message, reason=losses.reason) from None
                await asyncio.sleep(_PAUSE_S)
            finally:
                self._pool.give_back(server)

    def _make_refusal(self) -> Refused:
        return Refused(503, LEAVING, retry_after_s=1.0, reason=self._ending)

    async def _pass_to(self, server: Server) -> None:
        address = server.address
        request = make_request(
            self._method,
            self._path,
            str(address),
            self._body,
            self._headers,
        )
        connection = await connect(
            address.host,
            address.port,
            request,
            timeout_s=self._settings.connect_s,
            has_body=self._method != "HEAD",
        )
        # It stays with a server that drains, and is not counted among those that move.
        server.connections.add(connection)
        connection.limit_s = float(STREAM_IDLE_S)
        connection.is_movable = False
        self._connection = connection
        try:
            await self._copy(connection)
        finally:
            self._connection = None
            server.connections.discard(connection)
            connection.close()

    async def _copy(self, connection: EngineConnection) -> None:
        head: Head = await connection.read_head()
        headers = [pair for pair in head.headers.items() if pair[0] not in _HOP_HEADERS]
        if self._obstacle:
            headers.append((CARRIED_HEADER, f"unmoved; {self._obstacle}"))
        await self._client.start(head.status, headers)
        while data := await connection.read():
            await self._client.write(data)
        await self._client.finish()

    async def _end(self, loss: EngineLost) -> None:
        """Ends a response that has begun: with an error event, or with a broken connection."""
        self._metrics.ended.labels(loss.cause).inc()
        if not self._client.is_event_stream:
            raise ClientGone from None
        message = LEAVING
        if not self._ending:
            message = f"the server was lost ({loss.cause}), and this stream cannot move"
        # An event may be incomplete; the empty line ends it.
        await self._client.finish(b"\n\n" + encode(make_error(message, SERVER_ERROR)))
