"""What the mover asks of the API server: the jobs with its label, one patch, one deletion, one
Event.
"""

from collections.abc import Iterable

from holdfast.clients.api import Api, ApiError
from holdfast.controllers.controller_log import logger
from holdfast.mover.movable_jobs import Movable, Object
from holdfast.mover.patches import Patch
from holdfast.support.values import rfc3339
from holdfast.vocabulary.capacity import LABEL_MOVES
from holdfast.vocabulary.kubernetes import JOB_API, JOBSET_API, KUEUE_API, api_path
from holdfast.vocabulary.roles import JOB_NAMESPACES

LOG = logger("move")
KINDS = ((JOBSET_API, "jobsets"), (JOB_API, "jobs"))
MISSING = 404
MAX_MESSAGE = 1_000


class ClusterApi:
    """ApiError and Unjudged come through: the next step tries again."""

    def __init__(self, api: Api, namespaces: Iterable[str] = JOB_NAMESPACES) -> None:
        self._api = api
        self._namespaces = namespaces

    def read(self) -> tuple[list[Object], list[Object]]:
        """The jobs that may be moved, and Kueue's Workloads of their namespaces."""
        jobs: list[Object] = []
        workloads: list[Object] = []
        for space in self._namespaces:
            found = []
            for version, kind in KINDS:
                for job in self._list(version, kind, space, f"{LABEL_MOVES}=true"):
                    found.append(job)
            jobs += found
            workloads += self._list(KUEUE_API, "workloads", space) if found else []
        return jobs, workloads

    def patch(self, path: str, ops: Patch) -> None:
        self._api.patch(path, ops)

    def delete(self, path: str) -> None:
        """Gone already is as good."""
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
        event(self._api, involved, reason, message, now_s)

    def _list(
        self,
        version: str,
        kind: str,
        space: str,
        selector: str | None = None,
    ) -> list[Object]:
        path = f"{api_path(version)}/namespaces/{space}/{kind}"
        # Items of a list carry no version of their own.
        return [
            item | {"apiVersion": version} for item in self._api.items(path, labelSelector=selector)
        ]


def event(
    api: Api,
    involved: Object,
    reason: str,
    message: str,
    now_s: float,
    kind: str = "Normal",
) -> None:
    """An Event about an object, of which `involved` holds apiVersion, kind, name, namespace and
    uid.
    """
    # Kubernetes keeps the events about what has no namespace in the default one.
    at = rfc3339(now_s)
    name = involved["name"]
    namespace = involved["namespace"] or "default"
    body = {
        "metadata": {"generateName": f"{name[:200]}.", "namespace": namespace},
        "involvedObject": {
            key: involved[key] for key in ("apiVersion", "kind", "name", "namespace", "uid")
        },
        "type": kind,
        "reason": reason,
        "message": message[:MAX_MESSAGE],
        "count": 1,
        "firstTimestamp": at,
        "lastTimestamp": at,
        "source": {"component": "holdfast-mover"},
    }
    try:
        api.create(f"/api/v1/namespaces/{namespace}/events", body)
    except ApiError as error:
        # What it tells has happened, and is in the log as well.
        LOG.warning("no event about %s: %s", name, error)
