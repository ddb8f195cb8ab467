"""A Kubernetes API of the platform `example` that lists what a test gives it, over real HTTP: for commands that read."""

import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from holdfast.clients.api import Object
from holdfast.platform import Platform
from holdfast.platform.cluster import PATH
from tests import platforms

EXAMPLE = platforms.load("example")


@contextmanager
def serving(
    lists: dict[str, list[Object]],
    folder: Path,
    logs: dict[str, list[tuple[str, str]]] | None = None,
    *,
    platform: Platform | None = EXAMPLE,
    answers: dict[str, Object] | None = None,
) -> Generator[Path]:
    """Yields a kubeconfig. `lists`: items by path, such as `/apis/batch/v1/jobs`; `answers`: single objects by path.

    `logs`: by pod, what it printed and when. `platform`: whose document the cluster holds.
    """
    given = ({PATH: platforms.published(platform)} if platform else {}) | (answers or {})
    handler = type("Handler", (_Handler,), {"lists": lists, "logs": logs or {}, "answers": given})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield _kubeconfig(folder / "kubeconfig", server.server_port)
    finally:
        server.shutdown()
        server.server_close()


def _kubeconfig(path: Path, port: int) -> Path:
    body = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "c",
    }
    path.write_text(json.dumps(body))
    return path


class _Handler(BaseHTTPRequestHandler):
    lists: dict[str, list[Object]]
    logs: dict[str, list[tuple[str, str]]]
    answers: dict[str, Object]

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if path.endswith("/log"):
            self._answer(200, self._log(path.split("/")[-2], dict(parse_qsl(query))))
            return
        if path in self.answers:
            self._answer(200, json.dumps(self.answers[path]).encode())
            return
        items = self._items(self.path.partition("?")[0])
        found = {"metadata": {}, "items": items} if items is not None else {"message": "not found"}
        self._answer(404 if items is None else 200, json.dumps(found).encode())

    def _log(self, pod: str, query: dict[str, str]) -> bytes:
        """As a kubelet: in whole seconds, cut off in the middle of a line."""
        since = query.get("sinceTime", "").removesuffix("Z")
        lines = [f"{t} {line}\n" for t, line in self.logs[pod] if t[: len(since)] >= since]
        return "".join(lines).encode()[: int(query["limitBytes"])]

    def _answer(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _items(self, path: str) -> list[Object] | None:
        """Of one namespace too, as the real one selects them."""
        group, found, rest = path.partition("/namespaces/")
        if not found:
            return self.lists.get(path)
        namespace, _, plural = rest.partition("/")
        items = self.lists.get(f"{group}/{plural}")
        return None if items is None else [each for each in items if each["metadata"].get("namespace") == namespace]

    def log_message(self, format: str, *args: Any) -> None:
        pass
