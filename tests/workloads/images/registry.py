"""Serves a registry on this host for builders that push and nodes that pull.

It is the distribution API over a folder of blobs. Source: OCI distribution specification 1.1, pull
and push.
"""

import hashlib
import json
import re
import shutil
import threading
import uuid
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from tests.support import HttpServer

CHUNK = 1 << 20


class Registry(HttpServer):
    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        for name in ("blobs", "uploads", "tags"):
            (folder / name).mkdir(parents=True, exist_ok=True)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server_port}"

    def blob(self, digest: str) -> Path:
        return self.folder / "blobs" / digest.partition(":")[2]

    def tag(self, name: str, reference: str) -> Path:
        return self.folder / "tags" / f"{name}:{reference}".replace("/", "_")

    def add(self, name: str, reference: str, manifest: bytes) -> str:
        digest = f"sha256:{hashlib.sha256(manifest).hexdigest()}"
        self.blob(digest).write_bytes(manifest)
        self.tag(name, reference).write_text(digest)
        return digest


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def registry(self) -> Registry:
        assert isinstance(self.server, Registry)
        return self.server

    def do_GET(self) -> None:
        self._send_stored(urlsplit(self.path).path)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        folder = urlsplit(self.path).path.rstrip("/")
        self._answer(202, Location=f"{folder}/{uuid.uuid4().hex}")

    def do_PATCH(self) -> None:
        upload = self._upload()
        with upload.open("ab") as target:
            for piece in self._body():
                target.write(piece)
        self._answer(202, Location=self.path, Range=f"0-{upload.stat().st_size - 1}")

    def do_PUT(self) -> None:
        match = re.fullmatch(r"/v2/(.+)/manifests/(.+)", urlsplit(self.path).path)
        if match:
            digest = self.registry.add(match[1], match[2], b"".join(self._body()))
            return self._answer(201, **{"Docker-Content-Digest": digest})
        with self._upload().open("ab") as target:
            for piece in self._body():
                target.write(piece)
        (digest,) = parse_qs(urlsplit(self.path).query)["digest"]
        self._upload().replace(self.registry.blob(digest))
        return self._answer(201, **{"Docker-Content-Digest": digest})

    def _upload(self) -> Path:
        return self.registry.folder / "uploads" / urlsplit(self.path).path.rpartition("/")[2]

    def _body(self) -> Iterator[bytes]:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            remaining = int(self.headers.get("Content-Length", 0))
            while remaining and (piece := self.rfile.read(min(remaining, CHUNK))):
                remaining -= len(piece)
                yield piece
            return
        while size := int(self.rfile.readline(), 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def _send_stored(self, path: str) -> None:
        match = re.fullmatch(r"/v2/(.+)/(blobs|manifests)/(.+)", path)
        if match is None:
            return self._answer(200 if path == "/v2/" else 404)
        tag = self.registry.tag(match[1], match[3])
        if match[3].startswith("sha256:"):
            digest = match[3]
        else:
            digest = tag.read_text() if tag.exists() else ""
        blob = self.registry.blob(digest)
        if not digest or not blob.is_file():
            return self._answer(404)
        kind = "application/octet-stream"
        if match[2] == "manifests":
            kind = json.loads(blob.read_bytes())["mediaType"]
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(blob.stat().st_size))
        self.send_header("Docker-Content-Digest", digest)
        self.end_headers()
        if self.command == "GET":
            with blob.open("rb") as source:
                shutil.copyfileobj(source, self.wfile, CHUNK)
        return None

    def _answer(self, status: int, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving(registry: Registry) -> Generator[Registry]:
    thread = threading.Thread(target=registry.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield registry
    finally:
        registry.shutdown()
        registry.server_close()
        thread.join()
