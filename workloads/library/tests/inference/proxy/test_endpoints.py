"""Which pods a proxy asks, from EndpointSlices in the form in which the API server writes them."""

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.inference.proxy.endpoints import Endpoint, chosen
from holdfast.inference.proxy.errors import Expired
from holdfast.inference.proxy.watch import Follower


def entry(address: str, *, ready: bool | None = True, serving: bool = True, terminating: bool = False) -> Any:
    return {
        "addresses": [address],
        "conditions": {"ready": ready, "serving": serving, "terminating": terminating},
    }


def piece(name: str, *entries: Any, version: str = "1") -> Any:
    return {
        "metadata": {"name": name, "resourceVersion": version},
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


def test_a_watch_writes_what_changes_and_begins_anew_when_it_is_too_old(tmp_path: Path) -> None:
    out = tmp_path / "servers.json"
    follower = Follower(cluster="servers", out=out)

    def written() -> list[Endpoint]:
        (assignment,) = json.loads(out.read_text())["resources"]
        listed = [e["endpoint"]["address"]["socket_address"] for e in assignment["endpoints"][0]["lb_endpoints"]]
        return [Endpoint(address=each["address"], port=each["port_value"]) for each in listed]

    follower.replace([piece("a", entry("10.0.0.1"))])
    assert written() == [Endpoint(address="10.0.0.1", port=8080)]
    first = out.stat().st_ino
    assert follower.apply({"type": "ADDED", "object": piece("b", entry("10.0.0.2"), version="7")}) == "7"
    assert len(written()) == 2
    assert out.stat().st_ino != first, "replaced by a rename, the only change that Envoy looks for"
    same = out.stat().st_ino
    follower.apply({"type": "MODIFIED", "object": piece("b", entry("10.0.0.2"), version="8")})
    assert out.stat().st_ino == same, "nothing changed for the proxy"
    assert follower.apply({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}}) == "9"
    follower.apply({"type": "DELETED", "object": piece("b")})
    assert [each.address for each in written()] == ["10.0.0.1"]
    with pytest.raises(Expired):
        follower.apply({"type": "ERROR", "object": {"code": 410, "message": "too old resource version"}})
