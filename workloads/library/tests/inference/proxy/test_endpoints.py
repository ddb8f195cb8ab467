"""Which pods a proxy asks, from EndpointSlices in the form in which the API server writes them."""

import json
from pathlib import Path
from typing import Any

from holdfast.inference.proxy.endpoints import Follower, chosen


def entry(address: str, *, ready: bool | None = True, serving: bool = True, terminating: bool = False) -> Any:
    return {
        "addresses": [address],
        "conditions": {"ready": ready, "serving": serving, "terminating": terminating},
    }


def piece(name: str, *entries: Any) -> Any:
    return {
        "metadata": {"name": name, "resourceVersion": "1"},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": list(entries),
    }


def addresses(*slices: Any) -> list[str]:
    return [endpoint.address for endpoint in chosen(slices)]


def test_a_spot_notice_takes_a_pod_out_by_its_readiness_alone() -> None:
    notified = entry("10.0.0.2", ready=False, serving=False, terminating=False)
    assert addresses(piece("a", entry("10.0.0.1"), notified)) == ["10.0.0.1"]


def test_a_deleted_pod_leaves_while_it_still_serves() -> None:
    deleted = entry("10.0.0.2", ready=False, serving=True, terminating=True)
    assert addresses(piece("a", entry("10.0.0.1"), deleted)) == ["10.0.0.1"]


def test_where_all_terminate_those_that_serve_are_better_than_none() -> None:
    last = entry("10.0.0.2", ready=False, serving=True, terminating=True)
    gone = entry("10.0.0.3", ready=False, serving=False, terminating=True)
    assert addresses(piece("a", last, gone)) == ["10.0.0.2"]


def test_unknown_counts_as_ready_a_pod_in_two_slices_once_and_a_slice_without_ports_not_at_all() -> None:
    unknown = entry("10.0.0.1", ready=None)
    headless = piece("c", entry("10.0.0.9")) | {"ports": None}
    assert addresses(piece("a", unknown), piece("b", unknown), headless) == ["10.0.0.1"]
    assert addresses(piece("a") | {"endpoints": None}) == []


def written(out: Path) -> list[str]:
    (assignment,) = json.loads(out.read_text())["resources"]
    return [e["endpoint"]["address"]["socket_address"]["address"] for e in assignment["endpoints"][0]["lb_endpoints"]]


def test_a_list_is_written_whole_and_then_what_changes(tmp_path: Path) -> None:
    out = tmp_path / "servers.json"
    follower = Follower(namespace="serving", service="server", cluster="servers", out=out)
    follower.take([("ADDED", piece("a", entry("10.0.0.1")))])
    assert not out.exists(), "half a list is not written"
    follower.keep_only({"a"})
    follower.ready.set()
    assert written(out) == ["10.0.0.1"]
    first = out.stat().st_ino
    follower.take([("ADDED", piece("b", entry("10.0.0.2")))])
    assert written(out) == ["10.0.0.1", "10.0.0.2"]
    assert (same := out.stat().st_ino) != first, "replaced by a rename, the only change that Envoy looks for"
    follower.take([("MODIFIED", piece("b", entry("10.0.0.2")))])
    assert out.stat().st_ino == same, "nothing changed for the proxy"
    follower.take([("DELETED", piece("b"))])
    assert written(out) == ["10.0.0.1"]
    follower.keep_only(set())
    assert written(out) == [], "gone while nothing watched"
