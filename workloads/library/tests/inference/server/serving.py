"""Server processes for tests, and clients that read bytes."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import psutil

from holdfast.drill.serving.fleet import admin, find_envoy
from holdfast.manifests.envoy import CLUSTER
from workloads.library.tests.processes import until

ROOT = Path(__file__).parents[5]
PREDICTORS = "workloads.library.tests.inference.server.playing_predictors"
PATIENCE_S = 60.0
INFER = "/v2/models/model/infer"


def texts(*bodies: str) -> bytes:
    tensor = {
        "name": "text",
        "datatype": "BYTES",
        "shape": [len(bodies)],
        "data": list(bodies),
    }
    return json.dumps({"inputs": [tensor]}).encode()


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def output(self, name: str) -> list[Any]:
        outputs = {output["name"]: output["data"] for output in self.json["outputs"]}
        return outputs[name]


@dataclass
class Client:
    port: int

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        with closing(connection):
            connection.request(
                method,
                path,
                body,
                dict(headers or {}),
            )
            response = connection.getresponse()
            response_headers = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, response_headers, response.read())

    def infer(self, *bodies: str, **headers: str) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.request(
            "POST",
            INFER,
            texts(*bodies),
            named,
        )

    def ready(self) -> int:
        return self.request("GET", "/v2/health/ready").status

    def metric(self, name: str) -> float:
        """Returns the sum of a metric's series; `name` is a regular expression."""
        text = self.request("GET", "/metrics").body.decode()
        total = 0.0
        for line in text.splitlines():
            if re.match(rf"{name}(\{{|\s)", line):
                total += float(line.split()[-1])
        return total

    def send(self, *parts: bytes) -> socket.socket:
        connection = socket.create_connection(
            ("127.0.0.1", self.port),
            timeout=PATIENCE_S,
        )
        for part in parts:
            connection.sendall(part)
        return connection


@dataclass
class Served(Client):
    process: "subprocess.Popen[bytes]"
    log: Path

    def model(self) -> psutil.Process:
        """Returns the predicting process, once no other one examines requests."""
        server = psutil.Process(self.process.pid)
        until(lambda: len(server.children()) == 1, "a single predicting process")
        return server.children()[0]

    def signal(self, number: signal.Signals) -> float:
        os.kill(self.process.pid, number)
        return time.monotonic()

    def wait(self) -> int:
        """Waits for the end of the server; returns its exit code."""
        return self.process.wait(PATIENCE_S)

    def lines(self) -> list[dict[str, Any]]:
        lines = self.log.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]


def head(length: int, *headers: bytes) -> bytes:
    lines = [
        f"POST {INFER} HTTP/1.1".encode(),
        b"Host: here",
        b"Content-Length: %d" % length,
        *headers,
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def receive_all(connection: socket.socket) -> bytes:
    """Receives everything until the other end closes."""
    with connection, connection.makefile("rb") as stream:
        return stream.read()


@contextmanager
def running(
    command: list[str],
    out: BinaryIO | int = subprocess.DEVNULL,
    environment: Mapping[str, str] | None = None,
) -> Generator["subprocess.Popen[bytes]"]:
    """Runs a process, and kills it at the end of the block."""
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=out,
        stderr=out,
        env=environment,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def serve(
    folder: Path,
    *options: str,
    predictor: str = f"{PREDICTORS}:gpu_like",
    ready: bool = True,
    env: Mapping[str, str] | None = None,
) -> Generator[Served]:
    """Runs a server with the settings of `env`, and none of this process."""
    log = folder / f"server-{time.monotonic_ns()}.log"
    command = [
        sys.executable,
        "-m",
        "holdfast",
        "serve",
        "run",
        "--predictor",
        predictor,
        "--port",
        "0",
        *options,
    ]
    environment: dict[str, str] = {}
    for name, value in os.environ.items():
        if not name.startswith("HOLDFAST_"):
            environment[name] = value
    environment |= env or {}
    command += ["--set", "host=127.0.0.1"]
    with log.open("wb") as out, running(command, out, environment) as process:
        server = Served(0, process, log)
        server.port = until(lambda: _find_port(server), "the server's port")
        if ready:
            until(lambda: server.ready() == 200, "a ready server")
        yield server


@contextmanager
def envoy(config: Path, admin_port: int) -> Generator[Callable[[], int]]:
    """Runs Envoy; yields a function that counts healthy servers, or -1 if it takes no requests yet.

    Its log is next to the configuration.
    """

    def read_stat(name: str) -> int:
        _, text = admin(admin_port, f"/stats?filter=^{name}$")
        return int(text.rpartition(":")[2] or -1)

    def count_healthy() -> int:
        try:
            # It knows its servers before it listens for clients.
            if read_stat("listener_manager.workers_started") != 1:
                return -1
            return read_stat(f"cluster.{CLUSTER}.membership_healthy")
        except (OSError, http.client.HTTPException):
            return -1

    command = [
        find_envoy(),
        "-c",
        str(config.resolve()),
        "--use-dynamic-base-id",
        "--concurrency",
        "1",
        "-l",
        "warning",
    ]
    with config.with_suffix(".log").open("wb") as log, running(command, log):
        yield count_healthy


def _find_port(server: Served) -> int:
    """Returns the port that the log names; 0 if it does not name one yet."""
    assert server.process.poll() is None, server.log.read_text()
    for line in server.lines():
        if "port" in line:
            return line["port"]
    return 0
