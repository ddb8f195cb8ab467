"""Text in pieces: the routes of OpenAI's clients, whole or as server-sent events.

Guarantees: who is refused is refused before the first byte; a stream stays with the model that began it, is waited for
when the server leaves, and ends at its deadline with an error event; it then counts as failed.
"""

import time
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing

from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holdfast.inference.server import completions
from holdfast.inference.server.completions import Piece
from holdfast.inference.server.errors import Refused

Pieces = AsyncGenerator[Piece]


class EventStream(Response):
    """Its status is known when it has ended; `ended` gets it."""

    def __init__(
        self, first: Piece, rest: Pieces, write: Callable[[Piece], Mapping[str, object]], headers: dict[str, str]
    ) -> None:
        super().__init__(None, 200, headers | {"cache-control": "no-store"}, media_type="text/event-stream")
        del self.headers["content-length"]
        self._first, self._rest, self._write = first, rest, write
        self.ended: Callable[[int], object] = lambda _: None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def put(body: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": body, "more_body": more})

        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        code, last = 200, completions.DONE
        async with aclosing(self._rest) as rest:
            try:
                await put(completions.event(self._write(self._first)))
                async for piece in rest:
                    await put(completions.event(self._write(piece)))
            except Refused as refused:
                # The status is gone already: the client learns it here, and our count from `ended`.
                code, last = refused.status, completions.event(completions.problem(refused))
        self.ended(code)
        await put(last, more=False)


async def whole(first: Piece, rest: Pieces) -> Piece:
    texts, reason = [first.text], first.finish_reason
    async with aclosing(rest) as pieces:
        async for piece in pieces:
            texts.append(piece.text)
            reason = piece.finish_reason
    return Piece(text="".join(texts), finish_reason=reason)


def writer(request_id: str, model: str) -> Callable[[Piece], Mapping[str, object]]:
    created_s = int(time.time())
    return lambda piece: completions.answer(request_id, model, created_s, piece)


def new_id(request: HttpRequest) -> str:
    return f"cmpl-{request.headers.get('x-request-id', '')[:80] or uuid.uuid4().hex}"
