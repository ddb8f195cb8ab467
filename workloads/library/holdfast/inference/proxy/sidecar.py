"""A drain for a server that has none: it answers the readiness probe and the preStop hook of its
neighbour.

A server that refuses requests from SIGTERM on (vLLM, Envoy) must be out of its Service before the
signal. On a delete that is so at once; on a Spot notice only the proxy's check takes it out. So the
probe comes here: 200 while the server's own health answers 200, 503 from the moment the preStop
hook has begun. The hook is answered once `hold_s` have passed and, where the server reports its
open requests, none is left or `most_s` are over. SIGTERM then finds it quiet.
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
    """Of the neighbour; anything but 200 is not ready."""
    hold_s: float
    most_s: float
    drain_url: str = ""
    """Gets a POST when the drain begins, so that the neighbour closes connections."""
    count_url: str = ""
    """Its last number is how many requests the neighbour has."""
    _draining: threading.Event = field(default_factory=threading.Event)

    def ready(self) -> bool:
        return not self._draining.is_set() and _asked("GET", self.health_url)[0] == 200

    def drain(self) -> None:
        """Returns when the neighbour may stop."""
        self._draining.set()
        began = time.monotonic()
        logs.info("drain", f"not ready, holding for {self.hold_s:g} s")
        if self.drain_url:
            _asked("POST", self.drain_url)
        time.sleep(self.hold_s)
        while self.count_url and time.monotonic() - began < self.most_s and self._busy():
            time.sleep(_POLL_S)

    def _busy(self) -> bool:
        code, text = _asked("GET", self.count_url)
        numbers = re.findall(r"\d+", text)
        return code == 200 and bool(numbers) and int(numbers[-1]) > 0

    @contextmanager
    def listening(self, host: str, port: int, *, hook: bool = False) -> Generator[None]:
        """In threads of its own: GET READY_PATH, for the kubelet and the proxy. `hook`: GET
        DRAIN_PATH, for the kubelet alone; a drain has no way back, so it is at a port that no
        network policy opens.
        """
        sidecar = self

        class Handler(BoundedHandler):
            def do_GET(self) -> None:
                if self.path != (DRAIN_PATH if hook else READY_PATH):
                    self._answer(404)
                elif hook:
                    sidecar.drain()
                    self._answer(200)
                else:
                    self._answer(200 if sidecar.ready() else 503)

            def _answer(self, code: int) -> None:
                self.send_response(code)
                self.send_header("content-length", "0")
                self.end_headers()

        try:
            server = BoundedServer((host, port), Handler)
        except OSError as error:
            got = f"{port} ({error.strerror})"
            raise InputError(
                "the port cannot be used",
                got=got,
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
                server.shutdown()  # a loop whose socket is closed under it turns for ever


def _asked(method: str, url: str) -> tuple[int, str]:
    """Code and text; 0 when there is no answer."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(
        parts.hostname or "", parts.port, timeout=PROBE_TIMEOUT_S
    )
    try:
        connection.request(method, parts.path + (f"?{parts.query}" if parts.query else ""))
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return 0, ""
    finally:
        connection.close()
