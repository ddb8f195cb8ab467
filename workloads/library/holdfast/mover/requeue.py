"""Sends a gang on queued flex-start back to its queue when the nodes of its request are gone.

Such nodes are used once: after their planned end Kueue deactivates the Workload (CapacityRevoked),
or its new pods wait for ever for nodes of the old request. The run saved before it left, and
resumes from there. Guarantee: each time takes one of the job's `restarts`, and none is later than
its deadline; a Workload that a person deactivated stays so. A mover that dies between two requests
loses one restart at most.
"""

# Why it is so: infra/decisions/0112.

from collections.abc import Iterable, Mapping

from holdfast.clients.api import Api, ApiError, Object
from holdfast.controllers.cluster_objects import condition, controller_of, ended_s, is_true
from holdfast.controllers.controller_log import logger
from holdfast.mover.cluster_api import event
from holdfast.mover.patches import Patch, key
from holdfast.support.values import unix_s
from holdfast.vocabulary.capacity import ANNOTATION_REQUEUES_FOR, LABEL_REQUEUES
from holdfast.vocabulary.kubernetes import JOBSET_API, KUEUE_API, api_path
from holdfast.vocabulary.roles import JOB_NAMESPACES

LOG = logger("move")
REASON = "Requeued"
# A node that was granted may take so long until it takes pods: GKE's limit for a node to come.
PATIENCE_S = 900.0
# On a Workload that the mover deactivated: the job is stopped first, then it is queued again.
ANNOTATION_SPENT = "holdfast.dev/request-spent"
REVOKED = "DeactivatedDueToAdmissionCheck"


def requeue(
    api: Api,
    waits: Mapping[str, float],
    now_s: float,
    namespaces: Iterable[str] = JOB_NAMESPACES,
) -> int:
    """Jobs that were queued again. `waits`: uid of a JobSet -> since when a pod of it has found no
    node.
    """
    return sum(_of_namespace(api, space, waits, now_s) for space in namespaces)


def _of_namespace(
    api: Api,
    space: str,
    waits: Mapping[str, float],
    now_s: float,
) -> int:
    listed = api.items(
        f"{api_path(JOBSET_API)}/namespaces/{space}/jobsets", labelSelector=LABEL_REQUEUES
    )
    jobs = {job["metadata"]["uid"]: job for job in listed if _may(job, now_s)}
    found = api.items(f"{api_path(KUEUE_API)}/namespaces/{space}/workloads") if jobs else ()
    pairs = [
        (jobs[owner], workload) for workload in found if (owner := controller_of(workload)) in jobs
    ]
    return sum(
        _step(api, job, workload, waits.get(job["metadata"]["uid"], now_s), now_s)
        for job, workload in pairs
    )


def _left(job: Object) -> int:
    written = job["metadata"]["labels"][LABEL_REQUEUES]
    return int(written) if written.isdecimal() and written.isascii() else 0


def _may(job: Object, now_s: float) -> bool:
    meta = job["metadata"]
    within = (meta.get("annotations") or {}).get(ANNOTATION_REQUEUES_FOR, "")
    late = within.isdecimal() and now_s > unix_s(meta["creationTimestamp"]) + int(within)
    return _left(job) > 0 and not late and not ended_s(job) and not meta.get("deletionTimestamp")


def _step(
    api: Api,
    job: Object,
    workload: Object,
    waits_since_s: float,
    now_s: float,
) -> bool:
    meta = workload["metadata"]
    path = f"{api_path(KUEUE_API)}/namespaces/{meta['namespace']}/workloads/{meta['name']}"
    try:
        if workload["spec"].get("active", True):
            if is_true(workload, "Admitted") and now_s - waits_since_s >= PATIENCE_S:
                # Kueue stops the job and takes back what it wrote into its pods.
                spent = {
                    "metadata": {"annotations": {ANNOTATION_SPENT: "true"}},
                    "spec": {"active": False},
                }
                api.merge(path, spent)
            return False
        if (
            not _spent(workload)
            or not job["spec"].get("suspend")
            or is_true(workload, "QuotaReserved")
        ):
            return False
        api.patch(_path(job), _one_less(job))
        api.delete(path)
    except ApiError as error:
        LOG.warning("%s is not queued again in this pass: %s", job["metadata"]["name"], error)
        return False
    left = _left(job) - 1
    message = (
        f"the nodes of its request are gone: it waits for new ones, and {left} restarts are left"
    )
    LOG.info("%s: %s", job["metadata"]["name"], message)
    event(
        api, {"apiVersion": JOBSET_API, "kind": "JobSet"} | job["metadata"], REASON, message, now_s
    )
    return True


def _spent(workload: Object) -> bool:
    """By the mover, or by Google: what was never admitted has no nodes that could be gone."""
    if (workload["metadata"].get("annotations") or {}).get(ANNOTATION_SPENT) == "true":
        return True
    return condition(workload, "Evicted").get("reason") == REVOKED and bool(
        condition(workload, "Admitted")
    )


def _path(job: Object) -> str:
    meta = job["metadata"]
    return f"{api_path(JOBSET_API)}/namespaces/{meta['namespace']}/jobsets/{meta['name']}"


def _one_less(job: Object) -> Patch:
    """Refused where the job changed since it was read."""
    return [
        {
            "op": "test",
            "path": "/metadata/resourceVersion",
            "value": job["metadata"]["resourceVersion"],
        },
        {
            "op": "replace",
            "path": f"/metadata/labels/{key(LABEL_REQUEUES)}",
            "value": str(_left(job) - 1),
        },
    ]
