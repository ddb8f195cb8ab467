"""A real HTTP server on this machine that answers as a test says."""

import json
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

from tests.support import HttpServer

Answer = Callable[[str, Mapping[str, str], bytes], tuple[int, object]]
"""(path with query, headers, body) -> status and content: bytes as they are, else JSON."""


@contextmanager
def answering(answer: Answer) -> Generator[str]:
    """Yields the server's address: `http://127.0.0.1:PORT`. All methods are answered alike."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            # `Message` finds a header however it is spelled, a dict would not.
            status, value = answer(self.path, self.headers, body)  # type: ignore[arg-type]
            data = value if isinstance(value, bytes) else json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_PATCH = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    http = HttpServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_port}"
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
