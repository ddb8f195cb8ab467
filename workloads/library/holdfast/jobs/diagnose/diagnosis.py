"""Why a job waits, restarts or is slow: the first cause that holds, with the number that blocks.

Pure: snapshots of the job and of its cluster in, a cause out. The order is from what stops
everything to what stops one pod.
"""

import re
from collections.abc import Iterator

from holdfast.clients.api import Object
from holdfast.jobs.diagnose import cluster_snapshot, queues
from holdfast.jobs.diagnose.cause import Cause, Losses, Reason, brief, describe, ended
from holdfast.jobs.diagnose.cluster_snapshot import ClusterSnapshot
from holdfast.jobs.diagnose.job_snapshot import JobSnapshot, condition, containers, disruption
from holdfast.jobs.diagnose.unscheduled import refused, unplaced


def cause_of(job: JobSnapshot, cluster: ClusterSnapshot) -> Cause:
    checks = (_finished, _held, refused, stuck, unplaced, _crashing, _between_attempts, starting)
    for check in checks:
        found = check(job, cluster)
        if found is not None:
            return found
    action = (
        f"look at its speed: `holdfast explain {job.name} --follow --events FOLDER`, then `holdfast"
        " report --events FOLDER`"
    )
    return Cause(
        Reason.NONE,
        "nothing: all its pods run",
        action,
        f"kubectl get pods -n {job.namespace} -o wide",
    )


def state_of(job: JobSnapshot, lost: Losses) -> str:
    running = len(job.phase("Running"))
    reason = job.finished or (
        "Suspended" if job.suspended else "Running" if running >= job.wanted else "Waiting"
    )
    return (
        f"{reason}: {running} of {job.size} pods run; evicted {lost.evicted}, crashed"
        f" {lost.crashed}"
    )


def _finished(job: JobSnapshot, _: ClusterSnapshot) -> Cause | None:
    if job.finished == "Complete":
        return Cause(Reason.DONE, "nothing: it is complete", "-", _get(job))
    if job.finished != "Failed":
        return None
    worst = ended(job)
    reason = condition(job.body, "Failed")
    details = f"{reason.get('reason', '')}: {reason.get('message', '')}"
    action = "fix the cause, delete the job, submit it again: it resumes from its last checkpoint"
    if worst is None:
        return Cause(Reason.FAILED, details, action, _get(job))
    return Cause(Reason.FAILED, f"{worst.blocker}; {details}", action, worst.evidence)


def _held(job: JobSnapshot, cluster: ClusterSnapshot) -> Cause | None:
    if not job.suspended:
        return None
    action = "set spec.suspend to false, or label the job with a queue"
    by_hand = Cause(Reason.SUSPENDED, "spec.suspend is true and no queue has it", action, _get(job))
    return queues.queued(job, cluster) or queues.held(job, cluster) or by_hand


def _crashing(job: JobSnapshot, _: ClusterSnapshot) -> Cause | None:
    """Of a JobSet only its count may be left: a restart deletes the pods that made it necessary."""
    found = ended(job)
    used = int(job.status.get("restartsCountTowardsMax", 0))
    if found or not used:
        return found
    granted = job.body["spec"].get("failurePolicy", {}).get("maxRestarts", 0)
    blocker = (
        f"{used} of {granted} granted restarts are used up by its own failures; their pods are gone"
    )
    action = "read its log where logs are kept: `gcloud logging read`; evictions use up no restart"
    return Cause(Reason.CRASH, blocker, action, _get(job))


def _between_attempts(job: JobSnapshot, _: ClusterSnapshot) -> Cause | None:
    """Taken down by the platform and not yet created again: the Job controller backs off, JobSet
    does not.
    """
    lost = [pod for pod in job.phase("Failed") if disruption(pod)]
    lacking = job.wanted - len(job.active)
    if lacking <= 0:
        return None
    reasons = ", ".join(sorted({disruption(pod) for pod in lost})) or "pods not made yet"
    blocker = (
        f"{lacking} of {job.size} pods are not replaced yet, {len(lost)} were evicted: {reasons}"
    )
    action = (
        "wait: a Job waits 10 s to 10 min after evictions; a JobSet is recreated within seconds"
    )
    return Cause(Reason.BACK_OFF, blocker, action, _get(job))


def _get(job: JobSnapshot) -> str:
    return f"kubectl describe {job.kind.lower()} -n {job.namespace} {job.name}"


_IMAGE = (
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "RegistryUnavailable",
)
_CONFIG = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
_MOUNT = ("FailedMount", "FailedAttachVolume", "FailedMapVolume")
_MISSING = re.compile(r'(?P<kind>configmap|secret) "(?P<name>[^"]+)" not found')
_BUCKET = "gcsfuse"


def stuck(job: JobSnapshot, cluster: ClusterSnapshot) -> Cause | None:
    """What waiting does not cure."""
    return _unmade(job) or _mount(job, cluster)


def starting(job: JobSnapshot, cluster: ClusterSnapshot) -> Cause | None:
    """Nothing wrong yet: what the kubelet did last, or that no scheduler has looked."""
    found = job.phase("Pending")
    if not found:
        return None
    last = cluster_snapshot.newest_event(cluster.events, {pod["metadata"]["uid"] for pod in found})
    since = found[0]["metadata"]["creationTimestamp"]
    scheduler = found[0]["spec"].get("schedulerName", "default-scheduler")
    if _placed(job):
        quiet = "the kubelet has reported nothing yet"
    else:
        quiet = f"{scheduler} has not looked at them yet"
    now = f"{last['reason']}: {brief(cluster_snapshot.message_of(last))}" if last else quiet
    action = "wait: a large image takes minutes on a fresh node; `streaming` images start sooner"
    blocker = f"{len(found)} of {job.size} pods start since {since}; {now}"
    return Cause(Reason.STARTING, blocker, action, describe(found[0]))


def _placed(job: JobSnapshot) -> list[Object]:
    return [pod for pod in job.phase("Pending") if pod["spec"].get("nodeName")]


def _waiting(job: JobSnapshot, reasons: tuple[str, ...]) -> Iterator[tuple[Object, Object]]:
    """(pod, container status) of each container that waits for one of the reasons."""
    for pod in job.active:
        for status in containers(pod):
            if status.get("state", {}).get("waiting", {}).get("reason") in reasons:
                yield pod, status


def _unmade(job: JobSnapshot) -> Cause | None:
    """An image that does not come, or a container that lacks a setting."""
    for reasons in (_IMAGE, _CONFIG):
        found = list(_waiting(job, reasons))
        if found:
            pod, status = found[0]
            waits = status["state"]["waiting"]
            reason = waits["reason"]
            message = waits.get("message", "")
            if reasons is _CONFIG:
                return _unset(job, len(found), pod, f"{reason} of {status['name']}: {message}")
            why = brief(
                f"{reason}: {status['image']} on {pod['spec'].get('nodeName', '?')}: {message}"
            )
            action = "push the image, or correct its name or the node's right to read it"
            blocker = f"{len(found)} of {job.size} pods: {why.removesuffix(':')}"
            return Cause(Reason.IMAGE, blocker, action, describe(pod))
    return None


def _unset(job: JobSnapshot, many: int, pod: Object, why: str) -> Cause:
    missing = _MISSING.search(why)
    if missing:
        evidence = f"kubectl get {missing['kind']} -n {job.namespace} {missing['name']}"
    else:
        evidence = describe(pod)
    action = "create what is missing, or correct it in the manifest"
    return Cause(Reason.CONFIG, f"{many} of {job.size} pods: {brief(why)}", action, evidence)


def _mount(job: JobSnapshot, cluster: ClusterSnapshot) -> Cause | None:
    """A mount that failed and later went well leaves a pod that runs: those are not looked at."""
    pods = {pod["metadata"]["uid"]: pod for pod in _placed(job)}
    failed = cluster_snapshot.events_about(cluster.events, pods, *_MOUNT)
    if not failed:
        return None
    many = len({event["involvedObject"]["uid"] for event in failed})
    pod = pods[failed[-1]["involvedObject"]["uid"]]
    why = cluster_snapshot.message_of(failed[-1])
    if _MISSING.search(why):
        return _unset(job, many, pod, why)
    action = "correct the volume in the manifest, or fix what the driver names"
    if _BUCKET in why:
        action = (
            "check the bucket's name, the Cloud Storage FUSE add-on, and the service account's"
            " right to read it"
        )
    blocker = f"{many} of {job.size} pods: {failed[-1]['reason']}: {brief(why)}"
    return Cause(Reason.VOLUME, blocker, action, describe(pod))
