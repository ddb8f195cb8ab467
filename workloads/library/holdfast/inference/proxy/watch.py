"""Follows the EndpointSlices of a Service and writes the proxy's endpoints.

Guarantees: while the API server is away the last endpoints stand, since pods answer without it; a Service without any
endpoint is written only when the API server itself says so.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote

from holdfast.inference.proxy.endpoints import Endpoint, chosen, discovery, write
from holdfast.inference.proxy.errors import Expired
from holdfast.runtime import api_server, logs

_TIMEOUT_S = 60.0  # without a byte; the API server sends bookmarks about every minute
_WATCH_S = 300
_PAUSE_S = 1.0


class Follower:
    def __init__(self, *, cluster: str, out: Path, health_port: int = 0) -> None:
        self._cluster, self._out, self._health_port = cluster, out, health_port
        self._slices: dict[str, Mapping[str, Any]] = {}
        self._written: list[Endpoint] | None = None

    def replace(self, listed: list[Mapping[str, Any]]) -> None:
        self._slices = {each["metadata"]["name"]: each for each in listed}
        self._write()

    def apply(self, event: Mapping[str, Any]) -> str:
        """One event of a watch; the resource version to go on from."""
        body = event["object"]
        match event["type"]:
            case "ADDED" | "MODIFIED":
                self._slices[body["metadata"]["name"]] = body
            case "DELETED":
                self._slices.pop(body["metadata"]["name"], None)
            case "BOOKMARK":
                return body["metadata"]["resourceVersion"]
            case _:
                raise Expired(str(body.get("message", event["type"])))
        self._write()
        return body["metadata"]["resourceVersion"]

    def _write(self) -> None:
        endpoints = chosen(self._slices.values())
        if endpoints == self._written:
            return
        write(self._out, discovery(self._cluster, endpoints, self._health_port))
        self._written = endpoints
        logs.info("endpoints", f"{len(endpoints)} endpoints", count=len(endpoints))


def follow(follower: Follower, *, namespace: str, service: str, stopped: Callable[[], bool]) -> None:
    """List, watch, and begin anew whenever the watch ends, until stopped."""
    selector = quote(f"kubernetes.io/service-name={service}")
    path = f"/apis/discovery.k8s.io/v1/namespaces/{quote(namespace)}/endpointslices?labelSelector={selector}"
    while not stopped():
        try:
            with closing(api_server.opened(path, timeout_s=_TIMEOUT_S)) as answer:
                found = json.load(answer)
            follower.replace(found["items"])
            _watch(follower, f"{path}&watch=1&allowWatchBookmarks=true", found["metadata"]["resourceVersion"], stopped)
        except (OSError, HTTPException, ValueError, KeyError, Expired) as error:
            logs.warning("endpoints", f"the API server cannot be followed, the endpoints stand: {error}")
            time.sleep(_PAUSE_S)


def _watch(follower: Follower, path: str, version: str, stopped: Callable[[], bool]) -> None:
    while not stopped():
        for event in _events(f"{path}&timeoutSeconds={_WATCH_S}&resourceVersion={version}"):
            version = follower.apply(event)


def _events(path: str) -> Iterator[Mapping[str, Any]]:
    with closing(api_server.opened(path, timeout_s=_WATCH_S + _TIMEOUT_S)) as answer:
        for line in answer:
            yield json.loads(line)
