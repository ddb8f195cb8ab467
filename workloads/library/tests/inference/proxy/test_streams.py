"""Text streams of `/v1/` through a real Envoy: only silence ends one, never its length."""

import contextlib
import http.client
import json
import threading
from collections.abc import Generator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from holdfast.drill.serving.fleet import HOST, free_port
from holdfast.inference.proxy.endpoints import Endpoint, discovery, write
from holdfast.manifests.envoy import CLUSTER, Proxy, bootstrap
from tests.support import HttpServer
from workloads.library.tests.inference.server.serving import PATIENCE_S, Client, envoy
from workloads.library.tests.processes import until

pytestmark = pytest.mark.process
EVENTS = 48
LONGEST_REQUEST_S = 1.0
STREAM_S = LONGEST_REQUEST_S * 12 / 7
"""Keeps the ratio of a stream of 12 s to the longest request of a 15 s Spot window, 7 s."""


@dataclass
class Engine:
    """Streams server-sent events as an OpenAI server does, over `STREAM_S`; `/v1/silent` sends one
    and stops.
    """

    url: str = ""
    released: threading.Event = field(default_factory=threading.Event)

    @contextlib.contextmanager
    def running(self) -> Generator["Engine"]:
        engine = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                with contextlib.suppress(OSError):  # the proxy has reset the stream
                    engine.write_events(self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        server = HttpServer((HOST, 0), Handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        self.url = f"http://{HOST}:{server.server_port}"
        try:
            yield self
        finally:
            self.released.set()
            server.shutdown()
            thread.join()
            server.server_close()

    def write_events(self, handler: BaseHTTPRequestHandler) -> None:
        for number in range(EVENTS):
            _write_chunk(handler, f"data: {number}\n\n".encode())
            if handler.path == "/v1/silent":
                self.released.wait(PATIENCE_S)
            self.released.wait(STREAM_S / EVENTS)
        _write_chunk(handler, b"data: [DONE]\n\n")
        _write_chunk(handler, b"")


def _write_chunk(handler: BaseHTTPRequestHandler, data: bytes) -> None:
    handler.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
    handler.wfile.flush()


@contextlib.contextmanager
def start_proxied_engine(folder: Path, stream_idle_s: float) -> Generator[Client]:
    with Engine().running() as engine:
        servers = folder / "servers.json"
        write(
            servers,
            discovery(CLUSTER, [Endpoint(address=HOST, port=urlsplit(engine.url).port or 0)]),
        )
        port, admin_port, metrics_port = (free_port() for _ in range(3))
        proxy = Proxy(
            endpoints_file=str(servers),
            longest_request_s=LONGEST_REQUEST_S,
            stream_idle_s=stream_idle_s,
            host=HOST,
            port=port,
            admin_port=admin_port,
            metrics_port=metrics_port,
        )
        config = folder / "envoy.json"
        config.write_text(json.dumps(bootstrap(proxy)))
        with envoy(config, admin_port) as healthy:
            until(lambda: healthy() == 1, "the proxy to find the engine healthy")
            yield Client(port)


def test_a_stream_longer_than_the_longest_request_arrives_whole(tmp_path: Path) -> None:
    with start_proxied_engine(tmp_path, stream_idle_s=PATIENCE_S) as client:
        answer = client.request("POST", "/v1/completions", b"{}")
    assert answer.status == 200
    events = []
    for event in answer.body.decode().split("\n\n"):
        if event:
            events.append(event.removeprefix("data: "))
    assert events == [*map(str, range(EVENTS)), "[DONE]"]


def test_a_silent_stream_is_ended(tmp_path: Path) -> None:
    with (
        start_proxied_engine(tmp_path, stream_idle_s=3.0) as client,
        pytest.raises(http.client.IncompleteRead) as error,
    ):
        client.request("POST", "/v1/silent", b"{}")
    assert error.value.partial == b"data: 0\n\n"
