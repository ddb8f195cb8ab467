"""Sends a gang on queued flex-start back to its queue when the nodes of its request have ended.

Such nodes are used once: after their planned end Kueue deactivates the Workload (CapacityRevoked),
or its new pods wait forever for nodes of the old request. The run saved before it left, and
resumes from there. Guarantee: each time takes one of the job's `restarts`, and none is later than
its deadline; a Workload that a person deactivated stays so, as does one stopped for its max_usd. A
mover that dies between two requests loses one restart at most.
"""

# Why it is so: infra/decisions/0112.

from collections.abc import Iterable, Mapping

from holdfast.clients.api import Api, ApiError, Object
from holdfast.controllers.cluster_objects import (
    find_condition,
    find_controller,
    find_end_s,
    is_true,
)
from holdfast.controllers.controller_log import get_logger
from holdfast.mover.cluster_api import write_event
from holdfast.mover.patches import Patch, escape_key
from holdfast.support.values import unix_s
from holdfast.vocabulary.capacity import (
    ANNOTATION_REQUEST_ENDED,
    ANNOTATION_REQUEUES_FOR,
    ANNOTATION_STOPPED_FOR,
    LABEL_REQUEUES,
    STOPPED_FOR_MAX_USD,
)
from holdfast.vocabulary.job_identity import is_count
from holdfast.vocabulary.kubernetes import JOBSET_API, KUEUE_API, KUEUE_REVOKED, api_path
from holdfast.vocabulary.roles import JOB_NAMESPACES

LOG = get_logger("move")
REASON = "Requeued"
# GKE's limit for a granted node to come and take pods.
PATIENCE_S = 900.0


def requeue(
    api: Api,
    waits: Mapping[str, float],
    now_s: float,
    namespaces: Iterable[str] = JOB_NAMESPACES,
) -> int:
    """Requeues the gangs whose nodes have ended. Returns how many were queued again.

    `waits` maps the uid of a JobSet to the time since when one of its pods has found no node.
    """
    count = 0
    for namespace in namespaces:
        jobs = _list_jobs(api, namespace, now_s)
        if not jobs:
            continue
        path = f"{api_path(KUEUE_API)}/namespaces/{namespace}/workloads"
        # Read the whole list before anything in it changes.
        for workload in list(api.items(path)):
            uid = find_controller(workload)
            if uid in jobs:
                waits_since_s = waits.get(uid, now_s)
                count += _advance(api, jobs[uid], workload, waits_since_s, now_s)
    return count


def _list_jobs(api: Api, namespace: str, now_s: float) -> dict[str, Object]:
    """Returns the JobSets of a namespace that may be queued again, by uid."""
    path = f"{api_path(JOBSET_API)}/namespaces/{namespace}/jobsets"
    jobs: dict[str, Object] = {}
    for job in api.items(path, labelSelector=LABEL_REQUEUES):
        if _may_requeue(job, now_s):
            jobs[job["metadata"]["uid"]] = job
    return jobs


def _count_restarts(job: Object) -> int:
    text = job["metadata"]["labels"][LABEL_REQUEUES]
    return int(text) if is_count(text) else 0


def _may_requeue(job: Object, now_s: float) -> bool:
    meta = job["metadata"]
    if find_end_s(job) or meta.get("deletionTimestamp"):
        return False
    annotations = meta.get("annotations") or {}
    if annotations.get(ANNOTATION_STOPPED_FOR) == STOPPED_FOR_MAX_USD:
        return False
    limit = annotations.get(ANNOTATION_REQUEUES_FOR, "")
    if is_count(limit):
        created_s = unix_s(meta["creationTimestamp"])
        if now_s > created_s + int(limit):
            return False
    return _count_restarts(job) > 0


def _advance(
    api: Api,
    job: Object,
    workload: Object,
    waits_since_s: float,
    now_s: float,
) -> bool:
    """Takes the next step with a job. Returns whether it was queued again."""
    try:
        if workload["spec"].get("active", True):
            if is_true(workload, "Admitted") and now_s - waits_since_s >= PATIENCE_S:
                _deactivate(api, workload)
            return False
        is_stopped = job["spec"].get("suspend") and not is_true(workload, "QuotaReserved")
        if not _is_spent(workload) or not is_stopped:
            return False
        api.patch(_job_path(job), _take_one_restart(job))
        api.delete(_workload_path(workload))
    except ApiError as error:
        LOG.warning("%s is not queued again in this pass: %s", job["metadata"]["name"], error)
        return False
    _announce(api, job, now_s)
    return True


def _deactivate(api: Api, workload: Object) -> None:
    """Makes Kueue stop the job and take back what it wrote into the pods.

    By its mark the job is queued again once it has stopped.
    """
    change = {
        "metadata": {"annotations": {ANNOTATION_REQUEST_ENDED: "true"}},
        "spec": {"active": False},
    }
    api.merge(_workload_path(workload), change)


def _announce(api: Api, job: Object, now_s: float) -> None:
    restarts = _count_restarts(job) - 1
    message = (
        "the nodes of its request have ended: it waits for new ones, and"
        f" {restarts} restarts are left"
    )
    LOG.info("%s: %s", job["metadata"]["name"], message)
    involved = {"apiVersion": JOBSET_API, "kind": "JobSet"} | job["metadata"]
    write_event(api, involved, REASON, message, now_s)


def _is_spent(workload: Object) -> bool:
    """Returns whether the mover or Google ended the Workload's request.

    A Workload that was never admitted had no nodes that could end.
    """
    annotations = workload["metadata"].get("annotations") or {}
    if annotations.get(ANNOTATION_REQUEST_ENDED) == "true":
        return True
    is_revoked = find_condition(workload, "Evicted").get("reason") == KUEUE_REVOKED
    return is_revoked and bool(find_condition(workload, "Admitted"))


def _job_path(job: Object) -> str:
    meta = job["metadata"]
    return f"{api_path(JOBSET_API)}/namespaces/{meta['namespace']}/jobsets/{meta['name']}"


def _workload_path(workload: Object) -> str:
    meta = workload["metadata"]
    return f"{api_path(KUEUE_API)}/namespaces/{meta['namespace']}/workloads/{meta['name']}"


def _take_one_restart(job: Object) -> Patch:
    """Builds a patch that is refused if the job changed since it was read."""
    return [
        {
            "op": "test",
            "path": "/metadata/resourceVersion",
            "value": job["metadata"]["resourceVersion"],
        },
        {
            "op": "replace",
            "path": f"/metadata/labels/{escape_key(LABEL_REQUEUES)}",
            "value": str(_count_restarts(job) - 1),
        },
    ]
