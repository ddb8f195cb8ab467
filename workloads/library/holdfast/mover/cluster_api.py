"""What the mover asks of the API server: the jobs that bear its label, one patch, one deletion, one Event."""

import json
import logging
from typing import Any, Protocol

from kubernetes import client
from kubernetes.client.exceptions import ApiException

from holdfast.contract.capacity import LABEL_MOVES
from holdfast.contract.errors import HoldfastError
from holdfast.contract.kubernetes import JOB_API, JOBSET_API, KUEUE_API, api_path
from holdfast.contract.roles import JOB_NAMESPACES
from holdfast.contract.values import rfc3339
from holdfast.mover.objects import Movable, Object
from holdfast.mover.patches import Patch
from holdfast.runtime import logs

LOG = logging.getLogger(f"{logs.NAME}.mover")
KINDS = ((JOBSET_API, "jobsets"), (JOB_API, "jobs"))
JSON_PATCH = "application/json-patch+json"
PAGE = 500
MISSING = 404
MAX_MESSAGE = 1_000


class Refused(HoldfastError):
    """The API server does not take the patch: the job has changed, or may not be changed so."""


class ClusterApi(Protocol):
    def read(self) -> tuple[list[Object], list[Object]]:
        """The jobs that may be moved, and Kueue's Workloads of their namespaces."""
        ...

    def patch(self, path: str, ops: Patch) -> None:
        """Refused where the server does not take it."""
        ...

    def delete(self, path: str) -> None:
        """Gone already is as good."""
        ...

    def announce(self, job: Movable, reason: str, message: str, now_s: float) -> None: ...


class KubernetesApi:
    """ApiException and OSError come through: the next step tries again."""

    def __init__(self, api: client.ApiClient, namespaces: tuple[str, ...] = JOB_NAMESPACES) -> None:
        self._api, self._namespaces = api, namespaces

    def read(self) -> tuple[list[Object], list[Object]]:
        jobs: list[Object] = []
        workloads: list[Object] = []
        for space in self._namespaces:
            found = [job for version, kind in KINDS for job in self._list(version, kind, space, f"{LABEL_MOVES}=true")]
            jobs += found
            workloads += self._list(KUEUE_API, "workloads", space) if found else []
        return jobs, workloads

    def patch(self, path: str, ops: Patch) -> None:
        try:
            self._call("PATCH", path, ops, {"Content-Type": JSON_PATCH})
        except ApiException as error:
            if error.status and 400 <= error.status < 500:
                raise Refused(f"{error.status} {error.reason}: {str(error.body)[:MAX_MESSAGE]}") from error
            raise

    def delete(self, path: str) -> None:
        try:
            self._call("DELETE", path)
        except ApiException as error:
            if error.status != MISSING:
                raise

    def announce(self, job: Movable, reason: str, message: str, now_s: float) -> None:
        at = rfc3339(now_s)
        body = {
            "metadata": {"generateName": f"{job.name[:200]}.", "namespace": job.namespace},
            "involvedObject": {"apiVersion": job.api_version, "kind": job.kind, "name": job.name,
                               "namespace": job.namespace, "uid": job.uid},
            "type": "Normal", "reason": reason, "message": message[:MAX_MESSAGE], "count": 1,
            "firstTimestamp": at, "lastTimestamp": at, "source": {"component": "holdfast-mover"},
        }  # fmt: skip
        try:
            self._call("POST", f"/api/v1/namespaces/{job.namespace}/events", body)
        except ApiException as error:
            # The move itself is made, and is in the lines and the metrics as well.
            LOG.warning("no event about %s: %s %s", job.name, error.status, error.reason)

    def _list(self, version: str, kind: str, space: str, selector: str = "") -> list[Object]:
        items: list[Object] = []
        query = {"limit": str(PAGE)} | ({"labelSelector": selector} if selector else {})
        while True:
            try:
                page = self._call("GET", f"{api_path(version)}/namespaces/{space}/{kind}", query=query)
            except ApiException as error:
                if error.status == MISSING:  # a cluster without JobSet or Kueue moves nothing
                    return []
                raise
            # Items of a list carry neither.
            items += [item | {"apiVersion": version} for item in page.get("items") or ()]
            query["continue"] = (page.get("metadata") or {}).get("continue") or ""
            if not query["continue"]:
                return items

    def _call(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None,
        query: dict[str, str] | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        request = self._api.param_serialize(
            method, path, query_params=list((query or {}).items()), body=body, auth_settings=["BearerToken"],
            header_params={"Accept": "application/json", "Content-Type": "application/json"} | (headers or {}),
        )  # fmt: skip
        answer: Any = self._api.call_api(*request, _request_timeout=30)
        text = answer.read()
        if answer.status >= 400:
            raise ApiException(status=answer.status, reason=answer.reason, body=text.decode(errors="replace"))
        return json.loads(text) if text else {}
