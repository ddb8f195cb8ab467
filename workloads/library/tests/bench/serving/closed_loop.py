"""A client of one thread that sends a number of requests, and leaves the processors to the server.

It reads what the servers of this bench send: responses with a Content-Length.
"""

import re
import selectors
import socket
from dataclasses import dataclass, field

from holdfast.drill.serving.fleet import HOST

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


@dataclass
class _User:
    connection: socket.socket
    received: bytearray = field(default_factory=bytearray)

    def take_response(self) -> bytes | None:
        """Returns the response once it is whole."""
        head, separator, body = bytes(self.received).partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if not separator or length is None or len(body) < int(length[1]):
            return None
        self.received.clear()
        return head


def send_requests(
    port: int,
    path: str,
    body: str,
    *,
    users: int,
    count: int,
) -> int:
    """Sends `count` requests in all, one at a time per user; returns how many were answered 200."""
    data = body.encode()
    lines = [
        f"POST {path} HTTP/1.1",
        f"Host: {HOST}",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
    ]
    request = "\r\n".join(lines).encode() + b"\r\n\r\n" + data
    unsent = count
    answered = 0
    good = 0
    with selectors.DefaultSelector() as selector:
        for _ in range(min(users, count)):
            connection = socket.create_connection((HOST, port))
            selector.register(connection, selectors.EVENT_READ, _User(connection))
            connection.sendall(request)
            unsent -= 1
        while answered < count:
            for key, _ in selector.select():
                user: _User = key.data
                user.received += user.connection.recv(64 * 1024)
                response = user.take_response()
                if response is None:
                    continue
                answered += 1
                good += response.startswith(b"HTTP/1.1 200")
                if unsent:
                    user.connection.sendall(request)
                    unsent -= 1
        for key in list(selector.get_map().values()):
            key.data.connection.close()
    return good
