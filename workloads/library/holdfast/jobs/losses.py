"""How often the platform took a job down, and how often it fell by its own fault, past losses included.

Kubernetes keeps no such count for a Job without backoffLimitPerIndex: there the
pods that are left, the Job's status and its events are read together, and the answer may be `at least`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from holdfast.clients.api import Object
from holdfast.contract.kubernetes import ANNOTATION_CHARGED_FAILURES, ANNOTATION_IGNORED_FAILURES, ANNOTATION_INDEX
from holdfast.jobs.events import about, times
from holdfast.jobs.job_snapshot import JobSnapshot, containers, crashed, disruption


@dataclass(frozen=True, slots=True)
class Count:
    number: int
    exact: bool = True

    def __str__(self) -> str:
        return f"{'' if self.exact else 'at least '}{self.number}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Losses:
    evicted: Count
    crashed: Count


def losses(job: JobSnapshot, events: Iterable[Object] = (), notices: int = 0) -> Losses:
    """`notices`: times that the job left in order after a notice, by its own event lines."""
    if job.kind == "JobSet":
        return _of_jobset(job)
    if job.kind == "Deployment":
        return _of_deployment(job)
    if "backoffLimitPerIndex" in job.body["spec"]:
        return Losses(
            evicted=Count(_per_index(job.pods, ANNOTATION_IGNORED_FAILURES, lambda pod: bool(disruption(pod)))),
            crashed=Count(_per_index(job.pods, ANNOTATION_CHARGED_FAILURES, lambda pod: not disruption(pod))),
        )
    return _of_job(job, events, notices)


def _of_jobset(job: JobSnapshot) -> Losses:
    """It counts its own restarts, those that its policy blames on nobody apart."""
    charged = int(job.status.get("restartsCountTowardsMax", 0))
    return Losses(
        evicted=Count(int(job.status.get("restarts", 0)) - charged), crashed=Count(max(charged, len(crashed(job))))
    )


def _of_deployment(job: JobSnapshot) -> Losses:
    """It keeps no count: what the pods that are left show."""
    restarts = sum(int(each.get("restartCount", 0)) for pod in job.pods for each in containers(pod))
    taken = sum(bool(disruption(pod)) for pod in job.phase("Failed"))
    return Losses(evicted=Count(taken, exact=False), crashed=Count(restarts + len(crashed(job)), exact=False))


def _of_job(job: JobSnapshot, events: Iterable[Object], notices: int) -> Losses:
    """A pod that its Job made, that neither lives nor succeeded and was not charged, was taken away.

    The events of creation go after an hour and are rationed, so this is a lower bound. A policy that does
    not ignore disruptions charges them too: then only the pods that are left show which was which.
    """
    charged, there = int(job.status.get("failed", 0)), sum(bool(disruption(pod)) for pod in job.phase("Failed"))
    if not _ignores_disruptions(job):
        unknown = charged - there - len(crashed(job))
        return Losses(evicted=Count(there, unknown <= 0), crashed=Count(len(crashed(job)), unknown <= 0))
    made = sum(times(event) for event in about(events, {job.uid}, "SuccessfulCreate"))
    gone = made - len(job.active) - int(job.status.get("succeeded", 0)) - charged
    untouched = not charged and not there and len(job.pods) <= job.size and _first_pods(job)
    evicted = max(there, gone, notices)
    return Losses(evicted=Count(evicted, exact=untouched and not evicted), crashed=Count(charged))


def _first_pods(job: JobSnapshot) -> bool:
    """Whether the pods are as old as the job, so that none can be a replacement."""
    start = job.status.get("startTime", "")
    return all(pod["metadata"]["creationTimestamp"] <= start for pod in job.pods)


def _ignores_disruptions(job: JobSnapshot) -> bool:
    rules = job.body["spec"].get("podFailurePolicy", {}).get("rules", ())
    ignored = (c for rule in rules if rule["action"] == "Ignore" for c in rule.get("onPodConditions", ()))
    return any(c["type"] == "DisruptionTarget" for c in ignored)


def _per_index(pods: Iterable[Object], counter: str, ours: Callable[[Object], bool]) -> int:
    """Per index, whichever knows of more: the failed pods that are there, or the newest pod's count of those before."""
    indexes: dict[str, list[Object]] = {}
    for n, pod in enumerate(pods):
        index = pod["metadata"].get("annotations", {}).get(ANNOTATION_INDEX, f"none-{n}")
        indexes.setdefault(index, []).append(pod)

    def lost(pod: Object) -> bool:
        return pod["status"].get("phase") == "Failed" and ours(pod)

    def before(pod: Object) -> int:
        return int(pod["metadata"].get("annotations", {}).get(counter, 0))

    return sum(max(sum(map(lost, each)), max(before(pod) + lost(pod) for pod in each)) for each in indexes.values())
