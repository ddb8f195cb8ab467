"""The kinds that a Cluster is kept equal to, and what reads each of them from the API server."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import urllib3
from kubernetes import client
from kubernetes.client.exceptions import ApiException

from holdfast.clients.watch import ListAndWatch, NotThere
from holdfast.controllers.cluster import Cluster
from holdfast.controllers.controller_log import logger
from holdfast.vocabulary.kubernetes import KUEUE_API, PROVISIONING_API, api_path

LOG = logger("watch")
HTTP_OK = 200
NOT_THERE = (403, 404)

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


def _named(found: Mapping[str, Any]) -> Any:
    return found["metadata"]["namespace"], found["metadata"]["name"]


KINDS = (
    Kind("/api/v1/nodes", "nodes", lambda c: c.node, lambda o: o["metadata"]["name"]),
    Kind("/api/v1/pods", "pods", lambda c: c.pod, uid),
    Kind("/apis/policy/v1/poddisruptionbudgets", "budgets", lambda c: c.budget, _named),
)
# Nothing waits for these: a cluster may have no Kueue, and ProvisioningRequests are GKE's.
_REQUESTS = f"{api_path(PROVISIONING_API)}/provisioningrequests"
QUEUED = (
    Kind(
        f"{api_path(KUEUE_API)}/workloads",
        "workloads",
        lambda c: c.queues.workload,
        uid,
        optional=True,
    ),
    Kind(_REQUESTS, "requests", lambda c: c.queues.request, uid, optional=True),
)


class Watcher(ListAndWatch):
    breaks = (*ListAndWatch.breaks, ApiException, urllib3.exceptions.HTTPError)

    def __init__(
        self,
        kind: Kind,
        api: client.ApiClient,
        cluster: Cluster,
        lock: threading.Lock,
    ) -> None:
        super().__init__(
            kind.held, key=kind.key, warn=lambda why: LOG.warning("%s: %s", kind.held, why)
        )
        self.kind = kind
        self._api = api
        self._cluster = cluster
        self._lock = lock

    def close(self) -> None:
        """Ends a watch that waits for news, too."""
        self.stop.set()
        answer = self.open
        if answer:
            answer.shutdown()

    def get(self, query: Mapping[str, str], timeout_s: float) -> Any:
        """The raw response: typed models cost ten times the memory and time of what is read here."""
        request = self._api.param_serialize(
            "GET",
            self.kind.path,
            query_params=list(query.items()),
            header_params={"Accept": "application/json"},
            auth_settings=["BearerToken"],
        )
        answer: Any = self._api.call_api(*request, _request_timeout=(10, timeout_s))
        if answer.status in NOT_THERE and self.kind.optional:
            raise NotThere(answer.reason)
        if answer.status != HTTP_OK:
            raise ApiException(status=answer.status, reason=answer.reason)
        return answer.response

    def take(self, changes: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        with self._lock:
            apply = self.kind.apply(self._cluster)
            for change, found in changes:
                apply(change, found)

    def keep_only(self, listed: set[Any]) -> None:
        with self._lock:
            self._cluster.forget_all_but(self.kind.held, listed)
