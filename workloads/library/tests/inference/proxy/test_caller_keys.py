"""Tests of callers' keys and quotas, with a real Envoy and the files of a mounted Secret."""

import json
import sys
import threading
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from holdfast.inference.proxy.caller_keys import KeyFollower, make_filter
from holdfast.inference.proxy.endpoints import Endpoint, discovery, write
from holdfast.manifests.envoy import CLUSTER, bootstrap
from holdfast.vocabulary.serving import CALLER_HEADER, KEYS_FILE
from tests.support import HttpServer
from workloads.library.tests.inference.proxy.test_envoy_limits import make_proxy
from workloads.library.tests.inference.server.serving import Client, envoy, running
from workloads.library.tests.processes import until

KEY = "a-key-of-the-web-team"
OTHER_KEY = "a-key-of-the-search-team"


class Echo(BaseHTTPRequestHandler):
    """Answers with the headers of a request."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        headers = {}
        for name, value in self.headers.items():
            headers[name.lower()] = value
        body = json.dumps(headers).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def write_keys(folder: Path, **keys: str) -> None:
    folder.mkdir(exist_ok=True)
    for caller, key in keys.items():
        (folder / caller).write_text(key + "\n")


@contextmanager
def run_echo(folder: Path, quota_per_s: float = 0.0) -> Generator[tuple[Client, KeyFollower]]:
    server = HttpServer(("127.0.0.1", 0), Echo)
    threading.Thread(
        target=server.serve_forever,
        args=(0.01,),
        daemon=True,
    ).start()
    proxy = replace(
        make_proxy(folder),
        keys_file=str(folder / "keys.json"),
        quota_per_s=quota_per_s,
    )
    endpoint = Endpoint(address="127.0.0.1", port=server.server_port)
    write(Path(proxy.endpoints_file), discovery(CLUSTER, [endpoint]))
    follower = KeyFollower(folder / "secret", Path(proxy.keys_file))
    follower.update()
    config = folder / "envoy.json"
    config.write_text(json.dumps(bootstrap(proxy)))
    with envoy(config, proxy.admin_port) as count_healthy:
        until(lambda: count_healthy() == 1, "a healthy server")
        yield Client(proxy.port), follower
    server.shutdown()
    server.server_close()


def ask(client: Client, key: str = "", header: str = "x-api-key") -> int:
    headers = {header: key} if key else {}
    return client.request("GET", "/v1/models", headers=headers).status


@pytest.mark.process
def test_only_callers_with_a_key_are_let_in(tmp_path: Path) -> None:
    with run_echo(tmp_path) as (client, follower):
        assert ask(client, KEY) == 401, "there is no Secret yet"
        write_keys(tmp_path / "secret", web=KEY)
        follower.update()
        until(lambda: ask(client, KEY) == 200, "the first key")
        assert ask(client) == 401
        assert ask(client, OTHER_KEY) == 401
        assert ask(client, f"Bearer {KEY}", "authorization") == 200
        headers = {"x-api-key": KEY, CALLER_HEADER: "search"}
        received = client.request("GET", "/v1/models", headers=headers).json
        assert received[CALLER_HEADER] == "web"
        assert KEY not in json.dumps(received), "servers never learn the key"
        write_keys(tmp_path / "secret", search=OTHER_KEY)
        (tmp_path / "secret" / "web").unlink()
        follower.update()
        until(lambda: ask(client, OTHER_KEY) == 200, "the new key")
        assert ask(client, KEY) == 401
    log = (tmp_path / "envoy.log").read_text()
    assert KEY not in log
    assert OTHER_KEY not in log


def are_let_in(client: Client, valid_key: str, key: str) -> bool:
    """Returns whether a key is taken now, while another one always is."""
    assert ask(client, valid_key) == 200
    return ask(client, key) == 200


@pytest.mark.process
def test_a_key_is_replaced_without_a_refused_call(tmp_path: Path) -> None:
    write_keys(tmp_path / "secret", web=KEY)
    with run_echo(tmp_path, quota_per_s=1_000.0) as (client, follower):
        write_keys(tmp_path / "secret", **{"web.next": OTHER_KEY})
        follower.update()
        until(lambda: are_let_in(client, KEY, OTHER_KEY), "the new key")
        for key in (KEY, OTHER_KEY):
            answer = client.request("GET", "/v1/models", headers={"x-api-key": key})
            assert answer.json[CALLER_HEADER] == "web"
        (tmp_path / "secret" / "web").unlink()
        follower.update()
        until(lambda: not are_let_in(client, OTHER_KEY, KEY), "the end of the old key")


@pytest.mark.process
def test_a_caller_beyond_its_quota_is_refused_and_others_are_not(tmp_path: Path) -> None:
    write_keys(tmp_path / "secret", web=KEY, search=OTHER_KEY)
    with run_echo(tmp_path, quota_per_s=0.05) as (client, _):
        statuses = Counter(ask(client, KEY) for _ in range(10))
        assert statuses == {200: 1, 429: 9}
        headers = {"x-api-key": KEY}
        refusal = client.request("GET", "/v1/models", headers=headers)
        assert refusal.headers["retry-after"] == "1"
        assert ask(client, OTHER_KEY) == 200


@pytest.mark.process
def test_the_watcher_writes_the_keys_next_to_the_endpoints(tmp_path: Path) -> None:
    write_keys(tmp_path / "secret", web=KEY)
    out = tmp_path / "servers.json"
    command = [sys.executable, "-m", "holdfast", "serve", "endpoints"]
    command += ["--service", "server"]
    command += ["--namespace", "serving"]
    command += ["--out", str(out)]
    command += ["--keys", str(tmp_path / "secret")]
    keys_file = out.with_name(KEYS_FILE)
    with running(command):
        until(keys_file.exists, "the keys, also without an API server")
    keys = json.loads(keys_file.read_text())
    assert keys == make_filter({"web": KEY})


def test_unsafe_keys_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_keys(
        tmp_path / "secret",
        web=KEY,
        copy=KEY,
        short="hunter2",
    )
    write_keys(tmp_path / "secret" / "..data", web=OTHER_KEY)
    out = tmp_path / "keys.json"
    follower = KeyFollower(tmp_path / "secret", out)
    for _ in range(2):
        follower.update()
    assert json.loads(out.read_text()) == make_filter({"copy": KEY})
    assert KEY not in caplog.text
    assert "hunter2" not in caplog.text
    warnings = caplog.text.count("short: a key has at least")
    assert warnings == 1, "only when the Secret has changed"


def test_a_failed_write_is_repeated(tmp_path: Path) -> None:
    write_keys(tmp_path / "secret", web=KEY)
    out = tmp_path / "later" / "keys.json"
    follower = KeyFollower(tmp_path / "secret", out)
    follower.update()
    out.parent.mkdir()
    follower.update()
    assert json.loads(out.read_text()) == make_filter({"web": KEY})


def test_without_keys_every_call_is_refused() -> None:
    (resource,) = make_filter({})["resources"]
    assert resource["typed_config"]["credentials"] == []
