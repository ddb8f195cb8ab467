"""Writes the answer as manifests: a ComputeClass with the capacities in order, and what a pod needs to land on it.

The class holds what was priced and nothing beside it. A policy that watches a deadline is more than a class can
do; then the files hold the nearest that it can, and state its own price. Labels, taints and limits come from the
contract.
"""

# Why it is so: infra/decisions/0056.
import math
from pathlib import Path
from typing import Any

from holdfast.contract import pools
from holdfast.contract.capacity import ANNOTATION_RULE, Capacity, Placement
from holdfast.contract.lifecycle import FLEX_MAX_RUN_S
from holdfast.place import hazard, policies
from holdfast.place.advice import interval_h, job_churn
from holdfast.place.belief import Option, World
from holdfast.place.job import Job
from holdfast.place.matrix import RULES, Deadline, Kind, Workload, decide
from holdfast.place.policies import Policy

API_VERSION = "cloud.google.com/v1"
MAX_CAPACITY_WAIT_S = 86_400  # the field's limit
_ORDER = {
    Placement.SPOT: (Capacity.SPOT,),
    Placement.FLEX_START: (Capacity.FLEX_START,),
    Placement.ON_DEMAND: (Capacity.ON_DEMAND,),
    Placement.HYBRID: (Capacity.SPOT, Capacity.ON_DEMAND),
}


def policy(chosen: Option) -> Policy | None:
    """What a ComputeClass makes of a mix; None where it does just what was priced."""
    # A class has an order of capacities and no clock.
    watches = chosen.placement is Placement.HYBRID and chosen.carried_out_by != policies.COMPUTE_CLASS
    return policies.HYBRID if watches else None


def compute_class(job: Job, emitted: Option) -> dict[str, Any]:
    """Priorities: the capacities of this option in its order. Never two capacities in one rule."""
    wanted = capacities(emitted)
    metadata: dict[str, Any] = {"name": class_name(job, emitted)}
    if wanted == [Capacity.SPOT]:
        metadata["annotations"] = {"holdfast.dev/ignore-HF323": "waiting for Spot is what was priced"}
    spec: dict[str, Any] = {
        "nodePoolAutoCreation": {"enabled": True},
        "priorities": [_priority(job, capacity) for capacity in wanted],
        "whenUnsatisfiable": "DoNotScaleUp",
    }
    if emitted.placement is Placement.HYBRID:
        # Without it a pod that once went to on-demand stays there to its end, which costs far more.
        spec["activeMigration"] = {"optimizeRulePriority": True}
    return {"apiVersion": API_VERSION, "kind": "ComputeClass", "metadata": metadata, "spec": spec}


def pod(job: Job, world: World, chosen: Option, emitted: Option) -> dict[str, Any]:
    """Selector, tolerations and limits of the pod, the rule it follows, and how often it should checkpoint."""
    cited = rule(job, chosen)
    return {
        "metadata": {"annotations": {ANNOTATION_RULE: cited} if cited else {}},
        "spec": {
            "nodeSelector": {pools.LABEL_COMPUTE_CLASS: class_name(job, emitted)},
            "tolerations": [pools.GPU_TAINT.toleration()],
            "containers": [{"name": "main", "resources": {"limits": {pools.GPU_RESOURCE: job.machine.gpus}}}],
        },
        "holdfast": {
            "nodes": job.nodes,
            # A ComputeClass brings flex-start nodes one by one; a gang needs a queued ProvisioningRequest.
            "allAtOnce": job.nodes > 1 and not job.batch,
            "policy": carried_out(job, chosen, emitted),
            "checkpoint": checkpoint(job, world),
        },
    }


def carried_out(job: Job, chosen: Option, emitted: Option) -> dict[str, Any]:
    """What was priced, what the class does by itself, and what that costs."""
    priced: dict[str, Any] = {"priced": chosen.policy, "meanUsd": round(chosen.mean_usd, 2)}
    if emitted is not chosen:
        priced |= {
            "carriedOutBy": chosen.carried_out_by,
            "byTheClassAlone": emitted.policy,
            "classMeanUsd": None if emitted.refused else round(emitted.mean_usd, 2),
        }
    if Capacity.FLEX_START in capacities(emitted) and math.isfinite(job.deadline_h):
        priced["validFor"] = "a start now: the wait is cut from today's slack, so write it anew after a restart"
    return priced


def checkpoint(job: Job, world: World) -> dict[str, Any]:
    """Seconds of work between checkpoints: one number, and by node age for trainers that know theirs."""
    if job.batch or not job.resumable:
        return {"intervalSeconds": None, "why": "a queue commits each item" if job.batch else "the job cannot resume"}
    nodes = 1.0 if job.elastic else job_churn(job, 1.0, world.together)
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
        nodes=1 if job.batch else job.nodes,
        elastic=job.elastic,
        deadline=Deadline.of(job.hours, job.deadline_h),
        beyond_flex=job.hours * 3600 > FLEX_MAX_RUN_S,
    )


def rule(job: Job, chosen: Option) -> str:
    """The first rule of the matrix that fits the job and places it where the arithmetic did; empty where none does.

    The matrix has no numbers, and a pod must not cite a rule that contradicts the node it selects.
    """
    asked = workload(job)
    agreeing = (r for r in (decide(asked), *RULES) if r.when.matches(asked) and r.placement is chosen.placement)
    return next((r.id.value for r in agreeing), "")


def capacities(emitted: Option) -> list[Capacity]:
    in_time = emitted.placement is Placement.FLEX_START and emitted.carried_out_by == policies.COMPUTE_CLASS
    return [*_ORDER[emitted.placement], *([Capacity.ON_DEMAND] if in_time else [])]


def class_name(job: Job, emitted: Option) -> str:
    return f"{job.accelerator.removeprefix('nvidia-')}-{emitted.placement.value}"


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
    machine = job.machine_for(capacity) or job.machine
    rule: dict[str, Any] = {
        "machineType": machine.name,
        "gpu": {"type": job.accelerator, "count": machine.gpus, "driverVersion": "latest"},
    }
    if capacity is Capacity.SPOT:
        return rule | {"spot": True}
    if capacity is Capacity.FLEX_START:
        rule |= {"flexStart": {"enabled": True}, "maxRunDurationSeconds": FLEX_MAX_RUN_S}
        return rule | ({"capacityCheckWaitTimeSeconds": _patience_s(job)} if math.isfinite(job.deadline_h) else {})
    return rule | {"spot": False}


def _patience_s(job: Job) -> int:
    """How long the queue may be waited for, until only the next capacity still arrives in time: from a start now."""
    slack_s = (job.deadline_h - job.hours - 2 * job.restart_h) * 3600
    return int(min(max(slack_s, 1), MAX_CAPACITY_WAIT_S))
