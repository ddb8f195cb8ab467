"""Explains how the pods of a job ended, and counts evictions and crashes apart.

Kubernetes keeps no such count for a Job without backoffLimitPerIndex: there the remaining pods, the
Job's status and its events are read together, and the answer may be a lower bound. Nothing here
asks the cluster.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from holdfast.clients.api import Object
from holdfast.jobs.diagnose.cluster_snapshot import events_about, times_seen
from holdfast.jobs.diagnose.job_snapshot import (
    JobSnapshot,
    disruption,
    list_container_statuses,
    list_crashes,
)
from holdfast.jobs.diagnose.reasons import Cause, Reason, brief, describe
from holdfast.vocabulary.kubernetes import (
    ANNOTATION_CHARGED_FAILURES,
    ANNOTATION_IGNORED_FAILURES,
    ANNOTATION_INDEX,
)

_BUCKET_SIDECAR = "gke-gcsfuse-sidecar"
# Reasons of Kueue that stop a job whose nodes are sound.
_QUEUE_EVICTIONS = ("Preempted", "PodsReadyTimeout", "AdmissionCheck", "ClusterQueueStopped")
_PRESSURE = "Evicted"  # the kubelet's reason for a pod that it removed for memory or disk


@dataclass(frozen=True, slots=True)
class Ending:
    pod: Object
    container: str
    """Name of the container; empty if the node rejected or evicted the pod."""
    code: int
    reason: str
    message: str
    init: bool = False

    @property
    def kind(self) -> tuple[str, int, str]:
        return self.container, self.code, self.reason


def explain_failure(job: JobSnapshot) -> Cause | None:
    """Return the most frequent ending of the job's pods as a cause, or None if none ended so."""
    endings: list[Ending] = []
    for pod in job.pods:
        endings += _list_endings(pod)
    if not endings:
        return None
    counts = Counter(ending.kind for ending in endings)
    ((kind, count),) = counts.most_common(1)
    newest = next(ending for ending in reversed(endings) if ending.kind == kind)
    return _make_cause(job, newest, count)


def list_messages(pod: Object) -> list[str]:
    """Return what the containers of a pod said when they ended."""
    return [ending.message for ending in _list_endings(pod) if ending.message]


def _list_endings(pod: Object) -> list[Ending]:
    """Return the ending of a failed pod, or those of the containers that were started again."""
    status = pod["status"]
    failed = status.get("phase") == "Failed"
    reason = status.get("reason")
    if failed and disruption(pod) and reason != _PRESSURE:
        return []
    endings = list(_list_container_endings(pod, "state" if failed else "lastState"))
    if not failed:
        return endings
    if reason or not endings:
        return [Ending(pod, "", 0, status.get("reason", "Failed"), status.get("message", ""))]
    return endings[:1]


def _list_container_endings(pod: Object, state: str) -> Iterator[Ending]:
    init_statuses = pod["status"].get("initContainerStatuses") or ()
    init_names = {status["name"] for status in init_statuses}
    for status in list_container_statuses(pod):
        end = status.get(state, {}).get("terminated")
        if end and end["exitCode"]:
            yield Ending(
                pod,
                status["name"],
                int(end["exitCode"]),
                end.get("reason", ""),
                end.get("message", ""),
                status["name"] in init_names,
            )


def _make_cause(job: JobSnapshot, ending: Ending, count: int) -> Cause:
    pods = f"in {count} pods"
    name = ending.pod["metadata"]["name"]
    container = ending.container
    _, _, last_line = ending.message.strip().rpartition("\n")
    last_line = brief(last_line)
    details = f"exit code {ending.code} {pods}"
    if last_line:
        details += f": {last_line}"
    logs = f"kubectl logs -n {job.namespace} {name} -c {container}"
    if not container:
        message = brief(ending.message) or "the kubelet says no more"
        blocker = f"{ending.reason} {pods}: {message}"
        action = (
            "ask for what the pod uses: memory, ephemeral-storage and GPUs as requests and limits"
        )
        return Cause(Reason.NODE, blocker, action, describe(ending.pod))
    if ending.reason == "OOMKilled":
        blocker = f"{container} was killed at its memory limit of {_memory_limit(ending)} {pods}"
        action = (
            "raise limits.memory, or load less at once (batch size, loader workers, tmpfs counts"
            " too)"
        )
        return Cause(Reason.MEMORY, blocker, action, describe(ending.pod))
    if container == _BUCKET_SIDECAR:
        action = (
            "check the bucket's name and the service account's right; give the sidecar more memory"
        )
        return Cause(Reason.VOLUME, f"{container}: {details}", action, logs)
    if ending.init:
        action = "fix the init container: the main one has not begun"
        return Cause(Reason.INIT, f"init container {container}: {details}", action, logs)
    action = "read the log; a crash uses up the job's own limit, an eviction does not"
    return Cause(Reason.CRASH, details, action, logs)


def _memory_limit(ending: Ending) -> str:
    spec = ending.pod["spec"]
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        if container["name"] == ending.container:
            limits = container.get("resources", {}).get("limits", {})
            return str(limits.get("memory", "the node (none is set)"))
    return "the node (none is set)"


@dataclass(frozen=True, slots=True)
class Count:
    number: int
    exact: bool = True

    def __str__(self) -> str:
        """Return the number; `3+` is at least 3."""
        return f"{self.number}{'' if self.exact else '+'}"


class Losses(NamedTuple):
    evicted: Count
    crashed: Count


def losses(job: JobSnapshot, events: Iterable[Object] = (), notices: int = 0) -> Losses:
    """Count the evictions and crashes of a job.

    notices: times that the job stopped cleanly after a notice, by its own event lines.
    """
    counted = _count_losses(job, events, notices)
    # Kueue suspends a job that it preempts: its pods are deleted, and no controller counts them.
    queue_evictions = _count_queue_evictions(job.workload)
    if not queue_evictions:
        return counted
    evicted = counted.evicted
    if evicted.exact:
        return counted._replace(evicted=replace(evicted, number=evicted.number + queue_evictions))
    number = max(evicted.number, queue_evictions)
    return counted._replace(evicted=replace(evicted, number=number))


def _count_queue_evictions(workload: Object | None) -> int:
    """Count the times that Kueue stopped the job; a stop by a person is not an eviction."""
    statistics = (workload or {}).get("status", {}).get("schedulingStats") or {}
    total = 0
    for eviction in statistics.get("evictions") or ():
        if eviction["reason"] in _QUEUE_EVICTIONS:
            total += int(eviction["count"])
    return total


def _count_losses(job: JobSnapshot, events: Iterable[Object], notices: int) -> Losses:
    if job.kind == "JobSet":
        return _count_jobset(job)
    if job.kind == "Deployment":
        return _count_deployment(job)
    if "backoffLimitPerIndex" in job.body["spec"]:
        return _count_by_index(job)
    return _count_job(job, events, notices)


def _count_jobset(job: JobSnapshot) -> Losses:
    # A JobSet counts its own restarts, those that its policy ignores apart.
    charged = int(job.status.get("restartsCountTowardsMax", 0))
    restarts = int(job.status.get("restarts", 0))
    crashes = max(charged, len(list_crashes(job)))
    return Losses(Count(restarts - charged), Count(crashes))


def _count_deployment(job: JobSnapshot) -> Losses:
    # A Deployment keeps no count, so the remaining pods are a lower bound.
    restarts = 0
    for pod in job.pods:
        restarts += sum(
            int(status.get("restartCount", 0)) for status in list_container_statuses(pod)
        )
    evictions = _count_evictions(job)
    crashes = restarts + len(list_crashes(job))
    return Losses(Count(evictions, exact=False), Count(crashes, exact=False))


def _count_by_index(job: JobSnapshot) -> Losses:
    evictions = _count_per_index(job.pods, ANNOTATION_IGNORED_FAILURES, _is_eviction)
    crashes = _count_per_index(job.pods, ANNOTATION_CHARGED_FAILURES, _is_crash)
    return Losses(Count(evictions), Count(crashes))


def _count_job(job: JobSnapshot, events: Iterable[Object], notices: int) -> Losses:
    """Count the losses of a Job without backoffLimitPerIndex.

    A pod that its Job made, that neither lives nor succeeded and was not charged, was evicted. The
    events of creation expire after an hour and are rationed, so this is a lower bound. A policy
    that does not ignore disruptions charges them too: then only the remaining pods show which was
    which.
    """
    charged = int(job.status.get("failed", 0))
    disrupted = _count_evictions(job)
    if not _ignores_disruptions(job):
        crashes = len(list_crashes(job))
        is_exact = charged - disrupted - crashes <= 0
        return Losses(Count(disrupted, is_exact), Count(crashes, is_exact))
    creations = events_about(events, {job.uid}, "SuccessfulCreate")
    created = sum(times_seen(event) for event in creations)
    succeeded = int(job.status.get("succeeded", 0))
    missing = created - len(job.active) - succeeded - charged
    evictions = max(disrupted, missing, notices)
    is_first_attempt = _has_only_first_pods(job) and not (charged or evictions)
    return Losses(Count(evictions, exact=is_first_attempt), Count(charged))


def _has_only_first_pods(job: JobSnapshot) -> bool:
    """Return whether all pods are as old as the job, so that none is a replacement."""
    start = job.status.get("startTime", "")
    if len(job.pods) > job.size:
        return False
    return all(pod["metadata"]["creationTimestamp"] <= start for pod in job.pods)


def _count_evictions(job: JobSnapshot) -> int:
    return sum(_is_eviction(pod) for pod in job.phase("Failed"))


def _is_eviction(pod: Object) -> bool:
    return bool(disruption(pod))


def _is_crash(pod: Object) -> bool:
    return not disruption(pod)


def _ignores_disruptions(job: JobSnapshot) -> bool:
    rules = job.body["spec"].get("podFailurePolicy", {}).get("rules", ())
    for rule in rules:
        if rule["action"] == "Ignore":
            conditions = rule.get("onPodConditions", ())
            if any(condition["type"] == "DisruptionTarget" for condition in conditions):
                return True
    return False


def _count_per_index(
    pods: Iterable[Object], annotation: str, counts: Callable[[Object], bool]
) -> int:
    """Sum the failures of each index: its failed pods, or the count of its newest pod if larger.

    The annotation of a pod has the failures of its index before it.
    """
    indexes: dict[str, list[Object]] = {}
    for number, pod in enumerate(pods):
        annotations = pod["metadata"].get("annotations", {})
        index = annotations.get(ANNOTATION_INDEX, f"none-{number}")
        indexes.setdefault(index, []).append(pod)
    total = 0
    for index_pods in indexes.values():
        failed_pods = 0
        largest_count = 0
        for pod in index_pods:
            annotations = pod["metadata"].get("annotations", {})
            failed = int(pod["status"].get("phase") == "Failed" and counts(pod))
            earlier = int(annotations.get(annotation, 0))
            failed_pods += failed
            largest_count = max(largest_count, earlier + failed)
        total += max(failed_pods, largest_count)
    return total
