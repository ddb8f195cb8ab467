"""Reads movable jobs from the API server, changes them, and writes Events about them."""

from collections.abc import Iterable

from holdfast.clients.api import Api, ApiError
from holdfast.controllers.controller_log import get_logger
from holdfast.mover.movable_jobs import Movable, Object
from holdfast.mover.patches import Patch
from holdfast.support.values import rfc3339
from holdfast.vocabulary.capacity import LABEL_MOVES
from holdfast.vocabulary.kubernetes import JOB_API, JOBSET_API, KUEUE_API, api_path
from holdfast.vocabulary.roles import JOB_NAMESPACES

LOG = get_logger("move")
KINDS = ((JOBSET_API, "jobsets"), (JOB_API, "jobs"))
MISSING = 404
MAX_MESSAGE = 1_000
INVOLVED_FIELDS = ("apiVersion", "kind", "name", "namespace", "uid")


class ClusterApi:
    """Passes ApiError and Unjudged on to its caller, which tries again in the next step."""

    def __init__(self, api: Api, namespaces: Iterable[str] = JOB_NAMESPACES) -> None:
        self._api = api
        self._namespaces = namespaces

    def read(self) -> tuple[list[Object], list[Object]]:
        """Returns the jobs that may be moved, and Kueue's Workloads of their namespaces."""
        jobs: list[Object] = []
        workloads: list[Object] = []
        for namespace in self._namespaces:
            movable_jobs: list[Object] = []
            for version, kind in KINDS:
                movable_jobs += self._list(version, kind, namespace, f"{LABEL_MOVES}=true")
            if movable_jobs:
                jobs += movable_jobs
                workloads += self._list(KUEUE_API, "workloads", namespace)
        return jobs, workloads

    def patch(self, path: str, ops: Patch) -> None:
        self._api.patch(path, ops)

    def delete(self, path: str) -> None:
        """Deletes an object; one that does not exist is no error."""
        try:
            self._api.delete(path)
        except ApiError as error:
            if error.status != MISSING:
                raise

    def announce(self, job: Movable, reason: str, message: str, now_s: float) -> None:
        involved = {
            "apiVersion": job.api_version,
            "kind": job.kind,
            "name": job.name,
            "namespace": job.namespace,
            "uid": job.uid,
        }
        write_event(self._api, involved, reason, message, now_s)

    def _list(
        self,
        version: str,
        kind: str,
        namespace: str,
        selector: str | None = None,
    ) -> list[Object]:
        path = f"{api_path(version)}/namespaces/{namespace}/{kind}"
        items = self._api.items(path, labelSelector=selector)
        # Items of a list carry no version of their own.
        return [item | {"apiVersion": version} for item in items]


def write_event(
    api: Api,
    involved: Object,
    reason: str,
    message: str,
    now_s: float,
    kind: str = "Normal",
) -> None:
    """Writes an Event about an object. A refusal is logged, not raised.

    `involved` holds the object's apiVersion, kind, name, namespace and uid.
    """
    time = rfc3339(now_s)
    name = involved["name"]
    # Kubernetes keeps the events of cluster-wide objects in the default namespace.
    namespace = involved["namespace"] or "default"
    body = {
        "metadata": {"generateName": f"{name[:200]}.", "namespace": namespace},
        "involvedObject": {key: involved[key] for key in INVOLVED_FIELDS},
        "type": kind,
        "reason": reason,
        "message": message[:MAX_MESSAGE],
        "count": 1,
        "firstTimestamp": time,
        "lastTimestamp": time,
        "source": {"component": "holdfast-mover"},
    }
    try:
        api.create(f"/api/v1/namespaces/{namespace}/events", body)
    except ApiError as error:
        # The caller has logged what the event reports.
        LOG.warning("no event about %s: %s", name, error)
