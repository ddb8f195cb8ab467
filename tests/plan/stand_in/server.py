"""One HTTP server for all worlds: `http://127.0.0.1:PORT/WORLD/API/...`."""

import json
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.plan.stand_in import definitions
from tests.plan.stand_in.world import Refusal, World
from tests.support import HttpServer

CLOCK = "_clock"
# The provider's variable of each API -> the document, and the rest of its usual base.
ENDPOINTS = {
    "ARTIFACT_REGISTRY": ("artifactregistry", "v1/"),
    "BINARY_AUTHORIZATION": ("binaryauthorization", "v1/"),
    "BILLING_BUDGETS": ("billingbudgets", "v1/"),
    "COMPUTE": ("compute", "compute/v1/"),
    "CONTAINER": ("container", "v1/"),
    "DNS": ("clouddns", "_/dns/v1/"),
    "IAM_BETA": ("iam", "v1/"),
    "KMS": ("cloudkms", "v1/"),
    "LOGGING": ("logging", "v2/"),
    "MONITORING": ("monitoring", ""),
    "PUBSUB": ("pubsub", "v1/"),
    "RESOURCE_MANAGER": ("cloudresourcemanager", "v1/"),
    "SERVICE_NETWORKING": ("servicenetworking", "v1/"),
    "SERVICE_USAGE": ("serviceusage", "v1/"),
    "SQL": ("sqladmin", "sql/v1beta4/"),
    "STORAGE": ("storage", "storage/v1/"),
}


@contextmanager
def serving(worlds: Mapping[str, World]) -> Generator[str]:
    """The server's address while it runs."""

    class Handler(_Handler):
        rooms = worlds

    server = HttpServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def endpoints(address: str, world: str) -> dict[str, str]:
    """Variables that send the provider's calls here."""
    return {
        f"GOOGLE_{name}_CUSTOM_ENDPOINT": f"{address}/{world}/{api}/{base}"
        for name, (api, base) in ENDPOINTS.items()
    }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    rooms: Mapping[str, World]

    def _answer(self) -> None:
        # The provider's client of DNS takes `/dns/` out of its endpoint wherever it is.
        url = urlsplit(self.path.replace("/clouddns/_/", "/dns/").replace("/clouddns/", "/dns/"))
        _, room, api, path = url.path.split("/", 3)
        if api == CLOCK:
            self.rooms[room].let_pass(float(path))
            self._send(200, {})
            return
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body: dict[str, Any] = json.loads(raw) if raw else {}
        # The two versions of one API share an endpoint.
        api = "monitoring-dashboards" if api == "monitoring" and path.startswith("v1/") else api
        try:
            call = definitions.find(api, self.command, path, parse_qs(url.query), body, unquote)
            code = 200
            token = str(self.headers.get("Authorization", "")).removeprefix("Bearer ")
            answer = self.rooms[room].answer(
                self.command,
                api,
                unquote(path),
                call,
                token,
            )
        except Refusal as refusal:
            code = refusal.code
            answer = refusal.body
        self._send(code, answer)

    def _send(self, code: int, answer: Any) -> None:
        data = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer

    def log_message(self, format: str, *args: object) -> None:
        pass
