"""Follows jobs that wait without a pod: Kueue's Workloads and flex-start's ProvisioningRequests.

While Kueue or Google's queue holds a job it has no pod, so no pod can be Pending. Pure: objects as
dicts in, samples out. Guarantee: memory follows the objects that exist. There are four reasons, and
queues and accelerators are known ones or `other`, so series stay few.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.controllers.cluster_objects import (
    NONE,
    find_accelerator,
    find_condition,
    is_true,
    since_s,
)
from holdfast.controllers.event_lines import Line, make_admission_line
from holdfast.controllers.sample import Sample, bound_label, sample
from holdfast.support.values import unix_s
from holdfast.vocabulary.capacity import QUEUE_ANY, QUEUES
from holdfast.vocabulary.kubernetes import KUEUE_INADMISSIBLE
from holdfast.vocabulary.pools import GPU_RESOURCE

QUOTA = "quota"
INADMISSIBLE = "inadmissible"
CHECK = "admission-check"
STOPPED = "stopped"
# Conditions after which the nodes of a ProvisioningRequest will not come, or no longer exist.
LOST_REQUEST = ("Failed", "BookingExpired", "CapacityRevoked")
KNOWN_QUEUES = frozenset({NONE, QUEUE_ANY, *QUEUES.values()})


@dataclass(frozen=True, slots=True)
class Waiting:
    """A Workload that Kueue has and that has not finished."""

    queue: str
    flavor: str
    """The flavor of its GPUs, or of any resource, once Kueue has reserved quota; `none` before."""
    accelerator: str
    reason: str
    """The reason why it has not started; empty if it has."""
    since_s: float
    """Start of its wait: its creation, or the loss of its capacity."""


@dataclass(slots=True)
class Queues:
    workloads: dict[str, Waiting] = field(default_factory=dict)
    requests: dict[str, str] = field(default_factory=dict)
    """uid -> the condition after which its nodes will not come; empty before."""
    lost_requests: Counter[str] = field(default_factory=Counter)
    """Condition -> ProvisioningRequests that ended so since the exporter started."""
    lines: list[Line] = field(default_factory=list)
    """Event lines of jobs that were started since the last call."""

    def workload(self, change: str, workload: Mapping[str, Any]) -> None:
        """Applies a change of a Workload."""
        uid = workload["metadata"]["uid"]
        if change == "DELETED" or is_true(workload, "Finished"):
            self.workloads.pop(uid, None)
            return
        before = self.workloads.get(uid)
        now = parse_workload(workload)
        # The previous exporter counted the Workloads that started before this one watched.
        if before and before.reason and not now.reason:
            self._record_start(workload, now, before.since_s)
        self.workloads[uid] = now

    def _record_start(
        self, workload: Mapping[str, Any], waiting: Waiting, wait_begin_s: float
    ) -> None:
        admitted_s = since_s(workload, "Admitted") or wait_begin_s
        line = make_admission_line(
            waiting.queue,
            waiting.flavor,
            waiting.accelerator,
            admitted_s,
            waited_s=max(0.0, admitted_s - wait_begin_s),
        )
        self.lines.append(line)

    def request(self, change: str, request: Mapping[str, Any]) -> None:
        """Applies a change of a ProvisioningRequest."""
        uid = request["metadata"]["uid"]
        before = self.requests.get(uid)
        if change == "DELETED":
            self.requests.pop(uid, None)
            return
        condition = ""
        for kind in LOST_REQUEST:
            if is_true(request, kind):
                condition = kind
                break
        # The previous exporter counted the requests that failed before this one watched.
        if condition and before == "":
            self.lost_requests[condition] += 1
        self.requests[uid] = condition

    def reset_counters(self) -> None:
        self.lost_requests.clear()

    def samples(self, now_s: float) -> Iterable[Sample]:
        longest: dict[tuple[str, str, str, str], float] = defaultdict(float)
        pending = Counter[str]()
        started = Counter[str]()
        for workload in self.workloads.values():
            # Every queue has a series: an absent one would not tell an empty queue.
            pending[workload.queue] += workload.reason in (QUOTA, INADMISSIBLE)
            # A workload that waits for an admission check has passed its queue. Google's answer
            # takes hours by design.
            started[workload.queue] += workload.reason in ("", CHECK)
            if workload.reason:
                key = (
                    workload.queue,
                    workload.flavor,
                    workload.accelerator,
                    workload.reason,
                )
                longest[key] = max(longest[key], now_s - workload.since_s)
        for (queue, flavor, accelerator, reason), waited_s in longest.items():
            labels = {
                "queue": queue,
                "flavor": flavor,
                "accelerator": accelerator,
                "reason": reason,
            }
            yield sample("queue_wait_seconds", waited_s, **labels)
        for queue in pending:
            yield sample("queue_pending_workloads", pending[queue], queue=queue)
            yield sample("queue_started_workloads", started[queue], queue=queue)
        for kind in LOST_REQUEST:
            count = self.lost_requests[kind]
            yield sample("provisioning_requests_lost_total", count, reason=kind)


def parse_workload(workload: Mapping[str, Any]) -> Waiting:
    spec = workload.get("spec") or {}
    status = workload.get("status") or {}
    return Waiting(
        queue=bound_label(spec.get("queueName") or NONE, KNOWN_QUEUES),
        flavor=_find_flavor(status),
        accelerator=_find_accelerator(spec),
        reason=_find_reason(workload),
        since_s=_find_wait_begin_s(workload),
    )


def _find_reason(workload: Mapping[str, Any]) -> str:
    spec = workload.get("spec") or {}
    if is_true(workload, "Admitted"):
        return ""
    if not spec.get("active", True):
        return STOPPED
    if is_true(workload, "QuotaReserved"):
        return CHECK
    quota = find_condition(workload, "QuotaReserved")
    if quota.get("reason") in KUEUE_INADMISSIBLE:
        return INADMISSIBLE
    return QUOTA


def _find_wait_begin_s(workload: Mapping[str, Any]) -> float:
    """An evicted Workload waits since its eviction: the wait before its first start is over."""
    created_s = unix_s(workload["metadata"].get("creationTimestamp"))
    return max(created_s, since_s(workload, "Evicted"))


def _find_flavor(status: Mapping[str, Any]) -> str:
    admission = status.get("admission") or {}
    names: list[str] = []
    for assignment in admission.get("podSetAssignments") or ():
        flavors = assignment.get("flavors") or {}
        if GPU_RESOURCE in flavors:
            return flavors[GPU_RESOURCE]
        names += flavors.values()
    return names[0] if names else NONE


def _find_accelerator(spec: Mapping[str, Any]) -> str:
    for pod_set in spec.get("podSets") or ():
        template = pod_set.get("template") or {}
        pod = template.get("spec") or {}
        selector = pod.get("nodeSelector") or {}
        accelerator = find_accelerator(selector)
        if accelerator != NONE:
            return accelerator
    return NONE
