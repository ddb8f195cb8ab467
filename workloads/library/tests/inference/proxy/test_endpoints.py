"""Tests of the choice of pods, from EndpointSlices as the API server writes them."""

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.inference.proxy.endpoints import Follower, choose_endpoints


def make_entry(
    address: str,
    *,
    ready: bool | None = True,
    serving: bool = True,
    terminating: bool = False,
) -> Any:
    return {
        "addresses": [address],
        "conditions": {
            "ready": ready,
            "serving": serving,
            "terminating": terminating,
        },
    }


def make_slice(name: str, *entries: Any) -> Any:
    return {
        "metadata": {"name": name, "resourceVersion": "1"},
        "addressType": "IPv4",
        "ports": [
            {
                "name": "http",
                "port": 8080,
                "protocol": "TCP",
            }
        ],
        "endpoints": list(entries),
    }


READY = make_entry("ready")
UNKNOWN = make_entry("unknown", ready=None)
NOTIFIED = make_entry("notified", ready=False, serving=False)
DELETED = make_entry("deleted", ready=False, terminating=True)
GONE = make_entry("gone", ready=False, serving=False, terminating=True)
CASES: dict[str, tuple[list[Any], list[str]]] = {
    "a Spot notice removes a pod by its readiness alone": (
        [make_slice("a", READY, NOTIFIED)],
        ["ready"],
    ),
    "a deleted pod leaves while it still serves": ([make_slice("a", READY, DELETED)], ["ready"]),
    "terminating pods that serve are better than none": (
        [make_slice("a", DELETED, GONE)],
        ["deleted"],
    ),
    "servers that load their model again are better than none": (
        [make_slice("a", NOTIFIED, GONE)],
        ["notified"],
    ),
    "unknown counts as ready, a pod in two slices once": (
        [make_slice("a", UNKNOWN), make_slice("b", UNKNOWN)],
        ["unknown"],
    ),
    "a slice without ports": ([make_slice("a", READY) | {"ports": None}], []),
    "a slice without endpoints": ([make_slice("a") | {"endpoints": None}], []),
}


@pytest.mark.parametrize("name", CASES)
def test_only_serving_pods_get_requests(name: str) -> None:
    slices, addresses = CASES[name]
    assert [endpoint.address for endpoint in choose_endpoints(slices)] == addresses


def load_addresses(out: Path) -> list[str]:
    (assignment,) = json.loads(out.read_text())["resources"]
    addresses: list[str] = []
    for entry in assignment["endpoints"][0]["lb_endpoints"]:
        addresses.append(entry["endpoint"]["address"]["socket_address"]["address"])
    return addresses


def test_the_file_is_written_after_a_list_and_each_change(tmp_path: Path) -> None:
    out = tmp_path / "servers.json"
    follower = Follower(
        namespace="serving",
        service="server",
        cluster="servers",
        out=out,
    )
    follower.take([("ADDED", make_slice("a", make_entry("10.0.0.1")))])
    assert not out.exists(), "half a list is not written"
    follower.keep_only({"a"})
    follower.ready.set()
    assert load_addresses(out) == ["10.0.0.1"]
    first_inode = out.stat().st_ino
    follower.take([("ADDED", make_slice("b", make_entry("10.0.0.2")))])
    assert load_addresses(out) == ["10.0.0.1", "10.0.0.2"]
    inode = out.stat().st_ino
    assert inode != first_inode, "a rename is the only change that Envoy watches for"
    follower.take([("MODIFIED", make_slice("b", make_entry("10.0.0.2")))])
    assert out.stat().st_ino == inode, "nothing changed for the proxy"
    follower.take([("DELETED", make_slice("b"))])
    assert load_addresses(out) == ["10.0.0.1"]
    follower.keep_only(set())
    assert load_addresses(out) == [], "it was removed while nothing watched"
