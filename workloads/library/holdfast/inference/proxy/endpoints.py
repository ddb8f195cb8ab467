"""Endpoint discovery for Envoy: it follows a Service's EndpointSlices and writes them to a file.

A pod gets requests while it is ready and not terminating. If there is none, terminating pods that
still serve get them, as with kube-proxy (KEP-1669). If there is none of these either, all others
get them: servers that load their model again hold requests as long as these can wait.
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
    """The address of a server.

    Each server of a proxy has one.

        server = Endpoint(address="127.0.0.1", port=8081)
    """

    address: str
    port: int


def choose_endpoints(slices: Iterable[Mapping[str, Any]]) -> list[Endpoint]:
    """Returns the endpoints that get requests, sorted.

    Each occurs once, though a pod may be in two slices while one is split.
    """
    ready = set[Endpoint]()
    serving = set[Endpoint]()
    unready = set[Endpoint]()
    for endpoint_slice in slices:
        port = _find_port(endpoint_slice)
        if not port:
            continue
        for entry in endpoint_slice.get("endpoints") or ():
            addresses = entry.get("addresses") or ()
            endpoints = {Endpoint(address=address, port=port) for address in addresses}
            conditions: Mapping[str, Any] = entry.get("conditions") or {}
            if conditions.get("ready") is not False:  # null means unknown, which counts as ready
                ready |= endpoints
            elif not conditions.get("terminating"):
                unready |= endpoints
            elif conditions.get("serving"):
                serving |= endpoints
    return sorted(ready or serving or unready)


def list_endpoints(slices: Iterable[Mapping[str, Any]]) -> list[Endpoint]:
    """Returns all endpoints, sorted."""
    endpoints = set[Endpoint]()
    for endpoint_slice in slices:
        port = _find_port(endpoint_slice)
        for entry in endpoint_slice.get("endpoints") or ():
            for address in entry.get("addresses") or ():
                endpoints.add(Endpoint(address=address, port=port))
    return sorted(endpoints)


def _find_port(endpoint_slice: Mapping[str, Any]) -> int:
    for entry in endpoint_slice.get("ports") or ():
        if entry.get("port"):
            return entry["port"]
    return 0


def discovery(
    cluster: str,
    endpoints: Sequence[Endpoint],
    health_port: int = 0,
) -> dict[str, Any]:
    """Makes the discovery response that Envoy reads from a file.

    `health_port` is the port of the readiness check, if it is not the port of requests.

        response = discovery(CLUSTER, [Endpoint(address="127.0.0.1", port=8081)])
    """
    lb_endpoints: list[dict[str, Any]] = []
    for endpoint in endpoints:
        socket_address = {
            "address": endpoint.address,
            "port_value": endpoint.port,
        }
        entry: dict[str, Any] = {"address": {"socket_address": socket_address}}
        if health_port:
            entry["health_check_config"] = {"port_value": health_port}
        lb_endpoints.append({"endpoint": entry})
    assignment = {
        "@type": ASSIGNMENT,
        "cluster_name": cluster,
        "endpoints": [{"lb_endpoints": lb_endpoints}],
    }
    return {"resources": [assignment]}


def write(path: Path, response: Mapping[str, Any]) -> None:
    """Replaces the file with a rename, the only change that Envoy watches for.

    Write it again when servers change.

        write(Path("proxy/servers.json"), response)
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(response), encoding="utf-8")
    temporary.replace(path)


def _get_name(endpoint_slice: Mapping[str, Any]) -> str:
    return endpoint_slice["metadata"]["name"]


class Follower(ListAndWatch):
    """Follows the EndpointSlices of a Service in a thread.

    While the API server does not answer the last endpoints remain, since pods answer without it.
    No endpoints are written only if the API server itself reports none.
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
        super().__init__(
            "endpoints",
            key=_get_name,
            warn=partial(logs.warning, "endpoints"),
        )
        self._path = f"/apis/discovery.k8s.io/v1/namespaces/{quote(namespace)}/endpointslices"
        self._selector = {"labelSelector": f"kubernetes.io/service-name={service}"}
        self._cluster = cluster
        self._out = out
        self._health_port = health_port
        self._slices: dict[str, Mapping[str, Any]] = {}
        self._written: list[Endpoint] | None = None

    @property
    def servers(self) -> list[Endpoint]:
        """All servers, also those that get no requests. For other threads."""
        return list_endpoints(list(self._slices.values()))

    def get(self, query: Mapping[str, str], timeout_s: float) -> HTTPResponse:
        parameters = urlencode(self._selector | dict(query))
        return api_server.open_path(
            f"{self._path}?{parameters}",
            timeout_s=timeout_s,
        )

    def take(self, changes: Sequence[Change]) -> None:
        for change, endpoint_slice in changes:
            name = _get_name(endpoint_slice)
            if change == "DELETED":
                self._slices.pop(name, None)
            else:
                self._slices[name] = endpoint_slice
        if self.ready.is_set():
            self._write()

    def keep_only(self, listed: set[str]) -> None:
        for name in self._slices.keys() - listed:
            del self._slices[name]
        self._write()

    def _write(self) -> None:
        endpoints = choose_endpoints(self._slices.values())
        if endpoints == self._written:
            return
        write(self._out, discovery(self._cluster, endpoints, self._health_port))
        self._written = endpoints
        logs.info(
            "endpoints",
            f"{len(endpoints)} endpoints",
            count=len(endpoints),
        )
