"""Clients that ask at a fixed rate, whatever the answers do, and count every one. POST, which no
client library repeats by itself.
"""

import contextlib
import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Generator
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
_MOST_OPEN = 1_000
"""Requests at a time: more than come while one waits for its whole time."""


@dataclass
class Load:
    """Open loop: a slow server does not slow the clients down."""

    host: str
    port: int
    path: str
    body: bytes
    codes: "Counter[str]" = field(default_factory=Counter)
    """HTTP code, or the class of the error."""
    seconds: list[float] = field(default_factory=list[float])
    """Of answers with 200."""
    _idle: "SimpleQueue[http.client.HTTPConnection]" = field(default_factory=SimpleQueue)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def asked(self) -> int:
        return self.codes.total()

    @property
    def failed(self) -> int:
        return self.asked - self.codes["200"]

    @contextlib.contextmanager
    def asking(self, rate: float) -> Generator[None]:
        """`rate` a second from threads of its own; left after the last answer."""
        ended = threading.Event()
        thread = threading.Thread(
            target=self._ask,
            args=(rate, ended),
            daemon=True,
        )
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _ask(self, rate: float, ended: threading.Event) -> None:
        began = time.monotonic()
        count = 0
        with ThreadPoolExecutor(_MOST_OPEN, thread_name_prefix="client") as clients:
            while not ended.wait(1 / rate):
                while count < int((time.monotonic() - began) * rate):
                    clients.submit(self._one)
                    count += 1
        with contextlib.suppress(Empty):
            while True:
                self._idle.get_nowait().close()

    def _one(self) -> None:
        began = time.monotonic()
        try:
            connection = self._idle.get_nowait()
        except Empty:
            connection = http.client.HTTPConnection(self.host, self.port, timeout=_TIMEOUT_S)
        try:
            connection.request("POST", self.path, self.body)
            answer = connection.getresponse()
            answer.read()
            code = str(answer.status)
            # where the answer said that it is the last, it connects again by itself
            self._idle.put(connection)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            code = type(error).__name__
        with self._lock:
            self.codes[code] += 1
            if code == "200":
                self.seconds.append(time.monotonic() - began)
