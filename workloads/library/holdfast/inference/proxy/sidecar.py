"""A sidecar that drains a server: it answers the server's readiness probe and preStop hook.

A server that refuses requests after SIGTERM (vLLM, Envoy) must be out of its Service before the
signal. On a delete it is removed at once; on a Spot notice only the proxy's check removes it. The
probe therefore asks the sidecar, which answers 200 while the server is healthy, and 503 from the
start of the preStop hook. The hook ends after `hold_s` and, if the server reports its open
requests, once there are none or after `most_s`. SIGTERM then arrives at an idle server.
"""

import http.client
import re
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from holdfast.runtime import logs
from holdfast.runtime.bounded_http import BoundedHandler, BoundedServer
from holdfast.support.errors import InputError
from holdfast.vocabulary.serving import DRAIN_PATH, PROBE_TIMEOUT_S, READY_PATH

_POLL_S = 0.1


@dataclass(kw_only=True)
class Sidecar:
    health_url: str
    """The health URL of the server, which is ready if it answers 200."""
    hold_s: float
    most_s: float
    drain_url: str = ""
    """A URL that gets a POST when the drain begins, so that the server closes connections."""
    count_url: str = ""
    """A URL whose last number is the number of the server's open requests."""
    _draining: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        for url in (self.health_url, self.drain_url, self.count_url):
            if url:
                _require_url(url)

    def ready(self) -> bool:
        if self._draining.is_set():
            return False
        status, _ = request("GET", self.health_url)
        return status == 200

    def drain(self) -> None:
        """Drains the server; returns when it may stop."""
        self._draining.set()
        deadline = time.monotonic() + self.most_s
        logs.info("drain", f"not ready, holding for {self.hold_s:g} s")
        if self.drain_url:
            request("POST", self.drain_url)
        time.sleep(self.hold_s)
        while self.count_url and time.monotonic() < deadline and self._is_busy():
            time.sleep(_POLL_S)

    def _is_busy(self) -> bool:
        status, text = request("GET", self.count_url)
        numbers = re.findall(r"\d+", text)
        if status != 200 or not numbers:
            return False
        return int(numbers[-1]) > 0

    @contextmanager
    def listening(
        self,
        host: str,
        port: int,
        *,
        hook: bool = False,
    ) -> Generator[None]:
        """Serves READY_PATH for the kubelet and the proxy, or with `hook` DRAIN_PATH, in threads.

        Only the kubelet may call DRAIN_PATH: a drain cannot be undone, so it is at another port,
        which no network policy opens. Raises InputError if the port cannot be used.
        """
        sidecar = self
        expected_path = DRAIN_PATH if hook else READY_PATH

        class Handler(BoundedHandler):
            def do_GET(self) -> None:
                if self.path != expected_path:
                    self._respond(404)
                elif hook:
                    sidecar.drain()
                    self._respond(200)
                else:
                    self._respond(200 if sidecar.ready() else 503)

            def _respond(self, status: int) -> None:
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()

        try:
            server = BoundedServer((host, port), Handler)
        except OSError as error:
            raise InputError(
                "the port cannot be used",
                got=f"{port} ({error.strerror})",
                allowed="a free port",
                fix="give another --port",
            ) from None
        with server:
            threading.Thread(
                target=server.serve_forever,
                args=(_POLL_S,),
                name="sidecar",
                daemon=True,
            ).start()
            try:
                yield
            finally:
                server.shutdown()  # without it the loop of a closed socket never ends


def _require_url(url: str) -> None:
    """Raises InputError for a URL that `request` cannot ask."""
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme == "http" and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is no number of a port
        is_valid = False
    if not is_valid:
        raise InputError(
            "the URL of the server cannot be asked",
            got=url,
            allowed="http://HOST:PORT/PATH",
            fix="correct --health, --drain or --count",
        )


def request(method: str, url: str) -> tuple[int, str]:
    """Returns the status and text of a response; status 0 if there is none."""
    parts = urlsplit(url)
    path = f"{parts.path}?{parts.query}" if parts.query else parts.path
    host = parts.hostname or ""
    connection = http.client.HTTPConnection(host, parts.port, timeout=PROBE_TIMEOUT_S)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read().decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return 0, ""
    finally:
        connection.close()
