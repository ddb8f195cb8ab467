"""Clients that send requests at a fixed rate and count every answer.

They send POST, which no client library retries by itself.
"""

import contextlib
import http.client
import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

INFER_PATH = "/v2/models/model/infer"
_TEXT = {
    "name": "text",
    "datatype": "BYTES",
    "shape": [1],
    "data": ["a request that comes while a server loses its machine"],
}
INFER_BODY = json.dumps({"inputs": [_TEXT]}).encode()
_TIMEOUT_S = 30.0
_MAX_OPEN = 1_000
"""Requests at a time: more than are sent while one waits for its whole timeout."""


@dataclass
class Load:
    """An open loop of clients: a slow server does not slow them down."""

    host: str
    port: int
    path: str
    body: bytes
    """The body of each request; a number replaces NUMBER in it, so that no two are the same."""
    codes: "Counter[str]" = field(default_factory=Counter)
    """Requests by HTTP code, or by the class of the error."""
    seconds: list[float] = field(default_factory=list)
    """Latencies of the answers with 200."""
    _idle: "SimpleQueue[http.client.HTTPConnection]" = field(default_factory=SimpleQueue)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def requests(self) -> int:
        return self.codes.total()

    @property
    def failures(self) -> int:
        return self.requests - self.codes["200"]

    @contextlib.contextmanager
    def asking(self, rate: float) -> Generator[None]:
        """Sends `rate` requests a second during the block; returns after the last answer."""
        stop = threading.Event()
        thread = threading.Thread(
            target=self._send_requests,
            args=(rate, stop),
            daemon=True,
        )
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _send_requests(self, rate: float, stop: threading.Event) -> None:
        start = time.monotonic()
        count = 0
        with ThreadPoolExecutor(_MAX_OPEN, thread_name_prefix="client") as clients:
            while not stop.wait(1 / rate):
                due = int((time.monotonic() - start) * rate)
                while count < due:
                    clients.submit(self._send_request)
                    count += 1
        with contextlib.suppress(Empty):
            while True:
                self._idle.get_nowait().close()

    def _send_request(self) -> None:
        start = time.monotonic()
        try:
            connection = self._idle.get_nowait()
        except Empty:
            connection = http.client.HTTPConnection(self.host, self.port, timeout=_TIMEOUT_S)
        try:
            body = self.body.replace(b"NUMBER", b"%d" % next(self._numbers))
            connection.request("POST", self.path, body)
            response = connection.getresponse()
            response.read()
            code = str(response.status)
            # After `Connection: close` it connects again by itself.
            self._idle.put(connection)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            code = type(error).__name__
        with self._lock:
            self.codes[code] += 1
            if code == "200":
                self.seconds.append(time.monotonic() - start)
