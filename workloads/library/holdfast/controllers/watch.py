"""Lists the kinds that a Cluster mirrors, and watches each of them on the API server."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import urllib3
from kubernetes import client
from kubernetes.client.exceptions import ApiException

from holdfast.clients.watch import ListAndWatch, UnknownKind
from holdfast.controllers.cluster import Cluster
from holdfast.controllers.controller_log import get_logger
from holdfast.vocabulary.kubernetes import KUEUE_API, PROVISIONING_API, api_path

LOG = get_logger("watch")
HTTP_OK = 200
NOT_THERE = (403, 404)

Change = Callable[[str, Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Kind:
    path: str
    held: str
    """Attribute of the Cluster that holds the objects."""
    apply: Callable[[Any], Change]
    key: Callable[[Mapping[str, Any]], Any]
    optional: bool = False
    """Nothing waits for it: a cluster may not know this kind, or not show it."""


def uid(body: Mapping[str, Any]) -> Any:
    return body["metadata"]["uid"]


def _name(body: Mapping[str, Any]) -> Any:
    return body["metadata"]["name"]


def _namespace_and_name(body: Mapping[str, Any]) -> Any:
    return body["metadata"]["namespace"], body["metadata"]["name"]


KINDS = (
    Kind(
        "/api/v1/nodes",
        "nodes",
        lambda cluster: cluster.node,
        _name,
    ),
    Kind(
        "/api/v1/pods",
        "pods",
        lambda cluster: cluster.pod,
        uid,
    ),
    Kind(
        "/apis/policy/v1/poddisruptionbudgets",
        "budgets",
        lambda cluster: cluster.budget,
        _namespace_and_name,
    ),
)
# Optional: a cluster may have no Kueue, and only GKE has ProvisioningRequests.
QUEUED = (
    Kind(
        f"{api_path(KUEUE_API)}/workloads",
        "workloads",
        lambda cluster: cluster.queues.workload,
        uid,
        optional=True,
    ),
    Kind(
        f"{api_path(PROVISIONING_API)}/provisioningrequests",
        "requests",
        lambda cluster: cluster.queues.request,
        uid,
        optional=True,
    ),
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
            kind.held,
            key=kind.key,
            warn=lambda reason: LOG.warning("%s: %s", kind.held, reason),
        )
        self.kind = kind
        self._api = api
        self._cluster = cluster
        self._lock = lock

    def close(self) -> None:
        """Ends the watch, even one that waits for news."""
        self.stop.set()
        response = self.open
        if response:
            response.shutdown()

    def get(self, query: Mapping[str, str], timeout_s: float) -> Any:
        """Returns the raw response.

        Typed models cost ten times the memory and time of what is read here.
        """
        request = self._api.param_serialize(
            "GET",
            self.kind.path,
            query_params=list(query.items()),
            header_params={"Accept": "application/json"},
            auth_settings=["BearerToken"],
        )
        reply: Any = self._api.call_api(*request, _request_timeout=(10, timeout_s))
        if reply.status in NOT_THERE and self.kind.optional:
            raise UnknownKind(reply.reason)
        if reply.status != HTTP_OK:
            raise ApiException(status=reply.status, reason=reply.reason)
        return reply.response

    def take(self, changes: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        with self._lock:
            apply = self.kind.apply(self._cluster)
            for change, body in changes:
                apply(change, body)

    def keep_only(self, listed: set[Any]) -> None:
        with self._lock:
            self._cluster.forget_all_but(self.kind.held, listed)
