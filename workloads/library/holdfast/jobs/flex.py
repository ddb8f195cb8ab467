"""Dynamic Workload Scheduler's queue: the ProvisioningRequest that holds a job. Pure."""

from holdfast.clients.api import Object
from holdfast.contract.kubernetes import ANNOTATION_CONSUMES
from holdfast.contract.pools import GPU_RESOURCE
from holdfast.jobs.cause import Cause, Reason, brief
from holdfast.jobs.cluster_snapshot import ClusterSnapshot
from holdfast.jobs.job_snapshot import JobSnapshot, condition, held_for_s, owners
from holdfast.jobs.nodes import gpus

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
        status, action = f"failed: {_why(failed)}", "delete the job and submit it again, or take Spot"
    elif condition(request, "Accepted").get("status") == "True":
        since = condition(request, "Accepted").get("lastTransitionTime", "?")
        status, action = f"accepted {since}, no nodes yet: {_why(condition(request, 'Provisioned'))}", PATIENCE
    else:
        status, action = f"not accepted yet: {_why(condition(request, 'Accepted'))}", PATIENCE
    return Cause(
        reason=Reason.FLEX_QUEUE,
        blocker=f"flex queue: {asked}; request {name} {status}",
        position=f"waiting for {held_for_s(job, cluster.taken_s):.0f} s" if job.workload else "",
        action=action,
        evidence=f"kubectl describe provisioningrequest -n {job.namespace} {name}",
    )


def _is_of(request: Object, job: JobSnapshot) -> bool:
    holders = {job.uid} | ({job.workload["metadata"]["uid"]} if job.workload else set())
    named = {pod["metadata"].get("annotations", {}).get(ANNOTATION_CONSUMES) for pod in job.pods}
    return bool(holders & owners(request)) or request["metadata"]["name"] in named


def _why(found: Object) -> str:
    return brief(str(found.get("message") or found.get("reason") or "the autoscaler says nothing"))
