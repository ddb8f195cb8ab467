"""Which pods a proxy asks, from EndpointSlices in the form in which the API server writes them."""

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.inference.proxy.endpoints import Follower, chosen


def entry(
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


def piece(name: str, *entries: Any) -> Any:
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


READY = entry("ready")
UNKNOWN = entry("unknown", ready=None)
NOTIFIED = entry("notified", ready=False, serving=False)
DELETED = entry("deleted", ready=False, terminating=True)
GONE = entry("gone", ready=False, serving=False, terminating=True)
CASES: dict[str, tuple[list[Any], list[str]]] = {
    "a Spot notice takes a pod out by its readiness alone": (
        [piece("a", READY, NOTIFIED)],
        ["ready"],
    ),
    "a deleted pod leaves while it still serves": ([piece("a", READY, DELETED)], ["ready"]),
    "where all terminate, those that serve are better than none": (
        [piece("a", DELETED, GONE)],
        ["deleted"],
    ),
    "unknown counts as ready, a pod in two slices once": (
        [piece("a", UNKNOWN), piece("b", UNKNOWN)],
        ["unknown"],
    ),
    "a slice without ports": ([piece("a", READY) | {"ports": None}], []),
    "a slice without endpoints": ([piece("a") | {"endpoints": None}], []),
}


@pytest.mark.parametrize("name", CASES)
def test_which_pods_get_requests(name: str) -> None:
    slices, wanted = CASES[name]
    assert [endpoint.address for endpoint in chosen(slices)] == wanted


def written(out: Path) -> list[str]:
    (assignment,) = json.loads(out.read_text())["resources"]
    return [
        e["endpoint"]["address"]["socket_address"]["address"]
        for e in assignment["endpoints"][0]["lb_endpoints"]
    ]


def test_a_list_is_written_whole_and_then_what_changes(tmp_path: Path) -> None:
    out = tmp_path / "servers.json"
    follower = Follower(
        namespace="serving",
        service="server",
        cluster="servers",
        out=out,
    )
    follower.take([("ADDED", piece("a", entry("10.0.0.1")))])
    assert not out.exists(), "half a list is not written"
    follower.keep_only({"a"})
    follower.ready.set()
    assert written(out) == ["10.0.0.1"]
    first = out.stat().st_ino
    follower.take([("ADDED", piece("b", entry("10.0.0.2")))])
    assert written(out) == ["10.0.0.1", "10.0.0.2"]
    assert (same := out.stat().st_ino) != first, (
        "replaced by a rename, the only change that Envoy looks for"
    )
    follower.take([("MODIFIED", piece("b", entry("10.0.0.2")))])
    assert out.stat().st_ino == same, "nothing changed for the proxy"
    follower.take([("DELETED", piece("b"))])
    assert written(out) == ["10.0.0.1"]
    follower.keep_only(set())
    assert written(out) == [], "gone while nothing watched"
