"""EndpointSlices of a Service as Envoy's endpoint discovery: which pods get requests, followed and
written to a file.

A pod gets requests while it is ready and not on its way out; where none is, those that terminate
and still serve get them, as kube-proxy has it (KEP-1669).
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from http.client import HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from holdfast.clients.watch import Change, ListAndWatch
from holdfast.runtime import api_server, logs

ASSIGNMENT = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Endpoint:
    address: str
    port: int


def chosen(slices: Iterable[Mapping[str, Any]]) -> list[Endpoint]:
    """Sorted, each once: a pod may be in two slices while one is split."""
    ready = set[Endpoint]()
    serving = set[Endpoint]()
    for each in slices:
        port = next((p["port"] for p in each.get("ports") or () if p.get("port")), 0)
        for entry in each.get("endpoints") or () if port else ():
            conditions: Mapping[str, Any] = entry.get("conditions") or {}
            found = set()
            for address in entry.get("addresses") or ():
                found.add(Endpoint(address=address, port=port))
            if conditions.get("ready") is not False:  # null means unknown, which counts as ready
                ready |= found
            elif conditions.get("serving") and conditions.get("terminating"):
                serving |= found
    return sorted(ready or serving)


def discovery(cluster: str, endpoints: Sequence[Endpoint], health_port: int = 0) -> dict[str, Any]:
    """A discovery response as Envoy reads it from a file. `health_port`: of the readiness check, if
    another.
    """
    apart = {"health_check_config": {"port_value": health_port}} if health_port else {}
    listed = []
    for e in endpoints:
        listed.append(
            {
                "endpoint": {
                    "address": {"socket_address": {"address": e.address, "port_value": e.port}}
                }
                | apart
            }
        )
    assignment = {
        "@type": ASSIGNMENT,
        "cluster_name": cluster,
        "endpoints": [{"lb_endpoints": listed}],
    }
    return {"resources": [assignment]}


def write(path: Path, response: Mapping[str, Any]) -> None:
    """Replaced by a rename, which is the only change that Envoy looks for."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(json.dumps(response), encoding="utf-8")
    fresh.replace(path)


def _name(found: Mapping[str, Any]) -> str:
    return found["metadata"]["name"]


class Follower(ListAndWatch):
    """While the API server is away the last endpoints stay, since pods answer without it; a Service
    without any endpoint is written only when the API server itself says so.
    """

    longest_pause_s = 1.0

    def __init__(
        self,
        *,
        namespace: str,
        service: str,
        cluster: str,
        out: Path,
        health_port: int = 0,
    ) -> None:
        super().__init__("endpoints", key=_name, warn=partial(logs.warning, "endpoints"))
        self._path = f"/apis/discovery.k8s.io/v1/namespaces/{quote(namespace)}/endpointslices"
        self._of_service = {"labelSelector": f"kubernetes.io/service-name={service}"}
        self._cluster = cluster
        self._out = out
        self._health_port = health_port
        self._slices: dict[str, Mapping[str, Any]] = {}
        self._written: list[Endpoint] | None = None

    def get(self, query: Mapping[str, str], timeout_s: float) -> HTTPResponse:
        return api_server.opened(
            f"{self._path}?{urlencode(self._of_service | dict(query))}", timeout_s=timeout_s
        )

    def take(self, changes: Sequence[Change]) -> None:
        for change, found in changes:
            if change == "DELETED":
                self._slices.pop(_name(found), None)
            else:
                self._slices[_name(found)] = found
        if self.ready.is_set():
            self._write()

    def keep_only(self, listed: set[str]) -> None:
        self._slices = {name: found for name, found in self._slices.items() if name in listed}
        self._write()

    def _write(self) -> None:
        endpoints = chosen(self._slices.values())
        if endpoints == self._written:
            return
        write(self._out, discovery(self._cluster, endpoints, self._health_port))
        self._written = endpoints
        logs.info("endpoints", f"{len(endpoints)} endpoints", count=len(endpoints))
