"""Tests of a caller's quota over several proxies, each of which is a real Envoy."""

import json
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from holdfast.inference.proxy.caller_keys import KeyFollower
from holdfast.inference.proxy.endpoints import Endpoint, Follower, discovery, write
from holdfast.manifests.envoy import CLUSTER, bootstrap
from holdfast.vocabulary.serving import KEYS_FILE, PROXIES, PROXIES_FILE
from tests.support import HttpServer
from workloads.library.tests.http_server import answering
from workloads.library.tests.inference.proxy.test_caller_keys import Echo, ask, write_keys
from workloads.library.tests.inference.proxy.test_endpoints import (
    load_addresses,
    make_entry,
    make_slice,
)
from workloads.library.tests.inference.proxy.test_envoy_limits import make_proxy
from workloads.library.tests.inference.server.serving import Client, admin, envoy, running
from workloads.library.tests.processes import until

MOST_PROXIES = 4
ONE_IN_HOURS = 0.0001
"""A quota of which nothing comes back during a test."""
CALLERS = {
    "early": "a-key-of-the-early-caller",
    "both": "a-key-of-the-caller-of-both",
    "four": "a-key-of-the-caller-of-four",
    "late": "a-key-of-the-late-caller",
}


@contextmanager
def run_proxies(folder: Path, quota_per_s: float) -> Generator[tuple[list[Client], "Members"]]:
    """Runs two proxies before one server, whose files are in one folder."""
    write_keys(folder / "secret", **CALLERS)
    KeyFollower(folder / "secret", folder / KEYS_FILE).update()
    server = HttpServer(("127.0.0.1", 0), Echo)
    threading.Thread(
        target=server.serve_forever,
        args=(0.01,),
        daemon=True,
    ).start()
    endpoint = Endpoint(address="127.0.0.1", port=server.server_port)
    members = Members(folder / PROXIES_FILE)
    members.set()
    with ExitStack() as stack:
        clients: list[Client] = []
        for number in range(2):
            proxy = replace(
                make_proxy(folder),
                keys_file=str(folder / KEYS_FILE),
                quota_per_s=quota_per_s,
                proxies_file=str(folder / PROXIES_FILE),
                most_proxies=MOST_PROXIES,
            )
            write(Path(proxy.endpoints_file), discovery(CLUSTER, [endpoint]))
            config = folder / f"envoy-{number}.json"
            config.write_text(json.dumps(bootstrap(proxy)))
            count_healthy = stack.enter_context(envoy(config, proxy.admin_port))
            wait_for_a_server(count_healthy)
            members.admin_ports.append(proxy.admin_port)
            clients.append(Client(proxy.port))
        members.wait()
        yield clients, members
    server.shutdown()
    server.server_close()


def wait_for_a_server(count_healthy: Callable[[], int]) -> None:
    until(lambda: count_healthy() == 1, "a healthy server")


class Members:
    """The proxies that share quotas, as the watcher of each proxy writes them."""

    def __init__(self, out: Path) -> None:
        self.admin_ports: list[int] = []
        self._count = 0
        self._follower = Follower(
            namespace="serving",
            service="scores",
            cluster=PROXIES,
            out=out,
        )
        self._follower.keep_only(set())
        self._follower.ready.set()

    def set(self, *names: str) -> None:
        """Changes the endpoints of the Service that clients call, and waits for the proxies."""
        entries = [make_entry(name) for name in resolve(names)]
        self._count = len(names)
        self._follower.take([("MODIFIED", make_slice("a", *entries))])
        self.wait()

    def wait(self) -> None:
        for port in self.admin_ports:
            until(lambda port=port: count_members(port) == self._count, "the number of proxies")


def resolve(names: tuple[str, ...]) -> list[str]:
    """Returns an address for each name: Envoy takes no names here."""
    return [f"192.0.2.{number}" for number, _ in enumerate(names, 1)]


def count_members(admin_port: int) -> int:
    _, text = admin(admin_port, f"/stats?filter=^cluster.{PROXIES}.membership_total$")
    return int(text.rpartition(":")[2] or -1)


def count_answers(client: Client, caller: str) -> int:
    statuses = [ask(client, CALLERS[caller]) for _ in range(2 * MOST_PROXIES)]
    assert set(statuses) <= {200, 429}
    return statuses.count(200)


@pytest.mark.process
def test_proxies_divide_each_quota_by_their_number(tmp_path: Path) -> None:
    with run_proxies(tmp_path, ONE_IN_HOURS) as (clients, members):
        assert count_answers(clients[0], "early") == MOST_PROXIES, "no proxy is known yet"
        members.set("first", "second")
        answers = [count_answers(client, "both") for client in clients]
        assert answers == [2, 2], "together as many as one proxy alone"
        members.set("first", "second", "third", "fourth")
        answers = [count_answers(client, "four") for client in clients]
        assert answers == [1, 1]
        members.set("second")
        assert count_answers(clients[1], "late") == MOST_PROXIES, "the first one has left"


IN_A_CLUSTER = """
import sys
import urllib.request
from holdfast.cli import main
from holdfast.runtime import api_server

address = sys.argv.pop(1)


def open_path(path, *, timeout_s):
    return urllib.request.urlopen(address + path, timeout=timeout_s)


api_server.open_path = open_path
main()
"""
"""Runs a command whose API server has no TLS."""


@pytest.mark.process
def test_the_watcher_writes_the_proxies_next_to_the_servers(tmp_path: Path) -> None:
    out = tmp_path / "servers.json"
    server = make_entry("10.0.0.1")
    first_proxy = make_entry("10.0.0.2")
    second_proxy = make_entry("10.0.0.3")
    services = {
        "scores-servers": make_slice("a", server),
        "scores": make_slice(
            "b",
            first_proxy,
            second_proxy,
        ),
    }

    def answer(path: str, *_: object) -> tuple[int, object]:
        if "watch=1" in path:
            return 410, {}
        selector = parse_qs(urlsplit(path).query)["labelSelector"][0]
        service = selector.removeprefix("kubernetes.io/service-name=")
        return 200, {
            "metadata": {"resourceVersion": "1"},
            "items": [services[service]],
        }

    with answering(answer) as address:
        command = [
            sys.executable,
            "-c",
            IN_A_CLUSTER,
            address,
            "serve",
            "endpoints",
        ]
        command += ["--service", "scores-servers"]
        command += ["--namespace", "serving"]
        command += ["--out", str(out)]
        command += ["--proxies", "scores"]
        proxies = out.with_name(PROXIES_FILE)
        with running(command):
            until(out.exists, "the servers")
            until(proxies.exists, "the proxies")
    assert load_addresses(out) == ["10.0.0.1"]
    assert load_addresses(proxies) == ["10.0.0.2", "10.0.0.3"]
    (assignment,) = json.loads(proxies.read_text())["resources"]
    assert assignment["cluster_name"] == PROXIES
