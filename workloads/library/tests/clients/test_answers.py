"""A cluster that cannot be asked, or answers with anything but what was asked, ends each command in
the same way: exit code 3, what was got, and the fix.
"""

import copy
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from urllib3 import HTTPResponse

from holdfast.clients import kubeconfig
from holdfast.clients.api import Api, ApiError
from holdfast.support.errors import Unjudged
from holdfast.vocabulary.environment import ENV_JOB, ENV_PLATFORM, ENV_TRACEBACK
from holdfast.vocabulary.exit_codes import EXIT_NOT_JUDGED
from tests.support import ROOT, HttpServer
from workloads.library.tests.clients.all_commands import COMMANDS

pytestmark = pytest.mark.process
LOGIN_PAGE = "<!doctype html><html><head><title>Sign in</title></head></html>"
FORBIDDEN = 'configmaps "holdfast-platform" is forbidden: User "ada" cannot get resource'
TOKEN = "token-that-nobody-may-see"
ANSWERS: dict[str, tuple[int, str]] = {
    "401": (401, json.dumps({"kind": "Status", "message": "Unauthorized"})),
    "403": (403, json.dumps({"kind": "Status", "message": FORBIDDEN})),
    "429": (429, json.dumps({"kind": "Status", "message": "too many requests"})),
    "500": (500, json.dumps({"kind": "Status", "message": "etcdserver: leader changed"})),
    "502": (502, "<html><title>502 Bad Gateway</title></html>"),
    "login page": (200, LOGIN_PAGE),
    "login page 404": (404, LOGIN_PAGE),
    "list": (200, "[]"),
    "text": (200, "welcome"),
    "closed": (0, ""),
}
EXPECTED = {
    "401": "the cluster does not accept your credentials",
    "403": FORBIDDEN,
    "429": "429: too many requests",
    "500": "500: etcdserver: leader changed",
    "502": "502: an HTML page, 502 Bad Gateway",
    "login page": "an HTML page, Sign in",
    "login page 404": "an HTML page, Sign in",
    "list": "is no Kubernetes API",
    "text": "got:     welcome",
    "closed": "the connection ended before the answer",
    "unreachable": "connection refused",
    "no url": "no cluster in ",
    "no port": "the server's address is not a URL",
    "not yaml": "got:     not YAML",
    "not a kubeconfig": "no cluster in ",
    "empty": "no cluster in ",
    "no context": "no cluster in ",
    "no plugin": "no-such-auth-plugin",
    "no certificate": "no cluster in ",
}


class Handler(BaseHTTPRequestHandler):
    """Answers by the first part of the path, which the kubeconfig's server names."""

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        status, text = ANSWERS[self.path.split("/")[1].replace("-", " ")]
        if not status:
            self.close_connection = True
            return
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        if status == 429:
            self.send_header("Retry-After", "0")
        self.end_headers()
        self.wfile.write(text.encode())

    do_POST = do_PATCH = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass


def make_kubeconfig(server: str, user: dict[str, Any], **cluster: object) -> str:
    body = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": server} | cluster}],
        "users": [{"name": "c", "user": user}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
    }
    return json.dumps(body)


@pytest.fixture(scope="module")
def server() -> Generator[str]:
    http = HttpServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_port}"
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


@pytest.fixture(scope="module")
def closed_port() -> Generator[int]:
    # Bound and not listening: no other process can take the port meanwhile.
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.fixture(scope="module")
def outcomes(
    server: str, closed_port: int, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, tuple[int, str]]]:
    folder = tmp_path_factory.mktemp("answers")
    user = {"token": TOKEN}
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "command": "no-such-auth-plugin",
        "interactiveMode": "Never",
    }
    texts: dict[str, str] = {}
    for name in ANSWERS:
        texts[name] = make_kubeconfig(f"{server}/{name.replace(' ', '-')}", user)
    texts |= {
        "unreachable": make_kubeconfig(f"http://127.0.0.1:{closed_port}", user),
        "no url": make_kubeconfig("http://[", user),
        "no port": make_kubeconfig("http://127.0.0.1:999999", user),
        "not yaml": f"users: [{TOKEN}: {{",
        "not a kubeconfig": json.dumps([TOKEN]),
        "empty": "",
        "no context": json.dumps({"apiVersion": "v1", "kind": "Config", "users": [user]}),
        "no plugin": make_kubeconfig(f"{server}/401", {"exec": plugin}),
        "no certificate": make_kubeconfig(
            server.replace("http:", "https:"), user, **{"certificate-authority": "/no/such.crt"}
        ),
    }
    for name, text in texts.items():
        (folder / f"{name}.kubeconfig").write_text(text)
    variables = {"KUBECONFIG": str(folder / "current"), "PYTHONPATH": str(ROOT)}
    for name, value in os.environ.items():
        if name not in (ENV_PLATFORM, ENV_JOB, ENV_TRACEBACK, "KUBECONFIG"):
            variables.setdefault(name, value)
    module = "workloads.library.tests.clients.all_commands"
    done = subprocess.run(
        [sys.executable, "-m", module, str(folder)],
        cwd=ROOT,
        env=variables,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("answer", EXPECTED)
def test_command_ends_with_reason_and_fix(
    outcomes: dict[str, dict[str, tuple[int, str]]], answer: str, command: str
) -> None:
    code, text = outcomes[answer][command]
    assert code == EXIT_NOT_JUDGED, text
    assert text.startswith("could not judge: "), text
    assert "\n  fix:     " in text, text
    assert EXPECTED[answer] in text
    for words in ("internal error", "Traceback", "urllib3", "HTTPConnection", "object at", TOKEN):
        assert words not in text, text


def test_table_holds_every_answer(outcomes: dict[str, dict[str, tuple[int, str]]]) -> None:
    assert outcomes.keys() == EXPECTED.keys()


def test_server_cannot_delay_a_command_for_long() -> None:
    retries = kubeconfig.make_configuration().retries
    assert retries.get_retry_after(HTTPResponse(headers={"Retry-After": "3600"})) == 5
    assert retries.get_retry_after(HTTPResponse(headers={"Retry-After": "1"})) == 1
    assert retries.get_retry_after(HTTPResponse()) is None


def test_error_crosses_process_borders() -> None:
    error = copy.copy(ApiError(403, "no"))  # by the method that pickle uses
    assert error.status == 403
    assert str(error) == "403: no"
    assert error.lines() == ApiError(403, "no").lines()


def test_a_kubeconfig_that_is_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unjudged, match="no cluster in ") as refused:
        Api(tmp_path)
    # Not every command that reads a cluster has an option for it.
    assert refused.value.fix
    assert "set KUBECONFIG" in refused.value.fix
    assert "--kubeconfig" not in refused.value.fix
