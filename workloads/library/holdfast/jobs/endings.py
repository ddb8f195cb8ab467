"""How containers ended by their own fault: exit code, memory limit, init container, the node's refusal. Pure.

What the platform took away is no ending of this kind.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.clients.api import Object
from holdfast.jobs.cause import Cause, Reason, brief, describe
from holdfast.jobs.job_snapshot import JobSnapshot, containers, disruption

_BUCKET_SIDECAR = "gke-gcsfuse-sidecar"
_PRESSED = "Evicted"  # the kubelet's reason for a pod that it removed for memory or disk


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    pod: Object
    container: str
    """Empty where the node refused the pod or put it out: no container is to blame."""
    code: int
    reason: str
    message: str
    init: bool

    @property
    def alike(self) -> tuple[str, int, str]:
        return self.container, self.code, self.reason


def ended(job: JobSnapshot) -> Cause | None:
    """The commonest ending of all its pods, and how many ended so."""
    found = [ending for pod in job.pods for ending in _endings(pod)]
    if not found:
        return None
    alike, many = Counter(ending.alike for ending in found).most_common(1)[0]
    return _cause(job, next(e for e in reversed(found) if e.alike == alike), many)


def _endings(pod: Object) -> Iterator[Ending]:
    """One a failed pod; of a pod that lives, one each container that was started again."""
    status = pod["status"]
    failed = status.get("phase") == "Failed"
    if failed and disruption(pod) and status.get("reason") != _PRESSED:
        return
    inits = {each["name"] for each in status.get("initContainerStatuses") or ()}
    found = [
        Ending(
            pod=pod,
            container=each["name"],
            code=int(end["exitCode"]),
            reason=end.get("reason", ""),
            message=end.get("message", ""),
            init=each["name"] in inits,
        )
        for each in containers(pod)
        if (end := each.get("state" if failed else "lastState", {}).get("terminated")) and end["exitCode"]
    ]
    if failed and (status.get("reason") or not found):
        yield Ending(
            pod=pod,
            container="",
            code=0,
            reason=status.get("reason", "Failed"),
            message=status.get("message", ""),
            init=False,
        )
    else:
        yield from found[:1] if failed else found


def _cause(job: JobSnapshot, worst: Ending, many: int) -> Cause:
    pods = f"in {many} pods"
    last = brief(worst.message.strip().rpartition("\n")[2])
    details = f"exit code {worst.code} {pods}" + (f": {last}" if last else "")
    logs = f"kubectl logs -n {job.namespace} {worst.pod['metadata']['name']} -c {worst.container}"
    if not worst.container:
        return Cause(
            reason=Reason.NODE,
            blocker=f"{worst.reason} {pods}: {brief(worst.message) or 'the kubelet says no more'}",
            action="ask for what the pod uses: memory, ephemeral-storage and GPUs as requests and limits",
            evidence=describe(worst.pod),
        )
    if worst.reason == "OOMKilled":
        return Cause(
            reason=Reason.MEMORY,
            blocker=f"{worst.container} was killed at its memory limit of {_limit(worst)} {pods}",
            action="raise limits.memory, or load less at once (batch size, loader workers, tmpfs counts too)",
            evidence=describe(worst.pod),
        )
    if worst.container == _BUCKET_SIDECAR:
        action = "check the bucket's name and the service account's right; give the sidecar more memory"
        return Cause(reason=Reason.VOLUME, blocker=f"{worst.container}: {details}", action=action, evidence=logs)
    if worst.init:
        action = "mend the init container: the main one has not begun"
        return Cause(
            reason=Reason.INIT, blocker=f"init container {worst.container}: {details}", action=action, evidence=logs
        )
    action = "read the log; a crash uses up the job's own limit, an eviction does not"
    return Cause(reason=Reason.CRASH, blocker=details, action=action, evidence=logs)


def _limit(worst: Ending) -> str:
    spec = worst.pod["spec"]
    every = [*spec.get("initContainers", ()), *spec["containers"]]
    own = next((c for c in every if c["name"] == worst.container), {})
    return str(own.get("resources", {}).get("limits", {}).get("memory", "the node (none is set)"))
