"""Server processes behind a real Envoy, with endpoints that move as late as in a cluster.

Readiness is probed every second; what a probe changes reaches the proxy `ENDPOINT_DELAY_S` later. A
Spot notice is SIGTERM and nothing else: the kubelet probes the pod no more, so its endpoint stays
until it has ended. At the window's end whatever is left is killed.
"""

import contextlib
import http.client
import json
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.drill.errors import DrillError
from holdfast.drill.pods import Pod, owned
from holdfast.inference.proxy.endpoints import Endpoint, discovery, write
from holdfast.manifests.envoy import CLUSTER, Proxy, bootstrap
from holdfast.support.distribution import install_command
from holdfast.support.errors import Unjudged
from holdfast.vocabulary.exit_codes import EXIT_KILLED, EXIT_PREEMPTED
from holdfast.vocabulary.lifecycle import DEFAULT_WINDOW
from holdfast.vocabulary.serving import PROBE_PERIOD_S, PROBE_TIMEOUT_S, READY_PATH, drain_budget

HOST = "127.0.0.1"
ENDPOINT_DELAY_S = 1.0  # API server, EndpointSlice, proxy: as late as the contract assumes
_START_S = 120.0
_POLL_S = 0.05
_USUAL = (None, EXIT_PREEMPTED, EXIT_KILLED)

Command = Callable[[int], Sequence[str]]
"""Port -> what a replica runs."""


def holdfast_server(predictor: str, *options: str) -> Command:
    serve = (
        sys.executable,
        "-m",
        "holdfast",
        "serve",
        "run",
        "--set",
        f"host={HOST}",
        "--predictor",
        predictor,
    )
    return lambda port: [
        *serve,
        "--port",
        str(port),
        *options,
    ]


@dataclass(eq=False)
class Replica:
    pod: Pod
    port: int
    ready: bool = False
    """As its endpoint says."""
    noticed: bool = False
    """No probe takes its endpoint out (infra/decisions/0049)."""
    leaving: bool = False
    """Hit already."""

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(address=HOST, port=self.port)

    def probe(self, path: str = READY_PATH) -> bool:
        try:
            return get(self.port, path, PROBE_TIMEOUT_S)[0] == 200
        except (OSError, http.client.HTTPException):
            return False


@dataclass(kw_only=True)
class Fleet:
    folder: Path
    owner: str
    command: Command
    window_s: float = float(DEFAULT_WINDOW.pod_s)
    endpoint_delay_s: float = ENDPOINT_DELAY_S
    exits: list[int] = field(default_factory=list[int])
    replicas: list[Replica] = field(default_factory=list[Replica])
    port: int = 0
    admin_port: int = 0
    metrics_port: int = 0
    _pods: list[Pod] = field(default_factory=list[Pod])
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _ended: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list[threading.Thread])

    @property
    def endpoints_file(self) -> Path:
        return self.folder / "endpoints" / "servers.json"

    @contextmanager
    def running(self, count: int) -> Generator["Fleet"]:
        """`count` ready replicas behind a proxy that answers."""
        self.endpoints_file.parent.mkdir(parents=True, exist_ok=True)
        with owned(self.owner):
            try:
                for replica in [self.start() for _ in range(count)]:
                    self.until(
                        lambda r=replica: r.ready, f"replica on port {replica.port} to be ready"
                    )
                self.start_proxy()
                yield self
            finally:
                self._ended.set()
                for thread in self._threads:
                    thread.join(self.window_s)
                for pod in self._pods:
                    pod.kill()

    def start(self) -> Replica:
        port = free_port()
        replica = Replica(self._pod(self.command(port), f"server-{port}"), port)
        with self._lock:
            self.replicas.append(replica)
        self._in_background(lambda: self._probe(replica))
        return replica

    def _pod(self, command: Sequence[str], log: str) -> Pod:
        pod = Pod(command, log=self.folder / "logs" / f"{log}.log", owner=self.owner)
        self._pods.append(pod)
        return pod

    def start_proxy(self) -> None:
        self.port = free_port()
        self.admin_port = free_port()
        self.metrics_port = free_port()
        config = self.folder / "envoy.json"
        config.write_text(json.dumps(bootstrap(self._proxy())))
        # Two of a machine would else share memory by this number.
        command = [
            find_envoy(),
            "-c",
            str(config),
            "--use-dynamic-base-id",
            "--concurrency",
            "1",
            "-l",
            "warning",
        ]
        self.proxy = self._pod(command, "envoy")
        self.until(self._served, "the proxy to serve")

    def _proxy(self) -> Proxy:
        return Proxy(
            endpoints_file=str(self.endpoints_file.resolve()),
            longest_request_s=drain_budget(self.window_s).longest_request_s,
            host=HOST,
            port=self.port,
            admin_port=self.admin_port,
            metrics_port=self.metrics_port,
        )

    def _served(self) -> bool:
        if self.proxy.exit_code is not None:
            raise DrillError(f"the proxy ended:\n{self.proxy.tail()}")
        with contextlib.suppress(OSError, http.client.HTTPException):
            return admin(self.admin_port, "/ready")[0] == 200 and self.stat(
                "membership_healthy"
            ) == len(self.replicas)
        return False

    def _probe(self, replica: Replica) -> None:
        while not self._ended.wait(PROBE_PERIOD_S if replica.ready else _POLL_S):
            if replica.pod.exit_code is not None:
                self._ended.wait(self.endpoint_delay_s if replica.ready else 0)
                self._change(replica, False)
                return
            if not replica.noticed and (ready := self._is_ready(replica)) != replica.ready:
                # Before the proxy runs there is nothing to be late for.
                late_s = self.endpoint_delay_s if replica.ready or self.port else 0
                if not self._ended.wait(late_s):
                    self._change(replica, ready)

    def _is_ready(self, replica: Replica) -> bool:
        return replica.probe()

    def _change(self, replica: Replica, ready: bool) -> None:
        with self._lock:
            replica.ready = ready
            endpoints = sorted(r.endpoint for r in self.replicas if r.ready)
            write(self.endpoints_file, discovery(CLUSTER, endpoints))

    def evict(self, replica: Replica) -> None:
        """A Spot notice: SIGTERM to the pod, and nothing else. Returns at once."""
        replica.noticed = replica.leaving = True
        self._in_background(lambda: self._end(replica))

    def kill(self, replica: Replica) -> None:
        """Gone without notice; its endpoint stays until the probe misses it. Returns at once."""
        replica.leaving = True
        self._in_background(lambda: (replica.pod.kill(), self._replace(replica)))

    def _end(self, replica: Replica) -> None:
        code = replica.pod.preempt(self.window_s)
        with self._lock:
            self.exits.append(code)
        self._replace(replica)

    def _replace(self, replica: Replica) -> None:
        while replica.ready and not self._ended.wait(_POLL_S):
            pass  # only its probe takes the endpoint out
        # In one: between them a fleet with a server less would look settled.
        with self._lock:
            self.replicas.remove(replica)
            if not self._ended.is_set():
                self.start()

    def _in_background(self, work: Callable[[], object]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        self._threads.append(thread)
        thread.start()

    # -- what is seen --

    def ready(self) -> list[Replica]:
        with self._lock:
            return [replica for replica in self.replicas if replica.ready and not replica.leaving]

    def until(self, condition: Callable[[], object], what: str) -> None:
        ends = time.monotonic() + _START_S
        while not condition():
            if time.monotonic() > ends:
                raise DrillError(f"waited {_START_S:.0f} s without result for {what}")
            broken = [replica for replica in self.replicas if replica.pod.exit_code not in _USUAL]
            if broken:
                raise DrillError(f"a replica ended by itself:\n{broken[0].pod.tail()}")
            time.sleep(_POLL_S)

    def stat(self, name: str) -> int:
        """A counter of the proxy about its servers, as `upstream_rq_retry`."""
        text = admin(self.admin_port, f"/stats?filter=^cluster.{CLUSTER}.{name}$")[1]
        return int(text.rpartition(":")[2] or 0)

    def settle(self) -> None:
        """Until every drain has ended and every replacement is ready."""
        self.until(
            lambda: len(self.ready()) == len(self.replicas), "all replicas to be ready again"
        )

    def answered(self) -> int:
        """Predictions that servers answered with 200, by their last log lines and the metrics of
        those that run.
        """
        self.settle()
        lines = [
            line
            for log in (self.folder / "logs").glob("server-*.log")
            for line in log.read_text().splitlines()
        ]
        gone = sum(
            json.loads(line).get("answered", {}).get("200", 0)
            for line in lines
            if line.startswith("{")
        )
        return gone + sum(
            _answered(replica.port) for replica in self.replicas if replica.pod.exit_code is None
        )


def _answered(port: int) -> int:
    text = admin(port, "/metrics")[1]
    found = (
        line
        for line in text.splitlines()
        if line.startswith('holdfast_server_requests_total{code="200"}')
    )
    return int(float(next(found, "0 0").split()[-1]))


def get(port: int, path: str, timeout_s: float) -> tuple[int, str]:
    connection = http.client.HTTPConnection(HOST, port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def admin(port: int, path: str) -> tuple[int, str]:
    return get(port, path, 10)


def free_port(count: int = 1) -> int:
    """The first of `count` in a row."""
    while True:
        with ExitStack() as opened:
            probes = [opened.enter_context(socket.socket()) for _ in range(count)]
            probes[0].bind((HOST, 0))
            first: int = probes[0].getsockname()[1]
            with suppress(OSError, OverflowError):  # one of them is taken: try others
                for number, probe in enumerate(probes[1:], 1):
                    probe.bind((HOST, first + number))
                return first


def find_envoy() -> str:
    """On PATH or in the folder of this interpreter."""
    own = Path(sys.executable).with_name("envoy")
    found = shutil.which("envoy") or (str(own) if own.exists() else "")
    if not found:
        raise Unjudged(f"no envoy on PATH; run {install_command('drill')}")
    # a wheel of the wrong platform fails here
    subprocess.run([found, "--version"], check=True, capture_output=True)
    return found
