"""A ComputeClass that holds the capacities of an option in its order, and nothing more.

A class knows no deadline: with Spot before on-demand, pods go to on-demand at the first outage and, without active
migration, stay there. On recorded H100 zones that costs 1,592 USD with return and 2,617 without, priced at 1,354. So an
option that watches the deadline from Spot has no class; the mover carries it out (infra/decisions/0058). Spot alone is
one priority, which HF323 questions; the class carries the reason.
"""

import math
from typing import Any

from holdfast.contract.capacity import Capacity, Placement
from holdfast.contract.lifecycle import FLEX_MAX_RUN_S
from holdfast.place import option_names, policies
from holdfast.place.belief import Option
from holdfast.place.job import Job

MAX_CAPACITY_WAIT_S = 86_400  # the field's limit
_SPOT, _FLEX, _DEMAND = Capacity.SPOT, Capacity.FLEX_START, Capacity.ON_DEMAND
_ORDER = {Placement.SPOT: [_SPOT], Placement.ON_DEMAND: [_DEMAND], Placement.HYBRID: [_SPOT, _DEMAND]}


def needs_mover(option: Option) -> bool:
    """It watches the deadline from Spot: a class has an order of capacities and no clock."""
    return option_names.in_time(option) in policies.IN_TIME


def compute_class(job: Job, option: Option) -> dict[str, Any]:
    """Never two capacities in one rule."""
    flex = [_FLEX, _DEMAND] if option.policy == option_names.QUEUE_IN_TIME else [_FLEX]
    rules = [_priority(job, capacity) for capacity in _ORDER.get(option.placement, flex)]
    metadata: dict[str, Any] = {"name": f"{job.accelerator.removeprefix('nvidia-')}-{option.placement.value}"}
    if option.placement is Placement.SPOT:
        metadata["annotations"] = {"holdfast.dev/ignore-HF323": "waiting for Spot is what was priced"}
    spec: dict[str, Any] = {
        "nodePoolAutoCreation": {"enabled": True}, "priorities": rules, "whenUnsatisfiable": "DoNotScaleUp",
    }  # fmt: skip
    if option.placement is Placement.HYBRID:
        # Without it a pod that once went to on-demand stays there to its end, which costs far more.
        spec["activeMigration"] = {"optimizeRulePriority": True}
    return {"apiVersion": "cloud.google.com/v1", "kind": "ComputeClass", "metadata": metadata, "spec": spec}


def _priority(job: Job, capacity: Capacity) -> dict[str, Any]:
    machine = job.machine_for(capacity) or job.machine
    gpu = {"type": job.accelerator, "count": machine.gpus, "driverVersion": "latest"}
    rule: dict[str, Any] = {"machineType": machine.name, "gpu": gpu}
    if capacity is not _FLEX:
        return rule | {"spot": capacity is _SPOT}
    rule |= {"flexStart": {"enabled": True}, "maxRunDurationSeconds": FLEX_MAX_RUN_S}
    if math.isfinite(job.deadline_h):
        # Until only on-demand still arrives in time: from a start now.
        slack_s = (job.deadline_h - job.hours - 2 * job.restart_h) * 3600
        rule["capacityCheckWaitTimeSeconds"] = int(min(max(slack_s, 1), MAX_CAPACITY_WAIT_S))
    return rule
