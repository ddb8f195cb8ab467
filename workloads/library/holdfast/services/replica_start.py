"""Measures how long the newest replica took to start, and how long each part of the start took."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.clients.api import Object
from holdfast.jobs.diagnose.job_snapshot import condition, has_condition, when
from holdfast.manifests.pods import MAIN
from holdfast.vocabulary.serving import CACHE_FETCHER


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaStart:
    pod: str
    node_s: float
    """The time from its creation until it had a node."""
    image_s: float
    """The time until its server ran: images, volumes and sidecars."""
    cache_s: float
    """The time in which its compiled kernels were fetched, which `image_s` does not count."""
    load_s: float
    """The time until it was ready with a warm model. A later time of being unready counts too."""

    @property
    def total_s(self) -> float:
        return self.node_s + self.image_s + self.cache_s + self.load_s

    def __str__(self) -> str:
        fetched = f" {self.cache_s:.0f} s for compiled kernels," if self.cache_s else ""
        return (
            f"{self.pod} was ready after {self.total_s:.0f} s: {self.node_s:.0f} s until it had a"
            f" node, {self.image_s:.0f} s for images and sidecars,{fetched} {self.load_s:.0f} s to"
            " load the model"
        )

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"total_s": self.total_s}


def find_newest_start(pods: Iterable[Object]) -> ReplicaStart | None:
    """Return the start of the newest replica that is ready and was not restarted, or None."""
    newest_first = sorted(
        pods,
        key=lambda pod: pod["metadata"]["creationTimestamp"],
        reverse=True,
    )
    for pod in newest_first:
        start = _measure(pod)
        if start is not None:
            return start
    return None


def _measure(pod: Object) -> ReplicaStart | None:
    if not has_condition(pod, "Ready") or not has_condition(pod, "PodScheduled"):
        return None
    started_at = _find_first_start(pod)
    if not started_at:
        return None
    created_s = when(pod["metadata"]["creationTimestamp"])
    scheduled_s = when(condition(pod, "PodScheduled")["lastTransitionTime"])
    started_s = when(started_at)
    ready_s = when(condition(pod, "Ready")["lastTransitionTime"])
    cache_s = _measure_fetch(pod)
    return ReplicaStart(
        pod=pod["metadata"]["name"],
        node_s=scheduled_s - created_s,
        # The clock of the node may be behind that of the control plane.
        image_s=max(0.0, started_s - scheduled_s - cache_s),
        cache_s=cache_s,
        load_s=max(0.0, ready_s - started_s),
    )


def _measure_fetch(pod: Object) -> float:
    """Return how many seconds the container that fetches compiled kernels ran."""
    for container in pod["status"].get("initContainerStatuses") or ():
        end: dict[str, Any] = container["state"].get("terminated") or {}
        if container["name"] == CACHE_FETCHER and end.get("startedAt") and end.get("finishedAt"):
            return max(0.0, when(end["finishedAt"]) - when(end["startedAt"]))
    return 0.0


def _find_first_start(pod: Object) -> str:
    """Return when the server of a pod started; empty if it does not run, or was restarted."""
    for container in pod["status"].get("containerStatuses") or ():
        if container["name"] == MAIN and not container.get("restartCount"):
            running: dict[str, Any] = container["state"].get("running") or {}
            return running.get("startedAt", "")
    return ""
