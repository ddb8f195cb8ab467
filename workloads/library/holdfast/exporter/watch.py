"""Keeps a Cluster equal to what the API server knows, through its restarts.

List, then watch from there; on any break, list again: what vanished
meanwhile is forgotten, so a missed DELETED does no harm.
"""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import urllib3
from kubernetes import client
from kubernetes.client.exceptions import ApiException

from holdfast.contract.errors import HoldfastError
from holdfast.contract.kubernetes import JOB_API, JOBSET_API, KUEUE_API, PROVISIONING_API, api_path
from holdfast.exporter import slack
from holdfast.exporter.cluster import Cluster
from holdfast.exporter.log import logger

LOG = logger("watch")
WATCH_S = 300
PAGE = 1_000
HTTP_OK = 200
NOT_THERE = (403, 404)
LOOK_AGAIN_S = 300.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 15.0


class _NotThere(HoldfastError):
    """An optional kind that the cluster does not know or show."""


Change = Callable[[str, Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Kind:
    path: str
    held: str
    """Attribute of the object that keeps it."""
    apply: Callable[[Any], Change]
    key: Callable[[Mapping[str, Any]], Any]
    optional: bool = False
    """Nothing waits for it: a cluster may not know this kind, or not show it."""


def uid(found: Mapping[str, Any]) -> Any:
    return found["metadata"]["uid"]


KINDS = (
    Kind("/api/v1/nodes", "nodes", lambda c: c.node, lambda o: o["metadata"]["name"]),
    Kind("/api/v1/pods", "pods", lambda c: c.pod, uid),
    Kind(
        "/apis/policy/v1/poddisruptionbudgets",
        "budgets",
        lambda c: c.budget,
        lambda o: (o["metadata"]["namespace"], o["metadata"]["name"]),
    ),
)


# Nothing waits for these: a cluster may have no Kueue, and ProvisioningRequests are GKE's.
QUEUED = (
    Kind(
        f"{api_path(KUEUE_API)}/workloads",
        "workloads",
        lambda c: c.queues.workload,
        uid,
        optional=True,
    ),
    Kind(
        f"{api_path(PROVISIONING_API)}/provisioningrequests",
        "requests",
        lambda c: c.queues.request,
        uid,
        optional=True,
    ),
)


# Watched where event lines show how far a job is.
PLANNED = (
    Kind(f"{api_path(JOB_API)}/jobs", "jobs", lambda c: partial(slack.take, c.jobs), uid, optional=True),
    Kind(
        f"{api_path(JOBSET_API)}/jobsets",
        "jobsets",
        lambda c: partial(slack.take, c.jobsets),
        uid,
        optional=True,
    ),
)


class Watcher(threading.Thread):
    """Runs until `stop`. `ready` is set after the first list."""

    def __init__(self, kind: Kind, api: client.ApiClient, cluster: Cluster, lock: threading.Lock) -> None:
        super().__init__(name=f"watch-{kind.held}", daemon=True)
        self.kind, self._api, self._cluster, self._lock = kind, api, cluster, lock
        self.ready, self.stop = threading.Event(), threading.Event()
        self._open: Any = None

    def close(self) -> None:
        """Ends a watch that waits for news, too."""
        self.stop.set()
        if answer := self._open:
            answer.shutdown()

    def run(self) -> None:
        pause = FIRST_PAUSE_S
        while not self.stop.is_set():
            try:
                version = self._list()
                self.ready.set()
                pause = FIRST_PAUSE_S
                self._watch(version)
            except _NotThere as error:
                LOG.warning("%s: %s; looking again in %.0f s", self.kind.held, error, LOOK_AGAIN_S)
                self.ready.set()
                self.stop.wait(LOOK_AGAIN_S)
            except (ApiException, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
                # ValueError: a line cut by the server's end.
                LOG.warning("%s: %s; listing again in %.1f s", self.kind.held, _short(error), pause)
                self.stop.wait(pause)
                pause = min(pause * 2, LONGEST_PAUSE_S)

    def _list(self) -> str:
        keys: set[Any] = set()
        query = {"limit": str(PAGE)}
        while True:
            page = json.loads(self._get(query).data)
            with self._lock:
                for found in page["items"]:
                    self.kind.apply(self._cluster)("ADDED", found)
            keys |= {self.kind.key(found) for found in page["items"]}
            query["continue"] = page["metadata"].get("continue", "")
            if not query["continue"]:
                break
        with self._lock:
            self._cluster.forget_all_but(self.kind.held, keys)
        return page["metadata"]["resourceVersion"]

    def _watch(self, version: str) -> None:
        query = {"watch": "1", "resourceVersion": version, "timeoutSeconds": str(WATCH_S), "allowWatchBookmarks": "1"}
        response = self._open = self._get(query, timeout=(10, WATCH_S + 30))
        try:
            for change in _lines(response):
                if change["type"] == "ERROR":
                    return  # too old: list again
                if change["type"] != "BOOKMARK":
                    with self._lock:
                        self.kind.apply(self._cluster)(change["type"], change["object"])
                if self.stop.is_set():
                    return
        finally:
            self._open = None
            response.close()

    def _get(self, query: Mapping[str, str], timeout: Any = 30) -> Any:
        """The raw response: typed models cost ten times the memory and time of what is read here."""
        request = self._api.param_serialize(
            "GET",
            self.kind.path,
            query_params=list(query.items()),
            header_params={"Accept": "application/json"},
            auth_settings=["BearerToken"],
        )
        answer: Any = self._api.call_api(*request, _request_timeout=timeout)
        if answer.status in NOT_THERE and self.kind.optional:
            raise _NotThere(answer.reason)
        if answer.status != HTTP_OK:
            raise ApiException(status=answer.status, reason=answer.reason)
        return answer.response


def _lines(response: Any) -> Iterator[dict[str, Any]]:
    rest = b""
    for block in response.stream(65_536):
        *whole, rest = (rest + block).split(b"\n")
        for line in whole:
            if line:
                yield json.loads(line)


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0][:200]}" if str(error) else type(error).__name__
