"""Dynamic Workload Scheduler's queue: the ProvisioningRequest that holds a job. Pure; asked by causes."""

from infra.contract.kubernetes import ANNOTATION_CONSUMES
from infra.contract.pools import GPU_RESOURCE
from workloads.jobs.api import Object
from workloads.jobs.cause import Cause, Word, brief
from workloads.jobs.cluster_snapshot import Surroundings
from workloads.jobs.job_snapshot import View, condition, owners
from workloads.jobs.nodes import gpus

PATIENCE = "wait: Google gives no ETA for flex-start; `python -m infra place` compares with Spot"


def queued(view: View, around: Surroundings) -> Cause | None:
    """None where no request holds the job, or where its nodes were granted."""
    request = next((r for r in around.requests if _is_of(r, view)), None)
    if request is None or condition(request, "Provisioned").get("status") == "True":
        return None
    name = request["metadata"]["name"]
    asked = f"{view.size * gpus(view.pod_spec)} {GPU_RESOURCE} for {view.size} pods"
    failed = condition(request, "Failed")
    if failed.get("status") == "True":
        words, action = f"failed: {_why(failed)}", "delete the job and submit it again, or take Spot"
    elif condition(request, "Accepted").get("status") == "True":
        since = condition(request, "Accepted").get("lastTransitionTime", "?")
        words, action = f"accepted {since}, no nodes yet: {_why(condition(request, 'Provisioned'))}", PATIENCE
    else:
        words, action = f"not accepted yet: {_why(condition(request, 'Accepted'))}", PATIENCE
    return Cause(
        word=Word.FLEX_QUEUE,
        blocker=f"flex queue: {asked}; request {name} {words}",
        action=action,
        evidence=f"kubectl describe provisioningrequest -n {view.namespace} {name}",
    )


def _is_of(request: Object, view: View) -> bool:
    holders = {view.uid} | ({view.workload["metadata"]["uid"]} if view.workload else set())
    named = {pod["metadata"].get("annotations", {}).get(ANNOTATION_CONSUMES) for pod in view.pods}
    return bool(holders & owners(request)) or request["metadata"]["name"] in named


def _why(found: Object) -> str:
    return brief(str(found.get("message") or found.get("reason") or "the autoscaler says nothing"))
