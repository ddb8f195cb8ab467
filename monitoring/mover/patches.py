"""How a job changes its queue, so that it goes on wherever the mover dies between two requests. Pure.

First one patch suspends the job, names the other queue and takes back what Kueue had put into its pods. Kueue would
start it again where it was, as it is still admitted there; so its Workload is deleted next, and Kueue makes another
from the job, in the other queue. Whoever stops after the patch leaves a job that runs on as before.
"""

# Why it is so: infra/decisions/0058.
from typing import Any

from infra.contract.kubernetes import LABEL_QUEUE
from monitoring.mover.objects import Movable, Object

Patch = list[dict[str, Any]]
_PODS = "/spec/replicatedJobs/{}/template/spec/template"


def to_queue(job: Movable, queue: str) -> Patch:
    """JSON Patch. It is refused if anybody changed the job since it was read."""
    label = LABEL_QUEUE.replace("~", "~0").replace("/", "~1")
    ops: Patch = [
        {"op": "test", "path": "/metadata/resourceVersion", "value": job.version},
        {"op": "add", "path": "/spec/suspend", "value": True},
        {"op": "add", "path": f"/metadata/labels/{label}", "value": queue},
    ]
    # Of a Job Kueue itself restores the template, in an order that the API server asks for; not of a suspended JobSet.
    if job.kind == "JobSet" and job.workload and job.workload.admitted:
        for index, template in enumerate(job.workload.templates):
            ops += _restored(_PODS.format(index), template)
    return ops


def _restored(path: str, template: Object) -> Patch:
    """A selector that the old flavor left behind would keep the job out of every other one."""
    meta, spec = template.get("metadata") or {}, template.get("spec") or {}
    held: dict[str, Any] = {
        "metadata/labels": meta.get("labels") or {},
        "metadata/annotations": meta.get("annotations") or {},
        "spec/nodeSelector": spec.get("nodeSelector") or {},
        "spec/tolerations": spec.get("tolerations") or [],
    }
    return [{"op": "add", "path": f"{path}/{where}", "value": value} for where, value in held.items()]
