"""Explains the queues that hold a job: Kueue's, and Dynamic Workload Scheduler's.

Nothing here asks the cluster.
"""

from typing import Any

from holdfast.clients.api import Object
from holdfast.jobs.diagnose.cluster_snapshot import ClusterSnapshot
from holdfast.jobs.diagnose.job_snapshot import (
    JobSnapshot,
    condition,
    get_hold_s,
    has_condition,
    owners,
)
from holdfast.jobs.diagnose.reasons import Cause, Reason, brief
from holdfast.jobs.plan.pricing import count_gpus
from holdfast.support.values import quantity
from holdfast.vocabulary.kubernetes import ANNOTATION_CONSUMES, KUEUE_INADMISSIBLE
from holdfast.vocabulary.pools import GPU_RESOURCE


def explain_kueue(job: JobSnapshot, cluster: ClusterSnapshot) -> Cause | None:
    """Return the cause of a job that Kueue holds, or None if it does not."""
    workload = job.workload
    if workload is None or has_condition(workload, "Admitted"):
        return None
    evidence = f"kubectl describe workload -n {job.namespace} {workload['metadata']['name']}"
    queue = workload["spec"].get("queueName", "")
    wait_s = get_hold_s(job, cluster.taken_s)
    if has_condition(workload, "QuotaReserved"):
        action = "wait for the controller of the check, or remove the check from the ClusterQueue"
        position = f"past queue {queue}, waiting for {wait_s:.0f} s"
        blocker = _describe_checks(workload)
        return Cause(Reason.GATE, blocker, action, evidence, position)
    line = sorted(_list_waiting(cluster.workloads, queue), key=_turn)
    uids = [waiting["metadata"]["uid"] for waiting in line]
    uid = workload["metadata"]["uid"]
    place = 1 + (uids.index(uid) if uid in uids else 0)
    cluster_queue = _find_cluster_queue(cluster, queue)
    blocker = _describe_quota(job, workload, cluster_queue, queue)
    position = f"{place} of {len(line)} waiting in queue {queue}, for {wait_s:.0f} s"
    quota = condition(workload, "QuotaReserved")
    reason = str(quota.get("reason", ""))
    action = "wait for its turn, ask for fewer GPUs, or ask the platform team for a larger quota"
    action = KUEUE_INADMISSIBLE.get(reason, action)
    eviction = _describe_eviction(workload)
    if eviction:
        blocker = f"{eviction}; {blocker}"
        action = f"{action}; it resumes from its newest checkpoint"
    return Cause(Reason.QUOTA, blocker, action, evidence, position)


def _describe_eviction(workload: Object) -> str:
    """Return why Kueue stopped a job that ran, or an empty text if it has not started yet."""
    if not has_condition(workload, "Evicted"):
        return ""
    eviction = condition(workload, "Evicted")
    reason = eviction.get("reason", "Evicted")
    message = brief(str(eviction.get("message", "")))
    return f"Kueue stopped it {eviction.get('lastTransitionTime', '?')} ({reason}): {message}"


def _describe_quota(
    job: JobSnapshot,
    workload: Object,
    cluster_queue: Object | None,
    queue: str,
) -> str:
    """Describe the blocker in GPUs, if they are short; otherwise in Kueue's own words."""
    if cluster_queue is None:
        return f"queue {queue} does not exist in {job.namespace}, so nothing can admit the job"
    active = condition(cluster_queue, "Active")
    if active.get("status") == "False":
        message = brief(str(active.get("message", "")))
        return f"queue {queue} admits nothing: {message}"
    gpus = job.size * count_gpus(job.pod_spec)
    lent = _sum_gpus(cluster_queue["spec"].get("resourceGroups"), "flavors", "nominalQuota")
    used = _sum_gpus([cluster_queue.get("status", {})], "flavorsReservation", "total")
    quota = condition(workload, "QuotaReserved")
    message = str(quota.get("message", ""))
    is_enough = gpus <= lent - used
    is_inadmissible = quota.get("reason") in KUEUE_INADMISSIBLE
    if message and (is_enough or is_inadmissible):
        return f"quota: {brief(message)}"
    return f"quota: asks for {gpus} {GPU_RESOURCE}, queue {queue} lends {lent}, {used} are in use"


def _describe_checks(workload: Object) -> str:
    descriptions: list[str] = []
    for check in workload["status"].get("admissionChecks") or ():
        if check["state"] != "Ready":
            message = f" ({check['message']})" if check.get("message") else ""
            descriptions.append(f"{check['name']} is {check['state']}{message}")
    checks = ", ".join(descriptions) or "not done"
    return f"quota is reserved, admission check {brief(checks)}"


def _find_cluster_queue(cluster: ClusterSnapshot, queue: str) -> Object | None:
    local_queue = _find_by_name(cluster.local_queues, queue)
    if local_queue is None:
        return None
    return _find_by_name(cluster.cluster_queues, local_queue["spec"]["clusterQueue"])


def _find_by_name(objects: list[Object], name: str) -> Object | None:
    return next((body for body in objects if body["metadata"]["name"] == name), None)


def _sum_gpus(groups: list[dict[str, Any]] | None, flavors: str, amount: str) -> int:
    """Sum `amount` over the GPU resources of the flavors in each group."""
    total = 0
    for group in groups or ():
        for flavor in group.get(flavors) or ():
            for resource in flavor["resources"]:
                if resource["name"] == GPU_RESOURCE:
                    total += int(quantity(resource[amount]) or 0)
    return total


def _list_waiting(workloads: list[Object], queue: str) -> list[Object]:
    return [workload for workload in workloads if _waits_in(workload, queue)]


def _waits_in(workload: Object, queue: str) -> bool:
    spec = workload["spec"]
    if spec.get("queueName") != queue or not spec.get("active", True):
        return False
    if has_condition(workload, "QuotaReserved"):
        return False
    return not has_condition(workload, "Finished")


def _turn(workload: Object) -> tuple[int, str]:
    """Return the sort key of Kueue: priority, then age."""
    priority = int(workload["spec"].get("priority") or 0)
    return -priority, workload["metadata"]["creationTimestamp"]


PATIENCE = "wait: Google gives no ETA for flex-start; `holdfast place` compares with Spot"


def explain_flex_start(job: JobSnapshot, cluster: ClusterSnapshot) -> Cause | None:
    """Return the cause of a job that waits for its nodes, or None if no request holds it."""
    request = next((r for r in cluster.requests if _belongs(r, job)), None)
    if request is None:
        return None
    if has_condition(request, "Provisioned"):
        return None
    action = PATIENCE
    if has_condition(request, "Failed"):
        status = f"failed: {_describe_condition(request, 'Failed')}"
        action = "delete the job and submit it again, or take Spot"
    elif has_condition(request, "Accepted"):
        since = condition(request, "Accepted").get("lastTransitionTime", "?")
        message = _describe_condition(request, "Provisioned")
        status = f"accepted {since}, no nodes yet: {message}"
    else:
        status = f"not accepted yet: {_describe_condition(request, 'Accepted')}"
    name = request["metadata"]["name"]
    gpus = job.size * count_gpus(job.pod_spec)
    position = f"waiting for {get_hold_s(job, cluster.taken_s):.0f} s" if job.workload else ""
    return Cause(
        Reason.FLEX_QUEUE,
        f"flex queue: {gpus} {GPU_RESOURCE} for {job.size} pods; request {name} {status}",
        action,
        f"kubectl describe provisioningrequest -n {job.namespace} {name}",
        position,
    )


def _belongs(request: Object, job: JobSnapshot) -> bool:
    """Return whether the job or its workload owns the request, or a pod names it."""
    holders = {job.uid}
    if job.workload:
        holders.add(job.workload["metadata"]["uid"])
    if holders & owners(request):
        return True
    name = request["metadata"]["name"]
    for pod in job.pods:
        if pod["metadata"].get("annotations", {}).get(ANNOTATION_CONSUMES) == name:
            return True
    return False


def _describe_condition(request: Object, kind: str) -> str:
    body = condition(request, kind)
    text = body.get("message") or body.get("reason") or "the autoscaler says nothing"
    return brief(str(text))
