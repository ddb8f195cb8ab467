"""Why a job waits, restarts or is slow: the first cause that holds, with the number that blocks.

Pure: snapshots of the job and of its cluster in, a cause out. The order is from what stops everything to what
stops one pod.
"""

from holdfast.jobs import flex, quota
from holdfast.jobs.cause import Cause, Reason
from holdfast.jobs.cluster_snapshot import ClusterSnapshot
from holdfast.jobs.endings import ended
from holdfast.jobs.job_snapshot import JobSnapshot, condition, disruption
from holdfast.jobs.losses import Losses
from holdfast.jobs.refused import refused
from holdfast.jobs.starting import starting, stuck
from holdfast.jobs.unplaced import unplaced


def cause_of(job: JobSnapshot, cluster: ClusterSnapshot) -> Cause:
    checks = (_finished, _held, refused, stuck, unplaced, _crashing, _between_attempts, starting)
    for check in checks:
        found = check(job, cluster)
        if found is not None:
            return found
    return Cause(
        reason=Reason.NONE,
        blocker="nothing: all its pods run",
        action="look at its speed: `holdfast report`",
        evidence=f"kubectl get pods -n {job.namespace} -o wide",
    )


def state_of(job: JobSnapshot, lost: Losses) -> str:
    running = len(job.phase("Running"))
    reason = job.finished or ("Suspended" if job.suspended else "Running" if running >= job.wanted else "Waiting")
    return f"{reason}: {running} of {job.size} pods run; evicted {lost.evicted}, crashed {lost.crashed}"


def _finished(job: JobSnapshot, _: ClusterSnapshot) -> Cause | None:
    if job.finished == "Complete":
        return Cause(reason=Reason.DONE, blocker="nothing: it is complete", action="-", evidence=_get(job))
    if job.finished != "Failed":
        return None
    worst, reason = ended(job), condition(job.body, "Failed")
    details = f"{reason.get('reason', '')}: {reason.get('message', '')}"
    return Cause(
        reason=Reason.FAILED,
        blocker=f"{worst.blocker}; {details}" if worst else details,
        action="mend the cause, delete the job, submit it again: it resumes from its last checkpoint",
        evidence=worst.evidence if worst else _get(job),
    )


def _held(job: JobSnapshot, cluster: ClusterSnapshot) -> Cause | None:
    if not job.suspended:
        return None
    return (
        flex.queued(job, cluster)
        or quota.held(job, cluster)
        or Cause(
            reason=Reason.SUSPENDED,
            blocker="spec.suspend is true and no queue has it",
            action="set spec.suspend to false, or label the job with a queue",
            evidence=_get(job),
        )
    )


def _crashing(job: JobSnapshot, _: ClusterSnapshot) -> Cause | None:
    """Of a JobSet only its count may be left: a restart deletes the pods that made it necessary."""
    found, used = ended(job), int(job.status.get("restartsCountTowardsMax", 0))
    if found or not used:
        return found
    granted = job.body["spec"].get("failurePolicy", {}).get("maxRestarts", 0)
    return Cause(
        reason=Reason.CRASH,
        blocker=f"{used} of {granted} granted restarts are used up by its own failures; their pods are gone",
        action="read its log where logs are kept: `gcloud logging read`; evictions use up no restart",
        evidence=_get(job),
    )


def _between_attempts(job: JobSnapshot, _: ClusterSnapshot) -> Cause | None:
    """Taken down by the platform and not yet made anew: the Job controller backs off, JobSet does not."""
    lost = [pod for pod in job.phase("Failed") if disruption(pod)]
    lacking = job.wanted - len(job.active)
    if lacking <= 0:
        return None
    reasons = ", ".join(sorted({disruption(pod) for pod in lost})) or "pods not made yet"
    return Cause(
        reason=Reason.BACK_OFF,
        blocker=f"{lacking} of {job.size} pods are not replaced yet, {len(lost)} were evicted: {reasons}",
        action="wait: a Job waits 10 s to 10 min after evictions; a JobSet is made anew within seconds",
        evidence=_get(job),
    )


def _get(job: JobSnapshot) -> str:
    return f"kubectl describe {job.kind.lower()} -n {job.namespace} {job.name}"
