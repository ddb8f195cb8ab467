"""What explains a job: a reason for programs, the number that blocks, what to do, the command that
shows it.

And how its pods ended: what the platform took and what failed by itself, counted, past losses
included. Kubernetes keeps no such count for a Job without backoffLimitPerIndex: there the pods that
are left, the Job's status and its events are read together, and the answer may be a lower bound.
Pure.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from holdfast.clients.api import Object
from holdfast.jobs.diagnose.cluster_snapshot import events_about, times_seen
from holdfast.jobs.diagnose.job_snapshot import JobSnapshot, containers, crashed, disruption
from holdfast.vocabulary.kubernetes import (
    ANNOTATION_CHARGED_FAILURES,
    ANNOTATION_IGNORED_FAILURES,
    ANNOTATION_INDEX,
)


class Reason(StrEnum):
    """Stable: programs match it."""

    DONE = "done"
    FAILED = "failed"
    NONE = "none"  # all its pods run
    SUSPENDED = "suspended"  # by hand, no queue has it
    QUOTA = "quota"  # of the queue, of the namespace or of the Google project
    FLEX_QUEUE = "flex-queue"  # Dynamic Workload Scheduler has not granted the nodes yet
    GATE = "gate"  # an admission check or a scheduling gate
    REFUSED = "refused"  # the API server refuses its pods
    IMAGE = "image"
    CONFIG = "config"  # a ConfigMap, Secret or setting without which no container can be made
    VOLUME = "volume"  # a claim, a disk or a bucket
    INIT = "init"  # an init container fails
    TAINT = "taint"
    SELECTOR = "selector"
    STOCK_OUT = "stock-out"  # Google has no such machine now
    POOL_LIMIT = "pool-limit"  # the pool, or auto-provisioning, is at its maximum
    SCALE_UP = "scale-up"  # nodes are on their way
    CAPACITY = "capacity"  # nodes fit and are full
    STARTING = "starting"  # a node each, containers not up yet
    CRASH = "crash"
    MEMORY = "memory"  # killed at its memory limit
    NODE = "node"  # the kubelet turned it away or put it out
    BACK_OFF = "back-off"  # taken down and not created again yet


@dataclass(frozen=True, slots=True)
class Cause:
    reason: Reason
    blocker: str
    action: str
    evidence: str
    position: str = ""


_ASIDE = re.compile(
    r"no new claims to deallocate|preemption:|Pod is at risk of not being scheduled"
)


def describe(pod: Object) -> str:
    return f"kubectl describe pod -n {pod['metadata']['namespace']} {pod['metadata']['name']}"


_BRIEF = 240


def brief(text: str) -> str:
    """One line: what a controller adds about preemption attempts or asks of the reader is left out."""
    line = _ASIDE.split(" ".join(text.split()))[0].strip().removesuffix(".")
    return line if len(line) <= _BRIEF else f"{line[: _BRIEF - 3]}..."


_BUCKET_SIDECAR = "gke-gcsfuse-sidecar"
_PRESSED = "Evicted"  # the kubelet's reason for a pod that it removed for memory or disk


@dataclass(frozen=True, slots=True)
class Ending:
    pod: Object
    container: str
    """Empty where the node refused the pod or put it out: no container is to blame."""
    code: int
    reason: str
    message: str
    init: bool = False

    @property
    def kind(self) -> tuple[str, int, str]:
        return self.container, self.code, self.reason


def ended(job: JobSnapshot) -> Cause | None:
    """The most frequent ending of its pods, and how many ended so."""
    found = [ending for pod in job.pods for ending in _endings(pod)]
    if not found:
        return None
    kind, many = Counter(ending.kind for ending in found).most_common(1)[0]
    return _cause(job, next(e for e in reversed(found) if e.kind == kind), many)


def _endings(pod: Object) -> Iterator[Ending]:
    """One a failed pod; of a pod that lives, one each container that was started again."""
    status = pod["status"]
    failed = status.get("phase") == "Failed"
    if failed and disruption(pod) and status.get("reason") != _PRESSED:
        return
    inits = {each["name"] for each in status.get("initContainerStatuses") or ()}
    state = "state" if failed else "lastState"
    found = [
        Ending(
            pod,
            name,
            int(end["exitCode"]),
            end.get("reason", ""),
            end.get("message", ""),
            name in inits,
        )
        for name, each in ((each["name"], each) for each in containers(pod))
        if (end := each.get(state, {}).get("terminated")) and end["exitCode"]
    ]
    if failed and (status.get("reason") or not found):
        yield Ending(pod, "", 0, status.get("reason", "Failed"), status.get("message", ""))
    else:
        yield from found[:1] if failed else found


def _cause(job: JobSnapshot, worst: Ending, many: int) -> Cause:
    pods = f"in {many} pods"
    last = brief(worst.message.strip().rpartition("\n")[2])
    details = f"exit code {worst.code} {pods}" + (f": {last}" if last else "")
    logs = f"kubectl logs -n {job.namespace} {worst.pod['metadata']['name']} -c {worst.container}"
    if not worst.container:
        blocker = f"{worst.reason} {pods}: {brief(worst.message) or 'the kubelet says no more'}"
        action = (
            "ask for what the pod uses: memory, ephemeral-storage and GPUs as requests and limits"
        )
        return Cause(Reason.NODE, blocker, action, describe(worst.pod))
    if worst.reason == "OOMKilled":
        blocker = f"{worst.container} was killed at its memory limit of {_limit(worst)} {pods}"
        action = (
            "raise limits.memory, or load less at once (batch size, loader workers, tmpfs counts"
            " too)"
        )
        return Cause(Reason.MEMORY, blocker, action, describe(worst.pod))
    if worst.container == _BUCKET_SIDECAR:
        action = (
            "check the bucket's name and the service account's right; give the sidecar more memory"
        )
        return Cause(Reason.VOLUME, f"{worst.container}: {details}", action, logs)
    if worst.init:
        action = "fix the init container: the main one has not begun"
        return Cause(Reason.INIT, f"init container {worst.container}: {details}", action, logs)
    return Cause(
        Reason.CRASH,
        details,
        "read the log; a crash uses up the job's own limit, an eviction does not",
        logs,
    )


def _limit(worst: Ending) -> str:
    spec = worst.pod["spec"]
    every = [*spec.get("initContainers", ()), *spec["containers"]]
    own = next((c for c in every if c["name"] == worst.container), {})
    return str(own.get("resources", {}).get("limits", {}).get("memory", "the node (none is set)"))


@dataclass(frozen=True, slots=True)
class Count:
    number: int
    exact: bool = True

    def __str__(self) -> str:
        """`3+`: at least 3."""
        return f"{self.number}{'' if self.exact else '+'}"


class Losses(NamedTuple):
    evicted: Count
    crashed: Count


def losses(job: JobSnapshot, events: Iterable[Object] = (), notices: int = 0) -> Losses:
    """`notices`: times that the job stopped cleanly after a notice, by its own event lines."""
    if job.kind == "JobSet":  # it counts its own restarts, those that its policy ignores apart
        charged = int(job.status.get("restartsCountTowardsMax", 0))
        restarts = int(job.status.get("restarts", 0))
        return Losses(Count(restarts - charged), Count(max(charged, len(crashed(job)))))
    if job.kind == "Deployment":  # it keeps no count: what the pods that are left show
        restarts = sum(
            int(each.get("restartCount", 0)) for pod in job.pods for each in containers(pod)
        )
        taken = sum(bool(disruption(pod)) for pod in job.phase("Failed"))
        return Losses(Count(taken, exact=False), Count(restarts + len(crashed(job)), exact=False))
    if "backoffLimitPerIndex" in job.body["spec"]:
        evicted = _per_index(
            job.pods, ANNOTATION_IGNORED_FAILURES, lambda pod: bool(disruption(pod))
        )
        charged = _per_index(job.pods, ANNOTATION_CHARGED_FAILURES, lambda pod: not disruption(pod))
        return Losses(Count(evicted), Count(charged))
    return _of_job(job, events, notices)


def _of_job(job: JobSnapshot, events: Iterable[Object], notices: int) -> Losses:
    """A pod that its Job made, that neither lives nor succeeded and was not charged, was evicted.

    The events of creation go after an hour and are rationed, so this is a lower bound. A policy
    that does not ignore disruptions charges them too: then only the pods that are left show which
    was which.
    """
    charged = int(job.status.get("failed", 0))
    there = sum(bool(disruption(pod)) for pod in job.phase("Failed"))
    if not _ignores_disruptions(job):
        unknown = charged - there - len(crashed(job))
        return Losses(Count(there, unknown <= 0), Count(len(crashed(job)), unknown <= 0))
    made = sum(times_seen(event) for event in events_about(events, {job.uid}, "SuccessfulCreate"))
    gone = made - len(job.active) - int(job.status.get("succeeded", 0)) - charged
    # Pods as old as the job are no replacements.
    start = job.status.get("startTime", "")
    first = len(job.pods) <= job.size and all(
        pod["metadata"]["creationTimestamp"] <= start for pod in job.pods
    )
    evicted = max(there, gone, notices)
    return Losses(Count(evicted, exact=first and not (charged or evicted)), Count(charged))


def _ignores_disruptions(job: JobSnapshot) -> bool:
    rules = job.body["spec"].get("podFailurePolicy", {}).get("rules", ())
    ignored = (
        c for rule in rules if rule["action"] == "Ignore" for c in rule.get("onPodConditions", ())
    )
    return any(c["type"] == "DisruptionTarget" for c in ignored)


def _per_index(pods: Iterable[Object], counter: str, ours: Callable[[Object], bool]) -> int:
    """Per index, whichever knows of more: the failed pods that are there, or the newest pod's count
    of those before.
    """
    indexes: dict[str, list[Object]] = {}
    for n, pod in enumerate(pods):
        index = pod["metadata"].get("annotations", {}).get(ANNOTATION_INDEX, f"none-{n}")
        indexes.setdefault(index, []).append(pod)

    def lost(pod: Object) -> bool:
        return pod["status"].get("phase") == "Failed" and ours(pod)

    def before(pod: Object) -> int:
        return int(pod["metadata"].get("annotations", {}).get(counter, 0))

    return sum(
        max(sum(map(lost, each)), max(before(pod) + lost(pod) for pod in each))
        for each in indexes.values()
    )
