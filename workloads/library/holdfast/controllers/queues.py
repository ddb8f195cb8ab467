"""Jobs that wait without a pod: Kueue's Workloads, and the ProvisioningRequests behind flex-start.

While Kueue or Google's queue holds a job there is no pod, so no pod can be Pending. Pure: objects
as dicts in, samples out. Guarantee: memory follows the objects that exist; every reason is one of
four, so series stay few.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.controllers.cluster_objects import condition, is_true, since_s
from holdfast.controllers.event_lines import Line, admitted
from holdfast.controllers.sample import Sample, sample
from holdfast.support.values import unix_s
from holdfast.vocabulary.kubernetes import KUEUE_INADMISSIBLE
from holdfast.vocabulary.pools import GPU_RESOURCE, LABEL_ACCELERATOR

QUOTA = "quota"
INADMISSIBLE = "inadmissible"
CHECK = "admission-check"
STOPPED = "stopped"
# Conditions of a ProvisioningRequest after which its nodes will not come, or are gone.
LOST_REQUEST = ("Failed", "BookingExpired", "CapacityRevoked")
NONE = "none"


@dataclass(frozen=True, slots=True)
class Waiting:
    """A Workload that Kueue knows and that has not finished."""

    queue: str
    flavor: str
    """Of its GPUs, or of anything, once Kueue has reserved quota; `none` before."""
    accelerator: str
    reason: str
    """Why it has not started; empty: it has."""
    since_s: float
    """Waits since its creation, or since it lost what it had."""


@dataclass(slots=True)
class Queues:
    workloads: dict[str, Waiting] = field(default_factory=dict[str, Waiting])
    requests: dict[str, str] = field(default_factory=dict[str, str])
    """uid -> the condition after which its nodes will not come; empty before."""
    lost: Counter[str] = field(default_factory=Counter[str])
    """Condition -> ProvisioningRequests that ended so since the exporter began."""
    lines: list[Line] = field(default_factory=list[Line])
    """Of jobs that were started since the last call."""

    def workload(self, change: str, found: Mapping[str, Any]) -> None:
        uid = found["metadata"]["uid"]
        if change == "DELETED" or is_true(found, "Finished"):
            self.workloads.pop(uid, None)
            return
        before = self.workloads.get(uid)
        now = read_workload(found)
        # One that had started before anybody watched was counted by the exporter before this one.
        if before and before.reason and not now.reason:
            self._started(found, now, before.since_s)
        self.workloads[uid] = now

    def _started(self, found: Mapping[str, Any], now: Waiting, before_s: float) -> None:
        at_s = since_s(found, "Admitted") or before_s
        waited_s = max(0.0, at_s - before_s)
        self.lines.append(admitted(now.queue, now.flavor, now.accelerator, at_s, waited_s))

    def request(self, change: str, found: Mapping[str, Any]) -> None:
        uid = found["metadata"]["uid"]
        before = self.requests.get(uid)
        if change == "DELETED":
            self.requests.pop(uid, None)
            return
        now = next((kind for kind in LOST_REQUEST if is_true(found, kind)), "")
        # One that had failed before anybody watched was counted by the exporter before this one.
        if now and before == "":
            self.lost[now] += 1
        self.requests[uid] = now

    def reset_counters(self) -> None:
        self.lost.clear()

    def samples(self, now_s: float) -> Iterable[Sample]:
        longest: dict[tuple[str, str, str, str], float] = defaultdict(float)
        pending = Counter[str]()
        started = Counter[str]()
        for one in self.workloads.values():
            # A series for every queue: zero is news, and an absent series would be none.
            pending[one.queue] += one.reason in (QUOTA, INADMISSIBLE)
            # What waits for an admission check has passed its queue: Google's answer takes hours by
            # design.
            started[one.queue] += one.reason in ("", CHECK)
            if one.reason:
                key = one.queue, one.flavor, one.accelerator, one.reason
                longest[key] = max(longest[key], now_s - one.since_s)
        for (queue, flavor, accelerator, reason), waited in longest.items():
            labels = {
                "queue": queue,
                "flavor": flavor,
                "accelerator": accelerator,
                "reason": reason,
            }
            yield sample("queue_wait_seconds", waited, **labels)
        for queue in pending:
            yield sample("queue_pending_workloads", pending[queue], queue=queue)
            yield sample("queue_started_workloads", started[queue], queue=queue)
        for kind in LOST_REQUEST:
            yield sample("provisioning_requests_lost_total", self.lost[kind], reason=kind)


def read_workload(found: Mapping[str, Any]) -> Waiting:
    spec = found.get("spec") or {}
    status = found.get("status") or {}
    return Waiting(
        queue=spec.get("queueName") or NONE,
        flavor=_flavor(status),
        accelerator=_accelerator(spec),
        reason=_reason(found),
        since_s=_since_s(found),
    )


def _reason(found: Mapping[str, Any]) -> str:
    if is_true(found, "Admitted"):
        return ""
    if not (found.get("spec") or {}).get("active", True):
        return STOPPED
    if is_true(found, "QuotaReserved"):
        return CHECK
    if condition(found, "QuotaReserved").get("reason") in KUEUE_INADMISSIBLE:
        return INADMISSIBLE
    return QUOTA


def _since_s(found: Mapping[str, Any]) -> float:
    """An evicted workload waits since then: what it waited before its first start is over."""
    return max(unix_s(found["metadata"].get("creationTimestamp")), since_s(found, "Evicted"))


def _flavor(status: Mapping[str, Any]) -> str:
    assigned = (status.get("admission") or {}).get("podSetAssignments") or ()
    flavors = [each.get("flavors") or {} for each in assigned]
    of_gpus = (each[GPU_RESOURCE] for each in flavors if GPU_RESOURCE in each)
    return next(of_gpus, next((name for each in flavors for name in each.values()), NONE))


def _accelerator(spec: Mapping[str, Any]) -> str:
    for each in spec.get("podSets") or ():
        pod = (each.get("template") or {}).get("spec") or {}
        name = (pod.get("nodeSelector") or {}).get(LABEL_ACCELERATOR)
        if name:
            return name
    return NONE
