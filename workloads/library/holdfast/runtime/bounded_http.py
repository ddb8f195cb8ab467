"""A small HTTP server whose threads, headers and slow senders are bounded: for probes, hooks and
questions of peers.
"""

import socket
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, cast

READ_S = 5.0
"""For a request's headers, from the first byte to the last."""
HEADER_BYTES = 16 * 1024


class BoundedServer(ThreadingHTTPServer):
    daemon_threads = True
    # with the default of 5, a probe that comes in a burst is tried again seconds later
    request_queue_size = 128
    most = 32
    """Connections at once. Where one more comes, the oldest that has sent no whole headers makes
    room.
    """

    def __init__(self, address: tuple[str, int], handler: type["BoundedHandler"]) -> None:
        self._free = threading.BoundedSemaphore(self.most)
        self._reading: dict[socket.socket, float] = {}
        """Those whose headers are not complete, the oldest first."""
        super().__init__(address, handler)

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # HTTPServer's own asks DNS for this machine's name
        self.server_name, self.server_port = self.server_address[:2]  # pyright: ignore[reportAttributeAccessIssue]

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self._cut(next(iter(self._reading.copy()), None))
            if not self._free.acquire(timeout=0.1):
                self.shutdown_request(request)
                return
        self._reading[request] = time.monotonic()
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.has_read(request)
            self._free.release()

    def service_actions(self) -> None:
        for request, began in self._reading.copy().items():
            if time.monotonic() - began > READ_S:
                self._cut(request)

    def has_read(self, request: socket.socket) -> None:
        self._reading.pop(request, None)

    def _cut(self, request: socket.socket | None) -> None:
        with suppress(OSError):  # it has ended by itself
            if request is not None:
                request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that is gone in the middle of an answer is no news here."""


class BoundedHandler(BaseHTTPRequestHandler):
    timeout = READ_S
    most_body = 0
    """Bytes of a body that are read in the headers' time; without it bodies are the method's own
    business.
    """
    body: bytes | None = None
    """None: longer than that, or of no length."""

    def setup(self) -> None:
        super().setup()
        self.rfile = cast("Any", _Head(self.rfile))

    def parse_request(self) -> bool:
        parsed = super().parse_request()
        length = self.headers.get("Content-Length") or "0" if parsed and self.most_body else ""
        if length.isascii() and length.isdecimal() and int(length[:9]) <= self.most_body:
            self.body = self.rfile.read(int(length))
        cast("BoundedServer", self.server).has_read(self.connection)
        return parsed

    def log_message(self, format: str, *args: object) -> None:
        """Probes are no news."""


class _Head:
    """Lines up to HEADER_BYTES together; then the headers have ended."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._left = HEADER_BYTES

    def readline(self, size: int) -> bytes:
        line: bytes = self._inner.readline(min(size, self._left)) if self._left else b""
        self._left -= len(line)
        return line

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
