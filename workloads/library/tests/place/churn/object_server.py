"""The few calls of Cloud Storage that the churn history makes, in this process, with generations."""

import json
import threading
from email.parser import BytesParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

FETCH = "_fetch_background"


class ObjectServer:
    def __init__(self) -> None:
        self.objects: dict[str, tuple[int, bytes]] = {}
        """Name -> (generation, content)."""
        self.refuse = 0
        """Status of every answer, unless 0."""
        handler = type("Handler", (_Handler,), {"objects": self})
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=self.http.serve_forever, args=(0.05,), daemon=True).start()

    def bucket(self) -> storage.Bucket:
        options = {"api_endpoint": f"http://127.0.0.1:{self.http.server_port}"}
        client = storage.Client(project="acme-ai", credentials=AnonymousCredentials(), client_options=options)
        return client.bucket("history")

    def stop(self) -> None:
        # The client asks for the bucket in a thread of its own. Without an answer it would retry for minutes, and
        # its pauses draw from `random`, which breaks whatever property test runs by then.
        for thread in [thread for thread in threading.enumerate() if FETCH in thread.name]:
            thread.join(30)
            assert not thread.is_alive()
        self.http.shutdown()
        self.http.server_close()


class _Handler(BaseHTTPRequestHandler):
    objects: ObjectServer

    def do_GET(self) -> None:
        if urlsplit(self.path).path.endswith("/b/history"):
            return self._answer(200, {"name": "history", "projectNumber": "1", "location": "US"})
        if self.objects.refuse:
            return self._answer(self.objects.refuse, {"error": {"message": "refused"}})
        url = urlsplit(self.path)
        if url.path.endswith("/o"):
            prefix = parse_qs(url.query).get("prefix", [""])[0]
            names = [name for name in self.objects.objects if name.startswith(prefix)]
            return self._answer(200, {"items": [{"name": name} for name in names]})
        found = self.objects.objects.get(unquote(url.path.rpartition("/o/")[2]))
        if found is None:
            return self._answer(404, {"error": {"message": "no such object"}})
        return self._answer(200, found[1], found[0])

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.objects.refuse:
            return self._answer(self.objects.refuse, {"error": {"message": "refused"}})
        wanted = int(parse_qs(urlsplit(self.path).query)["ifGenerationMatch"][0])
        head = f"content-type: {self.headers['content-type']}\r\n\r\n".encode()
        meta, content = (part.get_payload(decode=True) for part in BytesParser().parsebytes(head + body).get_payload())  # type: ignore[union-attr]
        name = json.loads(meta)["name"]
        generation = self.objects.objects.get(name, (0, b""))[0]
        if generation != wanted:
            return self._answer(412, {"error": {"message": "generation"}})
        self.objects.objects[name] = generation + 7, content
        return self._answer(200, {"name": name, "generation": str(generation + 7)})

    def _answer(self, status: int, body: Any, generation: int = 0) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        if generation:
            self.send_header("x-goog-generation", str(generation))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass
