"""What the exporter keeps of a node and of a pod: the few fields below. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.ledger.disruptions import disruption
from holdfast.support.values import unix_s
from holdfast.vocabulary import pools
from holdfast.vocabulary.capacity import QUEUES, Capacity
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
from holdfast.vocabulary.telemetry import KIND_BATCH, KIND_TRAINING

# Of a pod, the first of these names its job; ours also names those of a Deployment.
JOB_LABELS = (LABEL_HOLDFAST_JOB, LABEL_JOBSET, LABEL_JOB)
# Taints and reasons that show that a node is being reclaimed, not scaled down.
TERMINATION_TAINTS = frozenset({"cloud.google.com/impending-node-termination"})
SHUTDOWN_REASONS = ("node is shutting down",)
SPOT = "spot"
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
    """When it was deleted, until that is written; 0 before and after."""
    own_usd_per_hour: float = 0.0
    """Of a reservation, by its pool's label; 0 where list prices hold."""


@dataclass(frozen=True, slots=True)
class Pod:
    namespace: str
    job: str
    index: int | None
    """Of its run, where each index of the job trains apart."""
    node: str
    running_since_s: float
    """Its containers run since; 0 if they do not."""
    waits_since_s: float
    """Unschedulable since; 0 if it is not."""
    capacity: str
    accelerator: str
    system: bool
    disrupted: bool = False
    """The platform ends it."""
    owner: str = ""
    """Uid of what controls it."""
    kind: str = ""
    """Of its job by the pod's account, as event lines name it; empty for other accounts."""

    @property
    def identity(self) -> JobIdentity:
        return JobIdentity(
            namespace=self.namespace,
            job=self.job,
            index=self.index,
        )


def read_node(found: Mapping[str, Any]) -> Node:
    meta = found["metadata"]
    labels = meta.get("labels") or {}
    annotations = meta.get("annotations") or {}
    return Node(
        pool=labels.get(pools.LABEL_NODEPOOL, ""),
        zone=labels.get(pools.LABEL_ZONE, ""),
        machine_type=labels.get(LABEL_MACHINE_TYPE, ""),
        capacity=_capacity(labels),
        born_s=unix_s(meta.get("creationTimestamp")),
        ends_s=unix_s(annotations.get(ANNOTATION_TERMINATION)),
        taken=is_taken(found),
        silent=pools.UNREACHABLE in _taints(found),
        own_usd_per_hour=_usd(labels.get(pools.LABEL_OWN_PRICE, "")),
    )


def _usd(label: str) -> float:
    return float(label) if re.fullmatch(r"\d{1,6}(\.\d{1,6})?", label) else 0.0


def _taints(found: Mapping[str, Any]) -> set[str]:
    return {taint.get("key", "") for taint in (found.get("spec") or {}).get("taints") or ()}


def is_taken(found: Mapping[str, Any]) -> bool:
    if TERMINATION_TAINTS & _taints(found):
        return True
    ready = condition(found, "Ready")
    return ready.get("status", "True") != "True" and any(
        r in (ready.get("message") or "") for r in SHUTDOWN_REASONS
    )


# The kubelet ends pods for one reason that sets this: its node is shutting down.
BY_KUBELET = "TerminationByKubelet"


def _asked(labels: Mapping[str, str], selector: Mapping[str, str]) -> str:
    """Of a pod. One whose job may be moved selects a pool's class and no capacity: its queue shows
    which that is.
    """
    # a team's is TEAM-spot
    if labels.get(LABEL_CLUSTER_QUEUE, "").rpartition("-")[2] == QUEUES[Capacity.SPOT]:
        return SPOT
    return _capacity(selector)


def _capacity(labels: Mapping[str, str]) -> str:
    """Of a node's labels, or of a pod's selector."""
    if labels.get(pools.LABEL_SPOT) == "true" or labels.get(pools.LABEL_PROVISIONING) == SPOT:
        return SPOT
    flex = (
        labels.get(pools.LABEL_FLEX_START) == "true"
        or labels.get(pools.LABEL_PROVISIONING) == "flex-start"
    )
    return "flex-start" if flex else "on-demand"


def read_pod(found: Mapping[str, Any]) -> Pod:
    meta = found["metadata"]
    spec = found.get("spec") or {}
    status = found.get("status") or {}
    labels = meta.get("labels") or {}
    selector = spec.get("nodeSelector") or {}
    owners = {owner.get("kind") for owner in meta.get("ownerReferences") or []}
    return Pod(
        namespace=meta["namespace"],
        job=job_of(labels),
        index=_index(labels),
        node=spec.get("nodeName") or "",
        running_since_s=_running_since(status),
        waits_since_s=since_s(found, "PodScheduled", "False"),
        capacity=_asked(labels, selector),
        accelerator=selector.get(pools.LABEL_ACCELERATOR, "none"),
        # DaemonSets belong on every node, and static pods are the node's own.
        system=meta["namespace"] in SYSTEM_NAMESPACES and not owners & {"DaemonSet", "Node"},
        disrupted=bool(disruption(found)[0]),
        owner=controller_of(found),
        kind=_kind(spec.get("serviceAccountName") or ""),
    )


def _kind(account: str) -> str:
    trains = account == "trainer" or account.startswith("run-")
    return KIND_TRAINING if trains else KIND_BATCH if account == "batch" else ""


def controller_of(found: Mapping[str, Any]) -> str:
    """Uid of the object that made this one; empty where it has none."""
    owners = found["metadata"].get("ownerReferences") or ()
    return next((owner["uid"] for owner in owners if owner.get("controller")), "")


def job_of(labels: Mapping[str, str]) -> str:
    """Of a pod; empty for pods of no job."""
    return next((name for label in JOB_LABELS if (name := labels.get(label, ""))), "")


def _index(labels: Mapping[str, str]) -> int | None:
    index = labels.get(ANNOTATION_INDEX, "")
    if labels.get(LABEL_RUN_PER_INDEX) == "true" and is_count(index):
        return int(index)
    return None


def _running_since(status: Mapping[str, Any]) -> float:
    started = [
        (each.get("state") or {}).get("running") or {}
        for each in status.get("containerStatuses") or ()
    ]
    return min((s for each in started if (s := unix_s(each.get("startedAt")))), default=0.0)


def condition(found: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Empty where the object has none of this type."""
    conditions = (found.get("status") or {}).get("conditions") or ()
    return next((each for each in conditions if each.get("type") == kind), {})


def is_true(found: Mapping[str, Any], kind: str) -> bool:
    return condition(found, kind).get("status") == "True"


def since_s(found: Mapping[str, Any], kind: str, status: str = "True") -> float:
    """When a condition took this status; 0 if it has another."""
    each = condition(found, kind)
    if each.get("status") == status:
        return unix_s(each.get("lastTransitionTime"))
    return 0.0


def ended_s(job: Mapping[str, Any]) -> float:
    """When a Job or JobSet was over; 0 while it is not."""
    return max(since_s(job, kind) for kind in OVER)
