"""The queues that hold a job: Kueue's, with its place in the line, and Dynamic Workload
Scheduler's. Pure.
"""

from typing import Any

from holdfast.clients.api import Object
from holdfast.jobs.diagnose.cause import Cause, Reason, brief
from holdfast.jobs.diagnose.cluster_snapshot import ClusterSnapshot, gpus
from holdfast.jobs.diagnose.job_snapshot import JobSnapshot, condition, held_for_s, owners
from holdfast.vocabulary.kubernetes import ANNOTATION_CONSUMES, KUEUE_INADMISSIBLE
from holdfast.vocabulary.pools import GPU_RESOURCE


def held(job: JobSnapshot, cluster: ClusterSnapshot) -> Cause | None:
    """None where Kueue does not have the job, or has admitted it."""
    workload = job.workload
    if workload is None or condition(workload, "Admitted").get("status") == "True":
        return None
    evidence = f"kubectl describe workload -n {job.namespace} {workload['metadata']['name']}"
    queue = workload["spec"].get("queueName", "")
    if condition(workload, "QuotaReserved").get("status") == "True":
        action = "wait for the controller of the check, or remove the check from the ClusterQueue"
        position = f"past queue {queue}, waiting for {held_for_s(job, cluster.taken_s):.0f} s"
        return Cause(Reason.GATE, _checks(workload), action, evidence, position)
    line = sorted(_waiting(cluster.workloads, queue), key=_turn)
    place = 1 + next(
        (i for i, w in enumerate(line) if w["metadata"]["uid"] == workload["metadata"]["uid"]), 0
    )
    blocker = _blocker(job, workload, _cluster_queue(cluster, queue), queue)
    position = (
        f"{place} of {len(line)} waiting in queue {queue}, for"
        f" {held_for_s(job, cluster.taken_s):.0f} s"
    )
    reason = str(condition(workload, "QuotaReserved").get("reason", ""))
    turn = "wait for its turn, ask for fewer GPUs, or raise the quota in infra/environments"
    action = KUEUE_INADMISSIBLE.get(reason, turn)
    return Cause(Reason.QUOTA, blocker, action, evidence, position)


def _blocker(
    job: JobSnapshot,
    workload: Object,
    found: Object | None,
    queue: str,
) -> str:
    """In GPUs, if they are short; otherwise in Kueue's own words."""
    if found is None:
        return f"queue {queue} does not exist in {job.namespace}, so nothing can admit the job"
    active = condition(found, "Active")
    if active.get("status") == "False":
        return f"queue {queue} admits nothing: {brief(str(active.get('message', '')))}"
    asked = job.size * gpus(job.pod_spec)
    lent = sum(
        int(str(r["nominalQuota"]))
        for r in _gpu_rows(found["spec"].get("resourceGroups"), "flavors")
    )
    used = sum(
        int(str(r["total"])) for r in _gpu_rows([found.get("status", {})], "flavorsReservation")
    )
    quota = condition(workload, "QuotaReserved")
    why = str(quota.get("message", ""))
    if why and (asked <= lent - used or quota.get("reason") in KUEUE_INADMISSIBLE):
        return f"quota: {brief(why)}"
    return f"quota: asks for {asked} {GPU_RESOURCE}, queue {queue} lends {lent}, {used} are in use"


def _checks(workload: Object) -> str:
    open_ = [c for c in workload["status"].get("admissionChecks") or () if c["state"] != "Ready"]
    unready = (
        f"{c['name']} is {c['state']}" + (f" ({c['message']})" if c.get("message") else "")
        for c in open_
    )
    return f"quota is reserved, admission check {brief(', '.join(unready) or 'not done')}"


def _cluster_queue(cluster: ClusterSnapshot, queue: str) -> Object | None:
    local = next((q for q in cluster.local_queues if q["metadata"]["name"] == queue), None)
    wanted = local["spec"]["clusterQueue"] if local else None
    return next((q for q in cluster.cluster_queues if q["metadata"]["name"] == wanted), None)


def _gpu_rows(groups: list[dict[str, Any]] | None, key: str) -> list[dict[str, Any]]:
    flavors = [flavor for group in groups or () for flavor in group.get(key) or ()]
    return [row for flavor in flavors for row in flavor["resources"] if row["name"] == GPU_RESOURCE]


def _waiting(workloads: list[Object], queue: str) -> list[Object]:
    mine = [
        w
        for w in workloads
        if w["spec"].get("queueName") == queue and w["spec"].get("active", True)
    ]
    past = ("QuotaReserved", "Finished")
    return [w for w in mine if all(condition(w, kind).get("status") != "True" for kind in past)]


def _turn(workload: Object) -> tuple[int, str]:
    return -int(workload["spec"].get("priority") or 0), workload["metadata"]["creationTimestamp"]


PATIENCE = "wait: Google gives no ETA for flex-start; `holdfast place` compares with Spot"


def queued(job: JobSnapshot, cluster: ClusterSnapshot) -> Cause | None:
    """None where no request holds the job, or where its nodes were granted."""
    request = next((r for r in cluster.requests if _is_of(r, job)), None)
    if request is None or condition(request, "Provisioned").get("status") == "True":
        return None
    name = request["metadata"]["name"]
    asked = f"{job.size * gpus(job.pod_spec)} {GPU_RESOURCE} for {job.size} pods"
    failed = condition(request, "Failed")
    if failed.get("status") == "True":
        status = f"failed: {_why(failed)}"
        action = "delete the job and submit it again, or take Spot"
    elif condition(request, "Accepted").get("status") == "True":
        since = condition(request, "Accepted").get("lastTransitionTime", "?")
        status = f"accepted {since}, no nodes yet: {_why(condition(request, 'Provisioned'))}"
        action = PATIENCE
    else:
        status = f"not accepted yet: {_why(condition(request, 'Accepted'))}"
        action = PATIENCE
    evidence = f"kubectl describe provisioningrequest -n {job.namespace} {name}"
    position = f"waiting for {held_for_s(job, cluster.taken_s):.0f} s" if job.workload else ""
    return Cause(
        Reason.FLEX_QUEUE,
        f"flex queue: {asked}; request {name} {status}",
        action,
        evidence,
        position,
    )


def _is_of(request: Object, job: JobSnapshot) -> bool:
    holders = {job.uid} | ({job.workload["metadata"]["uid"]} if job.workload else set())
    named = {pod["metadata"].get("annotations", {}).get(ANNOTATION_CONSUMES) for pod in job.pods}
    return bool(holders & owners(request)) or request["metadata"]["name"] in named


def _why(found: Object) -> str:
    return brief(str(found.get("message") or found.get("reason") or "the autoscaler says nothing"))
