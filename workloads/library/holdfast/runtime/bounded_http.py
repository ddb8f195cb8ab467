"""An HTTP server with bounded threads, headers and read times, for probes, hooks and peers."""

import socket
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, cast

READ_S = 5.0
"""The maximum time for the headers of a request, from the first byte to the last."""
HEADER_BYTES = 16 * 1024


class BoundedServer(ThreadingHTTPServer):
    daemon_threads = True
    # With the default of 5, a probe that arrives in a burst is retried seconds later.
    request_queue_size = 128
    most = 32
    """The maximum number of open connections.

    A further connection replaces the oldest one whose headers are not complete.
    """

    def __init__(self, address: tuple[str, int], handler: type["BoundedHandler"]) -> None:
        self._free = threading.BoundedSemaphore(self.most)
        self._reading: dict[socket.socket, float] = {}
        """Connections whose headers are not complete, with their start times, oldest first."""
        super().__init__(address, handler)

    def server_bind(self) -> None:
        # The method of HTTPServer asks DNS for the name of this machine.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # pyright: ignore[reportAttributeAccessIssue]

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self._close_oldest()
            if not self._free.acquire(timeout=0.1):
                self.shutdown_request(request)
                return
        self.start_reading(request)
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # this pod has too many threads; the connection is closed
            self.finish_reading(request)
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.finish_reading(request)
            self._free.release()

    def service_actions(self) -> None:
        for request, start in self._reading.copy().items():
            if time.monotonic() - start > READ_S:
                _disconnect(request)

    def start_reading(self, request: socket.socket) -> None:
        """Limits the time for the next headers of a connection to READ_S."""
        self._reading[request] = time.monotonic()

    def finish_reading(self, request: socket.socket) -> None:
        self._reading.pop(request, None)

    def _close_oldest(self) -> None:
        request = next(iter(self._reading.copy()), None)
        if request is not None:
            _disconnect(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Logs nothing: a client may disconnect in the middle of a response."""


def _disconnect(request: socket.socket) -> None:
    with suppress(OSError):  # it has ended by itself
        request.shutdown(socket.SHUT_RDWR)


class BoundedHandler(BaseHTTPRequestHandler):
    timeout = READ_S
    most_body = 0
    """The largest body that is read within READ_S; 0 if methods read bodies themselves."""
    body: bytes | None = None
    """The body, or None if it is too long or has no length."""

    def setup(self) -> None:
        super().setup()
        self.rfile = cast("Any", _HeaderReader(self.rfile))

    def parse_request(self) -> bool:
        is_valid = super().parse_request()
        if is_valid and self.most_body:
            self._receive_body()
        server = cast("BoundedServer", self.server)
        server.finish_reading(self.connection)
        return is_valid

    def _receive_body(self) -> None:
        length = self.headers.get("Content-Length") or "0"
        is_number = length.isascii() and length.isdecimal()
        if is_number and int(length[:9]) <= self.most_body:
            self.body = self.rfile.read(int(length))

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing: probes come every few seconds."""


class _HeaderReader:
    """Returns at most HEADER_BYTES in lines; then the headers count as complete."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._budget = HEADER_BYTES

    def readline(self, size: int) -> bytes:
        if not self._budget:
            return b""
        line: bytes = self._stream.readline(min(size, self._budget))
        self._budget -= len(line)
        return line

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
