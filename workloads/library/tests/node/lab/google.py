"""Substitutes for Google's services that pods of the lab reach: a bucket, and the database behind
its proxy.
"""

import json
import socket
import socketserver
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

from holdfast.clients.api import Object
from holdfast.support.object_names import COMMIT_OBJECT
from tests.cluster.sim.processes import Processes, free_ports
from tests.tools.build import TOOLS, build
from workloads.library.tests.node.lab.lab import Lab

POSTGRES = 5432


@dataclass(frozen=True, kw_only=True)
class Bucket:
    url: str
    """URL of the storage service."""
    name: str

    def names(self, prefix: str) -> list[str]:
        """Returns the names of the commits below a prefix."""
        items = self._get(f"o?prefix={quote(prefix, safe='')}").get("items", [])
        names: list[str] = []
        for item in items:
            if item["name"].endswith(COMMIT_OBJECT):
                names.append(item["name"])
        return names

    def read(self, name: str) -> Object:
        """Returns the JSON of an object; an empty one where there is none."""
        try:
            return self._get(f"o/{quote(name, safe='')}?alt=media")
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            return {}

    def _get(self, path: str) -> Object:
        with urllib.request.urlopen(
            f"{self.url}/storage/v1/b/{self.name}/{path}", timeout=10
        ) as answer:
            return json.load(answer)


@contextmanager
def bucket(lab: Lab, name: str) -> Generator[Bucket]:
    """Yields an empty bucket, which pods reach by the bridge."""
    (port,) = free_ports(1, lab.bridge.address)
    processes = Processes(lab.folder / "google")
    processes.start(
        "storage",
        [
            build(TOOLS["gcsemulator"]),
            "-host",
            lab.bridge.address,
            "-port",
            str(port),
        ],
    )
    try:
        processes.wait_until("storage answers", lambda: _listens(lab.bridge.address, port))
        url = f"http://{lab.bridge.address}:{port}"
        body = json.dumps({"name": name}).encode()
        request = urllib.request.Request(
            f"{url}/storage/v1/b?project=p", body, {"Content-Type": "application/json"}
        )
        urllib.request.urlopen(request, timeout=10).close()
        yield Bucket(url=url, name=name)
    finally:
        processes.stop()


@contextmanager
def database(address: str, uri: str) -> Generator[str]:
    """Serves at `address` a database that has only a socket file, and yields its URI there.

    The server takes the caller's word for its user, as behind the proxy.
    """
    parsed = urlsplit(uri)
    folder = Path(parse_qs(parsed.query)["host"][0])
    target = str(folder / f".s.PGSQL.{POSTGRES}")

    def connect() -> socket.socket:
        server = socket.socket(socket.AF_UNIX)
        server.connect(target)
        return server

    with forwarding((address, POSTGRES), connect):
        yield f"postgresql://{parsed.username}@{address}:{POSTGRES}{parsed.path}?sslmode=disable"


@contextmanager
def listening(listener: socketserver.BaseServer) -> Generator[None]:
    """Serves in a thread until the end of the block."""
    with listener:
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield
        finally:
            listener.shutdown()
            thread.join()


@contextmanager
def forwarding(address: tuple[str, int], connect: Callable[[], socket.socket]) -> Generator[None]:
    """Passes each connection to `address` on to one that `connect` opens."""

    class Forward(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with connect() as server:
                back = threading.Thread(
                    target=_copy,
                    args=(server, self.request),
                    daemon=True,
                )
                back.start()
                _copy(self.request, server)
                back.join()

    class Listener(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True
        request_queue_size = 128

    with listening(Listener(address, Forward)):
        yield


def _copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while piece := source.recv(1 << 16):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        return  # the other side has gone


def _listens(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=2).close()
    except OSError:
        return False
    return True
