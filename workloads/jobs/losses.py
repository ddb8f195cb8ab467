"""How often the platform took a job down, and how often it fell by its own fault, past losses included.

Called by list and explain. Kubernetes keeps no such count for a Job without backoffLimitPerIndex: there the
pods that are left, the Job's status and its events are read together, and the answer may be `at least`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from infra.contract.kubernetes import ANNOTATION_CHARGED_FAILURES, ANNOTATION_IGNORED_FAILURES, ANNOTATION_INDEX
from workloads.jobs.api import Object
from workloads.jobs.events import about, times
from workloads.jobs.job_snapshot import View, crashed, disruption


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


def losses(view: View, events: Iterable[Object] = (), notices: int = 0) -> Losses:
    """`notices`: times that the job left in order after a notice, by its own event lines."""
    if view.kind == "JobSet":
        return _of_jobset(view)
    if "backoffLimitPerIndex" in view.body["spec"]:
        return Losses(
            evicted=Count(_per_index(view.pods, ANNOTATION_IGNORED_FAILURES, lambda pod: bool(disruption(pod)))),
            crashed=Count(_per_index(view.pods, ANNOTATION_CHARGED_FAILURES, lambda pod: not disruption(pod))),
        )
    return _of_job(view, events, notices)


def _of_jobset(view: View) -> Losses:
    """It counts its own restarts, those that its policy blames on nobody apart."""
    charged = int(view.status.get("restartsCountTowardsMax", 0))
    return Losses(
        evicted=Count(int(view.status.get("restarts", 0)) - charged), crashed=Count(max(charged, len(crashed(view))))
    )


def _of_job(view: View, events: Iterable[Object], notices: int) -> Losses:
    """A pod that its Job made, that neither lives nor succeeded and was not charged, was taken away.

    The events that tell of making go after an hour and are rationed, so this is a lower bound. A policy that does
    not ignore disruptions charges them too: then only the pods that are left tell one from the other.
    """
    charged, there = int(view.status.get("failed", 0)), sum(bool(disruption(pod)) for pod in view.phase("Failed"))
    if not _ignores_disruptions(view):
        unknown = charged - there - len(crashed(view))
        return Losses(evicted=Count(there, unknown <= 0), crashed=Count(len(crashed(view)), unknown <= 0))
    made = sum(times(event) for event in about(events, {view.uid}, "SuccessfulCreate"))
    gone = made - len(view.active) - int(view.status.get("succeeded", 0)) - charged
    untouched = not charged and not there and len(view.pods) <= view.size and _first_pods(view)
    evicted = max(there, gone, notices)
    return Losses(evicted=Count(evicted, exact=untouched and not evicted), crashed=Count(charged))


def _first_pods(view: View) -> bool:
    """Whether the pods are as old as the job, so that none can be a replacement."""
    start = view.status.get("startTime", "")
    return all(pod["metadata"]["creationTimestamp"] <= start for pod in view.pods)


def _ignores_disruptions(view: View) -> bool:
    rules = view.body["spec"].get("podFailurePolicy", {}).get("rules", ())
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
