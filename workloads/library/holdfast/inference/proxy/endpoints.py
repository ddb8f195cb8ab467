"""EndpointSlices as Envoy's endpoint discovery: which pods get requests. Pure, but for the file's replacement.

A pod gets requests while it is ready and not on its way out; where none is, those that terminate and still serve get
them, as kube-proxy has it (KEP-1669).
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ASSIGNMENT = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Endpoint:
    address: str
    port: int


def chosen(slices: Iterable[Mapping[str, Any]]) -> list[Endpoint]:
    """Sorted, each once: a pod may stand in two slices while one is split."""
    ready, serving = set[Endpoint](), set[Endpoint]()
    for each in slices:
        port = next((p["port"] for p in each.get("ports") or () if p.get("port")), 0)
        for entry in each.get("endpoints") or () if port else ():
            conditions: Mapping[str, Any] = entry.get("conditions") or {}
            found = {Endpoint(address=address, port=port) for address in entry.get("addresses") or ()}
            if conditions.get("ready") is not False:  # null means unknown, which counts as ready
                ready |= found
            elif conditions.get("serving") and conditions.get("terminating"):
                serving |= found
    return sorted(ready or serving)


def discovery(cluster: str, endpoints: Sequence[Endpoint], health_port: int = 0) -> dict[str, Any]:
    """A discovery response as Envoy reads it from a file. `health_port`: where readiness is asked, if elsewhere."""
    apart = {"health_check_config": {"port_value": health_port}} if health_port else {}
    listed = [
        {"endpoint": {"address": {"socket_address": {"address": e.address, "port_value": e.port}}} | apart}
        for e in endpoints
    ]
    assignment = {"@type": ASSIGNMENT, "cluster_name": cluster, "endpoints": [{"lb_endpoints": listed}]}
    return {"resources": [assignment]}


def write(path: Path, response: Mapping[str, Any]) -> None:
    """Replaced by a rename, which is the only change that Envoy looks for."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(json.dumps(response), encoding="utf-8")
    fresh.replace(path)
