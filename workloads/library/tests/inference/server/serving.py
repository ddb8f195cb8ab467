"""A real server process for tests, and clients that see bytes."""

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
        return next(o["data"] for o in self.json["outputs"] if o["name"] == name)


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
        with closing(
            http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        ) as connection:
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            return Answer(
                response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
            )

    def infer(self, *bodies: str, **headers: str) -> Answer:
        return self.request(
            "POST", INFER, texts(*bodies), {k.replace("_", "-"): v for k, v in headers.items()}
        )

    def ready(self) -> int:
        return self.request("GET", "/v2/health/ready").status

    def metric(self, name: str) -> float:
        text = self.request("GET", "/metrics").body.decode()
        return sum(
            float(line.split()[-1])
            for line in text.splitlines()
            if re.match(rf"{name}(\{{|\s)", line)
        )

    def send(self, *parts: bytes) -> socket.socket:
        end = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)
        for part in parts:
            end.sendall(part)
        return end


@dataclass
class Served(Client):
    process: "subprocess.Popen[bytes]"
    log: Path

    def model(self) -> psutil.Process:
        """What predicts."""
        (child,) = psutil.Process(self.process.pid).children()
        return child

    def signal(self, number: signal.Signals) -> float:
        os.kill(self.process.pid, number)
        return time.monotonic()

    def ended(self) -> int:
        return self.process.wait(PATIENCE_S)

    def lines(self) -> list[dict[str, Any]]:
        return [
            json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")
        ]


def head(length: int, *more: bytes) -> bytes:
    lines = [
        f"POST {INFER} HTTP/1.1".encode(),
        b"Host: here",
        b"Content-Length: %d" % length,
        *more,
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def received(end: socket.socket) -> bytes:
    """Everything until the other end closes."""
    with end, end.makefile("rb") as stream:
        return stream.read()


@contextmanager
def running(
    command: list[str],
    out: BinaryIO | int = subprocess.DEVNULL,
    environment: Mapping[str, str] | None = None,
) -> Generator["subprocess.Popen[bytes]"]:
    """Killed at the end of the block."""
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
def served(
    folder: Path,
    *options: str,
    predictor: str = f"{PREDICTORS}:gpu_like",
    ready: bool = True,
    env: Mapping[str, str] | None = None,
) -> Generator[Served]:
    """`env`: settings of ours; those of this process do not reach the server."""
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
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HOLDFAST_")} | dict(
        env or {}
    )
    with (
        log.open("wb") as out,
        running([*command, "--set", "host=127.0.0.1"], out, environment) as process,
    ):
        server = Served(0, process, log)
        server.port = until(lambda: _port(server), "the server's port")
        if ready:
            until(lambda: server.ready() == 200, "a ready server")
        yield server


@contextmanager
def envoy(config: Path, admin_port: int) -> Generator[Callable[[], int]]:
    """A real one; how many servers it finds healthy, -1 while it does not answer."""

    def healthy() -> int:
        try:
            text = admin(admin_port, f"/stats?filter=^cluster.{CLUSTER}.membership_healthy$")[1]
        except (OSError, http.client.HTTPException):
            return -1
        return int(text.rpartition(":")[2] or -1)

    words = [
        find_envoy(),
        "-c",
        str(config.resolve()),
        "--use-dynamic-base-id",
        "--concurrency",
        "1",
        "-l",
        "error",
    ]
    with running(words):
        yield healthy


def _port(server: Served) -> int:
    assert server.process.poll() is None, server.log.read_text()
    return next((line["port"] for line in server.lines() if "port" in line), 0)
