"""Writes the answer as manifests: a ComputeClass with the capacities in order, and what a pod needs to land on it.

Labels, taints and limits come from the contract.
"""

import math
from pathlib import Path
from typing import Any

from holdfast.contract.lifecycle import FLEX_MAX_RUN_S
from infra.contract import pools
from infra.contract.capacity import ANNOTATION_RULE, Capacity, Placement
from infra.placement import hazard
from infra.placement.advice import Option, World, interval_h, job_churn
from infra.placement.job import Job
from infra.placement.matrix import Deadline, Kind, Workload, decide

API_VERSION = "cloud.google.com/v1"
MAX_CAPACITY_WAIT_S = 86_400  # the field's limit
_ORDER = {
    Placement.SPOT: Capacity.SPOT,
    Placement.FLEX_START: Capacity.FLEX_START,
    Placement.ON_DEMAND: Capacity.ON_DEMAND,
}


def compute_class(job: Job, options: list[Option], chosen: Option) -> dict[str, Any]:
    """Priorities: the answer first, then what else keeps the deadline, by cost. Never two capacities in one rule."""
    return {
        "apiVersion": API_VERSION,
        "kind": "ComputeClass",
        "metadata": {"name": class_name(job, chosen)},
        "spec": {
            "nodePoolAutoCreation": {"enabled": True},
            "priorities": [_priority(job, capacity) for capacity in capacities(options, chosen)],
            "whenUnsatisfiable": "DoNotScaleUp",
        },
    }


def pod(job: Job, world: World, chosen: Option) -> dict[str, Any]:
    """Selector, tolerations and limits of the pod, the rule it follows, and how often it should checkpoint."""
    rule = decide(workload(job))
    return {
        "metadata": {"annotations": {ANNOTATION_RULE: rule.id.value}},
        "spec": {
            "nodeSelector": {pools.LABEL_COMPUTE_CLASS: class_name(job, chosen)},
            "tolerations": [pools.GPU_TAINT.toleration()],
            "containers": [{"name": "main", "resources": {"limits": {pools.GPU_RESOURCE: job.machine.gpus}}}],
        },
        "holdfast": {
            "nodes": job.nodes,
            # A ComputeClass brings flex-start nodes one by one; a gang needs a queued ProvisioningRequest.
            "allAtOnce": job.nodes > 1 and not job.batch,
            "checkpoint": checkpoint(job, world),
        },
    }


def checkpoint(job: Job, world: World) -> dict[str, Any]:
    """Seconds of work between checkpoints: one number, and by node age for trainers that know theirs."""
    if job.batch or not job.resumable:
        return {"intervalSeconds": None, "why": "a queue commits each item" if job.batch else "the job cannot resume"}
    nodes = job_churn(job, 1.0, world.together)
    by_age = [
        {
            "fromSeconds": round(age * 3600),
            "intervalSeconds": round(interval_h(job, nodes * hazard.rate_at(world.churn.per_hour, float(age))) * 3600),
        }
        for age in hazard.AGES_H
    ]
    mean = interval_h(job, nodes * world.churn.per_hour)
    return {"intervalSeconds": round(mean * 3600), "byNodeAge": by_age}


def workload(job: Job) -> Workload:
    """The job as the matrix sees it."""
    return Workload(
        kind=Kind.BATCH if job.batch else Kind.TRAINING,
        resumable=job.resumable or job.batch,
        gang=job.nodes > 1,
        deadline=Deadline.of(job.hours, job.deadline_h),
        beyond_flex=job.hours * 3600 > FLEX_MAX_RUN_S,
    )


def capacities(options: list[Option], chosen: Option) -> list[Capacity]:
    if chosen.placement is Placement.HYBRID:
        return [Capacity.SPOT, Capacity.ON_DEMAND]
    single = [o for o in options if o.placement in _ORDER and not o.refused]
    kept = [o for o in sorted(single, key=lambda o: o.mean_usd) if not o.late > chosen.late]
    return list(dict.fromkeys(_ORDER[o.placement] for o in (chosen, *kept)))


def class_name(job: Job, chosen: Option) -> str:
    return f"{job.accelerator.removeprefix('nvidia-')}-{chosen.placement.value}"


def write(folder: Path, documents: dict[str, dict[str, Any]]) -> list[Path]:
    from ruamel.yaml import YAML

    folder.mkdir(parents=True, exist_ok=True)
    yaml = YAML()
    yaml.indent(mapping=2, sequence=4, offset=2)
    for name, document in documents.items():
        with (folder / name).open("w") as file:
            yaml.dump(document, file)
    return [folder / name for name in documents]


def _priority(job: Job, capacity: Capacity) -> dict[str, Any]:
    rule: dict[str, Any] = {
        "machineType": job.machine.name,
        "gpu": {"type": job.accelerator, "count": job.machine.gpus, "driverVersion": "latest"},
    }
    if capacity is Capacity.SPOT:
        return rule | {"spot": True}
    if capacity is Capacity.FLEX_START:
        rule |= {"flexStart": {"enabled": True}, "maxRunDurationSeconds": FLEX_MAX_RUN_S}
        return rule | ({"capacityCheckWaitTimeSeconds": _patience_s(job)} if math.isfinite(job.deadline_h) else {})
    return rule | {"spot": False}


def _patience_s(job: Job) -> int:
    """How long the queue may be waited for, until only the next capacity still arrives in time."""
    slack_s = (job.deadline_h - job.hours - 2 * job.restart_h) * 3600
    return int(min(max(slack_s, 1), MAX_CAPACITY_WAIT_S))
