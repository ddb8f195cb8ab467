"""Engines and routers as processes, and clients that read their streams."""

import http.client
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.inference.router.events import EventReader
from holdfast.inference.small_engine import model
from workloads.library.tests.inference.server.serving import (
    PATIENCE_S,
    Answer,
    Client,
    Served,
    running,
)
from workloads.library.tests.processes import until

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
JSON_BODY = {"content-type": "application/json"}
HOST = "127.0.0.1"


@contextmanager
def process(folder: Path, *command: str) -> Generator[Served]:
    """Runs a process that logs its port; it has none of this process's settings."""
    log = folder / f"{time.monotonic_ns()}.log"
    environment: dict[str, str] = {}
    for name, value in os.environ.items():
        if not name.startswith("HOLDFAST_"):
            environment[name] = value
    arguments = [sys.executable, "-m", *command]
    with log.open("wb") as out, running(arguments, out, environment) as child:
        served = Served(0, child, log)
        served.port = until(lambda: _find_port(served), "the port")
        yield served


def _find_port(served: Served) -> int:
    assert served.process.poll() is None, served.log.read_text()
    for line in served.lines():
        if "port" in line:
            return line["port"]
    return 0


@contextmanager
def engine(
    folder: Path,
    *options: str,
    port: int = 0,
    tokens_per_s: float = 50.0,
) -> Generator[Served]:
    command = [
        "holdfast.inference.small_engine",
        "--host",
        HOST,
        "--port",
        str(port),
    ]
    command += ["--tokens-per-second", str(tokens_per_s), *options]
    with process(folder, *command) as served:
        until(lambda: served.request("GET", "/health").status == 200, "a healthy engine")
        yield served


@contextmanager
def router(
    folder: Path,
    *options: str,
    servers: list[Served] | None = None,
    ready: int | None = None,
) -> Generator[Served]:
    """Runs a router; waits until `ready` servers are ready, by default all of `servers`."""
    command = [
        "holdfast",
        "serve",
        "router",
        "--port",
        "0",
        "--set",
        f"host={HOST}",
    ]
    if servers is not None:
        names = ",".join(f"{HOST}:{served.port}" for served in servers)
        command += ["--servers", names]
    count = len(servers or ()) if ready is None else ready
    with process(folder, *command, *options) as served:
        until(lambda: count_ready(served) == count, f"{count} ready servers")
        yield served


def count_ready(served: Client) -> int:
    return served.request("GET", "/v2/health/ready").json["servers"]


def metric(client: Client, name: str, label: str = "") -> float:
    """Returns the sum of a metric's series that have `label`."""
    total = 0.0
    for line in client.request("GET", "/metrics").body.decode().splitlines():
        if re.match(rf"{name}[{{ ]", line) and label in line:
            total += float(line.split()[-1])
    return total


@dataclass
class Stream:
    """A streamed request in a thread, and what has arrived."""

    port: int
    body: dict[str, Any]
    path: str = COMPLETIONS
    headers: dict[str, str] = field(default_factory=dict)
    status: int = 0
    payloads: list[bytes] = field(default_factory=list)
    comments: int = 0
    """Comments that say that the stream waits."""
    error: BaseException | None = None

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=PATIENCE_S)
        try:
            content = json.dumps(self.body | {"stream": True}).encode()
            connection.request("POST", self.path, content, JSON_BODY)
            response = connection.getresponse()
            self.status = response.status
            self.headers = {}
            for name, value in response.getheaders():
                self.headers[name.lower()] = value
            reader = EventReader(1 << 24)
            while data := response.read1(65536):
                self.comments += data.count(b": waiting")
                self.payloads += reader.add(data)
        except (OSError, http.client.HTTPException) as error:
            self.error = error
        finally:
            connection.close()

    def wait(self) -> "Stream":
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the stream has not ended"
        return self

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(payload) for payload in self.payloads if payload != b"[DONE]"]

    @property
    def is_whole(self) -> bool:
        return self.payloads[-1:] == [b"[DONE]"] and self.error is None

    @property
    def text(self) -> str:
        text = ""
        for event in self.events:
            for choice in event.get("choices", ()):
                text += choice["text"] if "text" in choice else choice["delta"].get("content", "")
        return text


def make_text(prompt: str, count: int) -> str:
    """Returns the greedy text of a prompt, as an engine that is never lost writes it.

    A character whose last part is missing has no text.
    """
    state = model.Model(model.encode(prompt))
    decoder = model.Decoder()
    text = ""
    for _ in range(count):
        token, _ = state.next(may_end=False)
        text += decoder.add(token)
    return text


def complete(client: Client, **fields: Any) -> Answer:
    return client.request("POST", COMPLETIONS, json.dumps(fields).encode(), JSON_BODY)


def kill(served: Served) -> None:
    served.signal(signal.SIGKILL)
    served.wait()
