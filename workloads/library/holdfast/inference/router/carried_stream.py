"""A carried request: one text for its client, from as many servers as it takes."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from holdfast.inference.errors import Refused
from holdfast.inference.router.client import (
    CARRIED_HEADER,
    LEAVING,
    WAITING,
    Client,
    ClientGone,
)
from holdfast.inference.router.detokenizer import (
    NO_PATH,
    Texts,
    count_parts,
    detokenize,
    split_piece,
)
from holdfast.inference.router.engine_connection import (
    EngineConnection,
    EngineLost,
    connect,
    make_request,
)
from holdfast.inference.router.events import (
    DONE,
    SERVER_ERROR,
    EventReader,
    MalformedEvent,
    Piece,
    decode,
    encode,
    encode_comment,
    make_error,
    read_piece,
)
from holdfast.inference.router.generation import COMPLETIONS_PATH, Generation
from holdfast.inference.router.metrics import Metrics
from holdfast.inference.router.servers import Losses, Server, ServerPool
from holdfast.inference.router.settings import RouterSettings
from holdfast.inference.router.transcript import Differs, Transcript
from holdfast.support.errors import HoldfastError

_MOST_SEAMS = 64
_PAUSE_S = 0.1
_CONTEXT_TOKENS = 8
_LAST_EVENTS_S = 1.0
_SEED_HEADER = "x-seed-scope"
"""A server sends it with the value `position` if a seed and a position give one random number."""
_ABORTED = "abort"
"""The finish reason of a server that gives up a request, such as at the end of its drain."""
_SURPLUS_BYTES = 8
_TOKEN_BYTES = 4
_REASON_CHARS = 1000
"""The part of a server's refusal that the client of a stream gets."""
EVENT_STREAM = "text/event-stream; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Response:
    """A server's response to pass to the client as it is, because it is not generated text."""

    status: int
    content_type: str
    body: bytes


class StreamEnded(HoldfastError):
    """A stream cannot go on; the client gets an error event."""

    def __init__(self, cause: str, message: str) -> None:
        self.cause = cause
        self.message = message
        super().__init__(message)


class CarriedStream:
    def __init__(
        self,
        generation: Generation,
        *,
        prefix_key: bytes,
        client: Client,
        pool: ServerPool,
        metrics: Metrics,
        settings: RouterSettings,
        headers: Mapping[str, str],
        until_s: float,
    ) -> None:
        self._generation = generation
        self._prefix_key = prefix_key
        self._client = client
        self._pool = pool
        self._metrics = metrics
        self._settings = settings
        self._headers = headers
        self._hold_s = settings.silent_hold_s
        if generation.is_streamed:
            self._hold_s = settings.hold_s
        self._until_s = until_s
        """The deadline for the first server."""
        self._loop = asyncio.get_running_loop()
        self._transcript = Transcript(generation)
        self._pieces: list[Piece] = []
        """The text of a request that is not streamed."""
        self._size = 0
        self._avoid = set[Server]()
        self._losses = Losses()
        self._seams = 0
        self._lost_at: float | None = None
        """The time of the last event before a seam that is not closed yet."""
        self._event_at = 0.0
        self._has_begun = False
        """The client knows whether its stream moves."""
        self._keep_seed = False
        self._connection: EngineConnection | None = None
        self._ending = ""
        self._task: asyncio.Task[Any] | None = None

    def end(self, cause: str) -> None:
        """Ends the stream from outside: its client is gone, or this router leaves."""
        self._ending = self._ending or cause
        if self._connection is not None:
            self._connection.fail(cause)
        elif self._task is not None:
            self._task.cancel()  # it waits for a server

    async def run(self) -> Response | None:
        """Carries the text to its end.

        Returns the response of a server that refuses the request. Raises Refused if no server
        began the text, after an error event if the client has comments, and ClientGone.
        """
        self._task = asyncio.current_task()
        try:
            while not self._transcript.is_finished:
                response = await self._try_server()
                if response is not None:
                    return response
            await self._finish()
        except StreamEnded as end:
            await self._end_with_error(end)
        except Refused as refused:
            if self._client.has_started:
                await self._end_with_error(StreamEnded(refused.reason, refused.message))
            raise
        except asyncio.CancelledError:
            if not self._ending or self._client.is_gone or self._task is None:
                raise
            self._task.uncancel()
            await self._end_with_error(StreamEnded(self._ending, LEAVING))
        return None

    async def _try_server(self) -> Response | None:
        """Streams from one server until the text ends or the server is lost."""
        server = await self._find_server()
        try:
            return await self._stream_from(server)
        except EngineLost as lost:
            if self._transcript.is_finished:
                return None
            if self._client.is_gone:
                raise ClientGone from None
            if self._ending:
                raise StreamEnded(self._ending, LEAVING) from None
            await self._handle_loss(server, lost.cause)
            return None
        except (MalformedEvent, Differs) as error:
            if isinstance(error, Differs):
                raise StreamEnded("differs", "the text cannot be continued exactly") from None
            await self._handle_loss(server, "protocol")
            return None
        finally:
            if self._connection is not None:
                server.connections.discard(self._connection)
                self._connection.close()
                self._connection = None
            self._pool.give_back(server)

    async def _find_server(self) -> Server:
        until_s = self._until_s
        if self._has_text():
            until_s = self._loop.time() + self._hold_s
        self._metrics.waiting.inc()
        try:
            return await self._wait_for_server(until_s)
        finally:
            self._metrics.waiting.dec()

    async def _wait_for_server(self, until_s: float) -> Server:
        """Waits for a server; comments on a stream keep proxies from taking it for dead."""
        while True:
            comment_s = self._loop.time() + self._settings.comment_s
            try:
                return await self._pool.take(
                    self._prefix_key,
                    until_s=min(until_s, comment_s),
                    avoid=self._avoid,
                )
            except Refused:
                if until_s <= comment_s:
                    raise
            if self._generation.is_streamed:
                if not self._client.has_started:
                    await self._client.start(200, _make_headers(WAITING))
                await self._client.write(encode_comment("waiting for a server"))

    def _has_text(self) -> bool:
        """Returns True once the client has, or will have, tokens of a server."""
        return self._transcript.prompt_ids is not None

    async def _stream_from(self, server: Server) -> Response | None:
        path = self._generation.path
        if self._has_text():
            path = COMPLETIONS_PATH
            body = self._generation.continuation_body(
                self._transcript.prompt_ids or (),
                self._transcript.ids,
                keep_seed=self._keep_seed,
            )
        else:
            body = self._generation.first_body()
        address = server.address
        request = make_request("POST", path, str(address), body, self._headers)
        connection = await connect(
            address.host,
            address.port,
            request,
            timeout_s=self._settings.connect_s,
        )
        self._connection = connection
        server.connections.add(connection)
        connection.limit_s = self._settings.first_token_s
        if self._client.is_gone or self._ending:
            raise EngineLost(self._ending)
        head = await connection.read_head()
        if head.status != 200:
            return await self._handle_status(server, connection)
        self._keep_seed = head.headers.get(_SEED_HEADER) == "position"
        reader = EventReader(self._settings.stream_bytes + 1024 * 1024)
        while data := await connection.read():
            for payload in reader.add(data):
                if payload == DONE or await self._take_event(server, payload):
                    return self._check_end()
        return self._check_end()

    def _check_end(self) -> None:
        """Raises EngineLost if the events of a server ended before its text."""
        if not self._transcript.is_finished:
            raise EngineLost("error")

    async def _handle_status(
        self,
        server: Server,
        connection: EngineConnection,
    ) -> Response | None:
        """Handles a response that is no text: tries another server, or tells the client."""
        head = await connection.read_head()
        body = b""
        while data := await connection.read():
            body += data[: self._settings.body_bytes - len(body)]
        if head.status in (502, 503, 504) or (head.status == 429 and self._client.has_started):
            # It answers, so it is not lost; another one may have room.
            raise EngineLost("busy")
        if head.status >= SERVER_ERROR and self._losses.remaining > 1:
            raise EngineLost("error")
        if self._client.has_started:
            request = "continuation" if self._has_begun else "request"
            message = f"a server refused the {request} with {head.status}"
            if not self._has_begun:
                message += f": {body.decode(errors='replace')[:_REASON_CHARS]}"
            raise StreamEnded(f"status_{head.status}", message)
        content_type = head.headers.get("content-type", "application/json")
        return Response(head.status, content_type, body)

    async def _take_event(self, server: Server, payload: bytes) -> bool:
        """Takes an event of a server; returns True if nothing that is needed can follow."""
        document = decode(payload)
        if "error" in document:
            raise EngineLost("error")
        transcript = self._transcript
        if transcript.is_finished:
            transcript.read_usage(document)
            return False
        piece = read_piece(document)
        transcript.read_head(document, piece)
        transcript.read_usage(document)
        if piece is None:
            return False
        if piece.finish_reason == _ABORTED:
            raise EngineLost("drained")
        self._note_event(piece)
        await self._start_client()
        pieces = [piece]
        if transcript.is_split_needed(piece):
            pieces = await split_piece(
                self._texts(server),
                piece,
                transcript.ids[-_CONTEXT_TOKENS:].tolist(),
            )
        for part in pieces:
            if not transcript.is_finished:
                await self._send_pieces(transcript.add(part))
        if not transcript.is_finished:
            return False
        if piece.finish_reason is None:
            return True  # a stop sequence, which the server does not know
        # The server ends by itself, and sends its usage.
        assert self._connection is not None
        self._connection.limit_s = _LAST_EVENTS_S
        return False

    def _note_event(self, piece: Piece) -> None:
        now = self._loop.time()
        if piece.ids:
            if self._lost_at is not None:
                self._metrics.seam_seconds.observe(now - self._lost_at)
                self._lost_at = None
            self._losses.clear()
            self._avoid.clear()
            self._metrics.tokens.inc(len(piece.ids))
            assert self._connection is not None
            self._connection.limit_s = self._settings.token_s
        self._event_at = now

    async def _start_client(self) -> None:
        """Sends the status and the headers, once a server has begun the text."""
        transcript = self._transcript
        if transcript.prompt_ids is None and not transcript.obstacle:
            transcript.obstacle = "return_token_ids"
        if self._has_begun or not self._generation.is_streamed:
            return
        self._has_begun = True
        value = f"unmoved; {transcript.obstacle}" if transcript.obstacle else "carried"
        if self._client.has_started:
            await self._client.write(encode_comment(value))
        else:
            await self._client.start(200, _make_headers(value))
        chunk = transcript.head_chunk()
        if chunk is not None:
            await self._client.write(encode(chunk))

    async def _send_pieces(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            if self._generation.is_streamed:
                await self._client.write(encode(self._transcript.chunk(piece)))
            else:
                self._pieces.append(piece)
                self._size += len(piece.text) + _SURPLUS_BYTES
                self._size += 64 * len(piece.logprobs)
        size = self._size + _TOKEN_BYTES * len(self._transcript.ids)
        if size > self._settings.stream_bytes:
            raise StreamEnded("size", "the text is larger than the limit of this router")

    async def _handle_loss(self, server: Server, cause: str) -> None:
        """Prepares the stream for another server. Raises StreamEnded if it cannot go on."""
        transcript = self._transcript
        if cause not in ("busy", "drained"):
            self._pool.suspect(server)
        if self._lost_at is None and self._has_text():
            self._lost_at = self._event_at
        if transcript.obstacle:
            raise StreamEnded(cause, f"the server was lost ({cause}), and this stream cannot move")
        if cause in ("busy", "unreachable"):
            # The request was not begun, so it is not the cause.
            self._avoid.add(server)
            await asyncio.sleep(_PAUSE_S)
            self._check_hold()
            return
        self._avoid = {server}
        self._losses.add(server, cause)
        self._seams += 1
        if not self._losses.remaining or self._seams > _MOST_SEAMS:
            message = f"the server was lost ({cause}), as several before it"
            if self._has_begun:
                raise StreamEnded(cause, message)
            raise Refused(502, message, reason=self._losses.reason)
        self._metrics.moved.labels(cause).inc()
        if self._has_text():
            await self._prepare_seam()

    def _check_hold(self) -> None:
        since = self._lost_at
        if since is None:
            if self._loop.time() > self._until_s:
                raise Refused(
                    503,
                    "no server is ready",
                    retry_after_s=1.0,
                    reason="no_server",
                )
        elif self._loop.time() - since > self._hold_s:
            raise StreamEnded("no_server", "no server is ready")

    async def _prepare_seam(self) -> None:
        transcript = self._transcript
        transcript.rewind()
        ids = transcript.doubtful_ids()
        if ids:
            transcript.settle(await self._count_parts(ids))
        if transcript.is_full:
            await self._send_pieces(transcript.finish_full())

    async def _count_parts(self, ids: list[int]) -> int:
        """Asks servers which of the last tokens are parts of a character.

        Without the answer the text after the seam could be wrong, so it asks until one answers.
        """
        until_s = self._loop.time() + self._settings.hold_s
        silent_servers = set[Server]()
        while True:
            try:
                server = await self._pool.take(
                    self._prefix_key, until_s=until_s, avoid=silent_servers
                )
            except Refused as refused:
                raise StreamEnded(refused.reason, refused.message) from None
            try:
                return await count_parts(self._texts(server), ids)
            except EngineLost as loss:
                if loss.cause == NO_PATH:
                    return 0
                if self._loop.time() > until_s:
                    raise StreamEnded("no_server", "no server answers") from None
                silent_servers.add(server)
                await asyncio.sleep(_PAUSE_S)
            finally:
                self._pool.give_back(server)

    def _texts(self, server: Server) -> Texts:
        return partial(detokenize, server.address, self._generation.body.get("model"))

    async def _finish(self) -> None:
        if not self._generation.is_streamed:
            content = json.dumps(
                self._transcript.whole(self._pieces),
                separators=(",", ":"),
                ensure_ascii=False,
            )
            headers = [("content-type", "application/json"), (CARRIED_HEADER, "carried")]
            body = content.encode("utf-8", "surrogatepass")
            await self._client.start(200, [*headers, ("content-length", str(len(body)))])
            await self._client.finish(body)
            return
        end = b"data: [DONE]\n\n"
        if self._generation.wants_usage:
            end = encode(self._transcript.usage_chunk()) + end
        await self._client.finish(end)

    async def _end_with_error(self, end: StreamEnded) -> None:
        """Ends a stream with an error event, and another request with an error status."""
        self._metrics.ended.labels(end.cause).inc()
        if not self._client.has_started:
            raise Refused(
                503,
                end.message,
                retry_after_s=1.0,
                reason=end.cause,
            )
        error: dict[str, Any] = make_error(end.message, SERVER_ERROR)
        await self._client.finish(encode(error) + b"data: [DONE]\n\n")


def _make_headers(state: str) -> list[tuple[str, str]]:
    return [
        ("content-type", EVENT_STREAM),
        ("cache-control", "no-cache"),
        (CARRIED_HEADER, state),
    ]
