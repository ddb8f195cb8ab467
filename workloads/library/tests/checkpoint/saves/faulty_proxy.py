"""An HTTP proxy in front of the storage emulator that fails like networks and stores, by a rule of
the test.
"""

import http.client
import json
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from tests.support import HttpServer

PASS = "pass"
REFUSE_503 = "503"
REFUSE_429 = "429"
REFUSE_403 = "403"
BREAK_BEFORE = "break before"
"""The connection ends before the request is passed on."""
BREAK_AFTER = "break after"
"""The request is done, and its answer is lost."""
BREAK_MIDWAY = "break midway"
"""Half of the answer arrives."""
SPOILED = "spoiled"
"""One bit of the answer is flipped."""
SILENT = "silent"
"""The request is taken and never answered; the connection stays open."""
SLOW_INTAKE = "slow intake"
"""The body of an upload is taken at some 2 MB/s, counted and thrown away."""
SLOW_INTAKE_S = 0.5

Rule = Callable[[str, str], str]
"""(method, path with query) -> one of the above."""


def storm(seed: int, share: float, *kinds: str) -> Rule:
    """Returns a rule that lets a share of the requests fail, each with one of these faults."""
    rng = random.Random(seed)
    lock = threading.Lock()

    def rule(method: str, path: str) -> str:
        with lock:
            return rng.choice(kinds) if rng.random() < share else PASS

    return rule


class FaultyProxy:
    def __init__(self, emulator: str) -> None:
        self.counts: Counter[str] = Counter()
        self.closed = threading.Event()
        self.moving = threading.Lock()
        self.taken = 0
        self.rule: Rule = lambda method, path: PASS
        self.target = urlsplit(emulator).netloc
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.proxy = self
        # Small, so that a slow intake is felt by the sender and not hidden by the kernel's buffers.
        self._server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 18)
        self.env = {"STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{self._server.server_address[1]}"}
        """Environment of a process that uses the proxy."""
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.closed.set()
        self._server.shutdown()
        self._server.server_close()


class _Server(HttpServer):
    daemon_threads = True
    proxy: FaultyProxy


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *_: Any) -> None: ...

    def handle_any(self) -> None:
        proxy = self.server.proxy
        kind = proxy.rule(self.command, self.path)
        proxy.counts[kind] += 1
        body = self.body(SLOW_INTAKE_S if kind == SLOW_INTAKE else 0)
        if kind in (REFUSE_503, REFUSE_429, REFUSE_403):
            self.reply(int(kind), b'{"error": {"message": "refused"}}')
            return
        if kind == SLOW_INTAKE:
            proxy.taken = len(body)
            self.reply(200, json.dumps({"size": len(body)}).encode())
            return
        if kind == SILENT:
            proxy.closed.wait()
        if kind in (SILENT, BREAK_BEFORE):
            self.close_connection = True
            return
        # The emulator cannot move objects. A deletion waits for a move, which is one transaction.
        is_move = "/moveTo/o/" in self.path
        is_locked = is_move or self.command == "DELETE"
        with proxy.moving if is_locked else nullcontext():
            if is_move:
                status, answer = move(proxy.target, self.path)
                headers: dict[str, str] = {}
            else:
                status, answer, headers = forward(
                    proxy.target,
                    self.command,
                    self.path,
                    body,
                    self.headers,
                )
        if kind == SPOILED:
            answer = bytes([answer[0] ^ 1]) + answer[1:]
        if kind == BREAK_AFTER:
            self.close_connection = True
        else:
            self.reply(
                status,
                answer,
                headers,
                half=kind == BREAK_MIDWAY,
            )

    do_GET = do_POST = do_DELETE = handle_any

    def body(self, pause_s: float) -> bytes:
        length = int(self.headers.get("content-length") or 0)
        data = bytearray()
        while len(data) < length:
            time.sleep(pause_s)
            rest = length - len(data)
            part = self.rfile.read(min(1 << 20, rest))
            if not part:
                raise ConnectionResetError
            data += part
        return bytes(data)

    def reply(
        self,
        status: int,
        body: bytes,
        headers: Mapping[str, str] = MappingProxyType({}),
        *,
        half: bool = False,
    ) -> None:
        self.send_response_only(status)
        for name, value in {
            **headers,
            "content-length": str(len(body)),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if half else body)
        self.close_connection |= half


_HOP_HEADERS = ("host", "connection", "content-length", "expect", "transfer-encoding", "keep-alive")


def forward(
    target: str,
    method: str,
    path: str,
    body: bytes,
    headers: Any,
) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection(target, timeout=60)
    connection.request(
        method,
        path,
        body=body,
        headers=_end_to_end(headers.items()),
    )
    response = connection.getresponse()
    answer = response.read()
    connection.close()
    return response.status, answer, _end_to_end(response.getheaders())


def move(target: str, path: str) -> tuple[int, bytes]:
    """Emulates a request to move an object by requests that the emulator supports."""
    url = urlsplit(path)
    source, _, name = url.path.partition("/moveTo/o/")
    bucket = source.partition("/o/")[0]
    status, content, _ = forward(target, "GET", f"{source}?alt=media", b"", Message())
    if status != HTTPStatus.OK:
        return status, content
    query = f"uploadType=media&name={name}&{url.query}"
    status, answer, _ = forward(target, "POST", f"/upload{bucket}/o?{query}", content, Message())
    if status == HTTPStatus.OK:
        forward(target, "DELETE", source, b"", Message())
    return status, answer


def _end_to_end(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    return {name: value for name, value in headers if name.lower() not in _HOP_HEADERS}
