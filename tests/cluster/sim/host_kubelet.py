"""A node whose pods are processes of this host: with real signals, real output, and logs that the
API server can read and follow.

kwok's pods neither run nor write. This kubelet runs the first container of a pod as it is, without
an image, and knows no probes, volumes or restarts.
"""

import signal
import ssl
import subprocess
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from holdfast.clients.api import Api, Object
from holdfast.support.values import rfc3339
from holdfast.vocabulary.pools import Pool
from tests.cluster.sim import nodes, pods
from tests.cluster.sim.host import Host
from tests.cluster.sim.stages import MANAGED
from tests.support import HttpServer

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
POLL_S = 0.2


@dataclass
class Running:
    """A pod as a process, with what it has printed."""

    pod: Object
    process: subprocess.Popen[str]
    started: str
    lines: list[tuple[str, str]] = field(default_factory=list)
    """Time and text."""
    is_over: threading.Event = field(default_factory=threading.Event)
    """The process has ended, and all that it printed was read."""
    asked_s: float = 0.0
    """Monotonic time of SIGTERM; 0 before."""
    is_reported: bool = False


class HostKubelet:
    def __init__(self, api: Api, name: str, host: Host) -> None:
        self.api = api
        self.name = name
        self.address = host.address
        self.running: dict[str, Running] = {}
        host.authority.issue("host-kubelet")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(
            host.authority.certificate("host-kubelet"), host.authority.key("host-kubelet")
        )
        self.server = HttpServer((self.address, 0), make_handler(self))
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.server.daemon_threads = True
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self.server.serve_forever, daemon=True),
            threading.Thread(target=self._play, daemon=True),
        ]

    def start(self, pool: Pool, labels: dict[str, str]) -> None:
        body = nodes.node(pool, self.name, labels=labels)
        del body["metadata"]["annotations"][MANAGED]
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "lastHeartbeatTime": rfc3339(time.time()),
            "lastTransitionTime": rfc3339(time.time()),
        }
        body["status"] |= {
            "conditions": [ready],
            "addresses": [{"type": "InternalIP", "address": self.address}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self.server.server_port}},
        }
        self._renew()
        nodes.add(self.api, [body])
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._over.set()
        self.server.shutdown()
        self.server.server_close()
        for running in self.running.values():
            running.process.kill()
            running.process.wait()
        nodes.remove(self.api, [self.name])

    def _play(self) -> None:
        while not self._over.wait(POLL_S):
            self._renew()
            selector = f"spec.nodeName={self.name}"
            for pod in self.api.items("/api/v1/pods", fieldSelector=selector):
                with pods.if_there():
                    self._play_pod(pod)

    def _renew(self) -> None:
        """Tell the node controller that this node lives."""
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self.name, "namespace": "kube-node-lease"},
            "spec": {
                "holderIdentity": self.name,
                "leaseDurationSeconds": 40,
                "renewTime": f"{datetime.now(UTC):%FT%T.%fZ}",
            },
        }
        self.api.apply(f"{LEASES}/{self.name}", lease)

    def _play_pod(self, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        is_deleted = "deletionTimestamp" in pod["metadata"]
        running = self.running.get(uid)
        if running is None:
            if is_deleted:
                self.api.delete(pods.path(pod), gracePeriodSeconds=0)
            else:
                self._run(pod)
            return
        if is_deleted and not running.asked_s:
            running.asked_s = time.monotonic()
            running.process.send_signal(signal.SIGTERM)
        grace_s = pod["metadata"].get("deletionGracePeriodSeconds", 0)
        if running.asked_s and time.monotonic() - running.asked_s > grace_s:
            running.process.kill()
        if running.is_over.is_set():
            self._report_end(pod, running)

    def _run(self, pod: Object) -> None:
        container = pod["spec"]["containers"][0]
        process = subprocess.Popen(
            [*container["command"], *container.get("args", [])],
            env=pods.environment(pod),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        running = Running(pod, process, rfc3339(time.time()))
        self.running[pod["metadata"]["uid"]] = running
        threading.Thread(target=_read, args=(running,), daemon=True).start()
        state = {"running": {"startedAt": running.started}}
        self._write_status(pod, "Running", running, state)

    def _report_end(self, pod: Object, running: Running) -> None:
        if not running.is_reported:
            code = running.process.wait()
            end = {
                "exitCode": code if code >= 0 else 128 - code,
                "startedAt": running.started,
                "finishedAt": rfc3339(time.time()),
                "reason": "Completed" if code == 0 else "Error",
            }
            phase = "Failed" if code else "Succeeded"
            self._write_status(pod, phase, running, {"terminated": end})
            running.is_reported = True
        if running.asked_s:
            self.api.delete(pods.path(pod), gracePeriodSeconds=0)

    def _write_status(
        self,
        pod: Object,
        phase: str,
        running: Running,
        state: Object,
    ) -> None:
        container = pod["spec"]["containers"][0]
        status = {
            "name": container["name"],
            "image": container["image"],
            "imageID": "",
            "ready": "running" in state,
            "restartCount": 0,
            "state": state,
        }
        change = {
            "phase": phase,
            "startTime": running.started,
            "containerStatuses": [status],
        }
        self.api.merge(f"{pods.path(pod)}/status", {"status": change})

    def read_log(self, namespace: str, name: str, query: dict[str, str]) -> Iterator[str]:
        """Yield the lines of a log as a kubelet does, until the process has ended if followed."""
        attempts = [
            running
            for running in self.running.values()
            if running.pod["metadata"]["namespace"] == namespace
            and running.pod["metadata"]["name"] == name
        ]
        running = attempts[-1]
        position = 0
        if "tailLines" in query:
            position = max(0, len(running.lines) - int(query["tailLines"]))
        since = query.get("sinceTime", "")[:19]
        while True:
            has_ended = running.is_over.is_set()
            lines = running.lines[position:]
            position += len(lines)
            for written, text in lines:
                if written[:19] >= since:
                    yield text
            if has_ended or query.get("follow") != "true":
                return
            running.is_over.wait(POLL_S)


def _read(running: Running) -> None:
    assert running.process.stdout
    for line in running.process.stdout:
        running.lines.append((f"{datetime.now(UTC):%FT%T.%fZ}", line))
    running.process.stdout.close()
    running.process.wait()
    running.is_over.set()


def make_handler(kubelet: HostKubelet) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            _, kind, namespace, name, *_ = url.path.split("/")
            assert kind == "containerLogs", self.path
            self.send_response(200)
            self.send_header("Connection", "close")
            self.end_headers()
            for line in kubelet.read_log(namespace, name, dict(parse_qsl(url.query))):
                self.wfile.write(line.encode())
                self.wfile.flush()

        def log_message(self, *_: Any) -> None:
            """Print nothing for each request."""

    return Handler


@contextmanager
def running_on_host(
    api: Api,
    name: str,
    host: Host,
    pool: Pool,
    labels: dict[str, str],
) -> Generator[HostKubelet]:
    kubelet = HostKubelet(api, name, host)
    kubelet.start(pool, labels)
    try:
        yield kubelet
    finally:
        kubelet.stop()
