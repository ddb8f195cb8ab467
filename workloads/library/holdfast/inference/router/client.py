"""The client of a request: what it sends, what it gets, and whether it is still connected."""

from collections.abc import Callable, Iterable

from starlette.types import Message, Receive, Scope, Send

from holdfast.support.errors import HoldfastError

CARRIED_HEADER = "x-holdfast-stream"
"""The header that says whether a stream moves with its servers, and what prevents it."""
WAITING = "waiting"
"""The value for a stream that waits for a server; a comment in it says later whether it moves."""
LEAVING = "this router shuts down"


class ClientGone(HoldfastError):
    """The client has disconnected."""


class Client:
    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self._receive = receive
        self._send = send
        self.has_started = False
        self.is_event_stream = False
        self.is_gone = False

    async def watch(self, on_gone: Callable[[], object]) -> None:
        """Calls `on_gone` when the client disconnects."""
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self.is_gone = True
                on_gone()
                return

    async def start(self, status: int, headers: Iterable[tuple[str, str]]) -> None:
        self.has_started = True
        pairs: list[tuple[bytes, bytes]] = []
        for name, value in headers:
            if name == "content-type" and value.startswith("text/event-stream"):
                self.is_event_stream = True
            pairs.append((name.encode("latin-1"), value.encode("latin-1", "replace")))
        await self._put(
            {
                "type": "http.response.start",
                "status": status,
                "headers": pairs,
            }
        )

    async def write(self, data: bytes) -> None:
        """Sends data; it waits while the client reads more slowly than its server writes."""
        await self._put(
            {
                "type": "http.response.body",
                "body": data,
                "more_body": True,
            }
        )

    async def finish(self, data: bytes = b"") -> None:
        await self._put(
            {
                "type": "http.response.body",
                "body": data,
                "more_body": False,
            }
        )

    async def _put(self, message: Message) -> None:
        if self.is_gone:
            raise ClientGone
        await self._send(message)
