"""Reads the few fields of nodes and pods that exporter and mover keep. Pure."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.controllers.sample import bound_label
from holdfast.ledger.disruptions import find_disruption
from holdfast.support.values import quantity, unix_s
from holdfast.vocabulary import pools
from holdfast.vocabulary.capacity import QUEUE_ANY, QUEUES, Capacity
from holdfast.vocabulary.job_identity import (
    LABEL_HOLDFAST_JOB,
    LABEL_RUN_PER_INDEX,
    JobIdentity,
    is_count,
)
from holdfast.vocabulary.kubernetes import (
    ANNOTATION_INDEX,
    LABEL_CLUSTER_QUEUE,
    LABEL_JOB,
    LABEL_JOBSET,
    LABEL_MACHINE_TYPE,
    SYSTEM_NAMESPACES,
)
from holdfast.vocabulary.lifecycle import ANNOTATION_TERMINATION
from holdfast.vocabulary.machines import ACCELERATORS
from holdfast.vocabulary.telemetry import KIND_BATCH, KIND_TRAINING

# The first of these labels on a pod names its job; ours also name the job of a Deployment.
JOB_LABELS = (LABEL_HOLDFAST_JOB, LABEL_JOBSET, LABEL_JOB)
# Taints and reasons that show that a node is being reclaimed, not scaled down.
TERMINATION_TAINTS = frozenset({"cloud.google.com/impending-node-termination"})
SHUTDOWN_REASONS = ("node is shutting down",)
# The kubelet ends pods with this reason only when its node shuts down.
BY_KUBELET = "TerminationByKubelet"
SPOT = "spot"
NONE = "none"
# Conditions of a Job or JobSet that is done.
OVER = frozenset({"Complete", "Completed", "Failed"})


@dataclass(frozen=True, slots=True)
class Node:
    pool: str
    zone: str
    machine_type: str
    capacity: str
    born_s: float
    ends_s: float
    """Planned end; 0 without one."""
    taken: bool
    """It got the order to shut down."""
    silent: bool = False
    """Its kubelet stopped reporting."""
    gone_s: float = 0.0
    """Time of its deletion until the event line is written; 0 before and after."""
    own_usd_per_hour: float = 0.0
    """Price of a reservation, by its pool's label; 0 if list prices hold."""


@dataclass(frozen=True, slots=True)
class Pod:
    namespace: str
    job: str
    index: int | None
    """Index of its run, if each index of the job trains apart."""
    node: str
    running_since_s: float
    """Start of its first running container; 0 if none runs."""
    waits_since_s: float
    """Time since when it is unschedulable; 0 if it is not."""
    capacity: str
    accelerator: str
    system: bool
    disrupted: bool = False
    """The platform ends it."""
    owner: str = ""
    """Uid of its controller."""
    kind: str = ""
    """Kind of its job in event lines, by the pod's service account; empty for other accounts."""
    pool_class: str = ""
    """Class of pools that it selects; empty if it selects none."""
    gpus: int = 0

    @property
    def identity(self) -> JobIdentity:
        return JobIdentity(
            namespace=self.namespace,
            job=self.job,
            index=self.index,
        )


def parse_node(body: Mapping[str, Any]) -> Node:
    meta = body["metadata"]
    labels = meta.get("labels") or {}
    annotations = meta.get("annotations") or {}
    return Node(
        pool=labels.get(pools.LABEL_NODEPOOL, ""),
        zone=labels.get(pools.LABEL_ZONE, ""),
        machine_type=labels.get(LABEL_MACHINE_TYPE, ""),
        capacity=_find_capacity(labels),
        born_s=unix_s(meta.get("creationTimestamp")),
        ends_s=unix_s(annotations.get(ANNOTATION_TERMINATION)),
        taken=is_taken(body),
        silent=pools.UNREACHABLE in _list_taints(body),
        own_usd_per_hour=_parse_price(labels.get(pools.LABEL_OWN_PRICE, "")),
    )


def _parse_price(label: str) -> float:
    if not re.fullmatch(r"\d{1,6}(\.\d{1,6})?", label):
        return 0.0
    return float(label)


def _list_taints(node: Mapping[str, Any]) -> set[str]:
    spec = node.get("spec") or {}
    return {taint.get("key", "") for taint in spec.get("taints") or ()}


def is_taken(node: Mapping[str, Any]) -> bool:
    """Returns whether a node is being reclaimed, by its taints or its condition Ready."""
    if TERMINATION_TAINTS & _list_taints(node):
        return True
    ready = find_condition(node, "Ready")
    if ready.get("status", "True") == "True":
        return False
    message = ready.get("message") or ""
    return any(reason in message for reason in SHUTDOWN_REASONS)


def _find_pod_capacity(labels: Mapping[str, str], selector: Mapping[str, str]) -> str:
    """Returns the capacity that a pod asks for.

    The pods of a movable job select a pool's class and no capacity, so their queue counts first.
    """
    # A team's queue is called TEAM-spot.
    queue = labels.get(LABEL_CLUSTER_QUEUE, "").rpartition("-")[2]
    if queue in (QUEUES[Capacity.SPOT], QUEUE_ANY):
        return SPOT
    return _find_capacity(selector)


def _find_capacity(labels: Mapping[str, str]) -> str:
    """Returns the capacity by a node's labels, or by a pod's selector."""
    provisioning = labels.get(pools.LABEL_PROVISIONING)
    if labels.get(pools.LABEL_SPOT) == "true" or provisioning == SPOT:
        return SPOT
    if labels.get(pools.LABEL_FLEX_START) == "true" or provisioning == "flex-start":
        return "flex-start"
    return "on-demand"


def parse_pod(body: Mapping[str, Any]) -> Pod:
    meta = body["metadata"]
    spec = body.get("spec") or {}
    status = body.get("status") or {}
    labels = meta.get("labels") or {}
    selector = spec.get("nodeSelector") or {}
    owners = {owner.get("kind") for owner in meta.get("ownerReferences") or []}
    # DaemonSets belong on every node, and static pods belong to their node.
    belongs_to_node = bool(owners & {"DaemonSet", "Node"})
    return Pod(
        namespace=meta["namespace"],
        job=find_job(labels),
        index=_find_index(labels),
        node=spec.get("nodeName") or "",
        running_since_s=_find_start_s(status),
        waits_since_s=since_s(body, "PodScheduled", "False"),
        capacity=_find_pod_capacity(labels, selector),
        accelerator=find_accelerator(selector),
        system=meta["namespace"] in SYSTEM_NAMESPACES and not belongs_to_node,
        disrupted=bool(find_disruption(body)[0]),
        owner=find_controller(body),
        kind=_find_kind(spec.get("serviceAccountName") or ""),
        pool_class=selector.get(pools.LABEL_POOL_CLASS, ""),
        gpus=_count_gpus(spec),
    )


def _count_gpus(spec: Mapping[str, Any]) -> int:
    count = 0.0
    for container in spec.get("containers") or ():
        limits = (container.get("resources") or {}).get("limits") or {}
        count += quantity(limits.get(pools.GPU_RESOURCE, 0)) or 0
    return int(count)


def find_accelerator(selector: Mapping[str, str]) -> str:
    """Returns the accelerator that a pod's selector asks for: a known one, `none`, or `other`."""
    accelerator = selector.get(pools.LABEL_ACCELERATOR) or NONE
    return bound_label(accelerator, {NONE, *ACCELERATORS})


def _find_kind(account: str) -> str:
    if account == "trainer" or account.startswith("run-"):
        return KIND_TRAINING
    return KIND_BATCH if account == "batch" else ""


def find_controller(body: Mapping[str, Any]) -> str:
    """Returns the uid of the object that controls this one; empty if none does."""
    for owner in body["metadata"].get("ownerReferences") or ():
        if owner.get("controller"):
            return owner["uid"]
    return ""


def find_job(labels: Mapping[str, str]) -> str:
    """Returns the job of a pod by its labels; empty for pods of no job."""
    for label in JOB_LABELS:
        if labels.get(label):
            return labels[label]
    return ""


def _find_index(labels: Mapping[str, str]) -> int | None:
    index = labels.get(ANNOTATION_INDEX, "")
    if labels.get(LABEL_RUN_PER_INDEX) == "true" and is_count(index):
        return int(index)
    return None


def _find_start_s(status: Mapping[str, Any]) -> float:
    starts: list[float] = []
    for container in status.get("containerStatuses") or ():
        state = container.get("state") or {}
        running = state.get("running") or {}
        start_s = unix_s(running.get("startedAt"))
        if start_s:
            starts.append(start_s)
    return min(starts, default=0.0)


def find_condition(body: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Returns the condition of this type; empty if the object has none."""
    status = body.get("status") or {}
    for condition in status.get("conditions") or ():
        if condition.get("type") == kind:
            return condition
    return {}


def is_true(body: Mapping[str, Any], kind: str) -> bool:
    return find_condition(body, kind).get("status") == "True"


def since_s(body: Mapping[str, Any], kind: str, status: str = "True") -> float:
    """Returns when a condition took this status; 0 if it has another."""
    condition = find_condition(body, kind)
    if condition.get("status") == status:
        return unix_s(condition.get("lastTransitionTime"))
    return 0.0


def find_end_s(job: Mapping[str, Any]) -> float:
    """Returns when a Job or JobSet completed or failed; 0 before."""
    return max(since_s(job, kind) for kind in OVER)


def find_held(workloads: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the Workload of each job by the job's uid: of several the one that has quota.

    When Kueue starts more pods of a job, it makes another Workload and finishes the former.
    """
    workload_by_job: dict[str, Any] = {}
    for workload in sorted(workloads, key=_rank_workload):
        uid = find_controller(workload)
        if uid:
            workload_by_job[uid] = workload
    return workload_by_job


def _rank_workload(workload: Mapping[str, Any]) -> tuple[bool, bool, float]:
    created_s = unix_s(workload["metadata"].get("creationTimestamp"))
    is_finished = is_true(workload, "Finished")
    return not is_finished, is_true(workload, "QuotaReserved"), created_s
