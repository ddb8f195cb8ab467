"""Why a job waits, restarts or is slow: the first cause that holds, with the number that blocks.

Pure: a view and its surroundings in, an explanation out. The order is from what stops everything to what
stops one pod. Called by `explain` and `list`.
"""

from workloads.jobs import flex, quota
from workloads.jobs.cause import Cause, Word
from workloads.jobs.cluster_snapshot import Surroundings
from workloads.jobs.endings import ended
from workloads.jobs.job_snapshot import View, condition, disruption
from workloads.jobs.losses import Losses
from workloads.jobs.refused import refused
from workloads.jobs.starting import starting, stuck
from workloads.jobs.unplaced import unplaced


def cause_of(view: View, around: Surroundings) -> Cause:
    checks = (_finished, _held, refused, stuck, unplaced, _crashing, _between_lives, starting)
    for check in checks:
        found = check(view, around)
        if found is not None:
            return found
    return Cause(
        word=Word.NONE,
        blocker="nothing: all its pods run",
        action="look at its speed: `python -m monitoring report`",
        evidence=f"kubectl get pods -n {view.namespace} -o wide",
    )


def state_of(view: View, lost: Losses) -> str:
    running = len(view.phase("Running"))
    word = view.finished or ("Suspended" if view.suspended else "Running" if running >= view.wanted else "Waiting")
    return f"{word}: {running} of {view.size} pods run; evicted {lost.evicted}, crashed {lost.crashed}"


def _finished(view: View, _: Surroundings) -> Cause | None:
    if view.finished == "Complete":
        return Cause(word=Word.DONE, blocker="nothing: it is complete", action="-", evidence=_get(view))
    if view.finished != "Failed":
        return None
    worst, reason = ended(view), condition(view.body, "Failed")
    words = f"{reason.get('reason', '')}: {reason.get('message', '')}"
    return Cause(
        word=Word.FAILED,
        blocker=f"{worst.blocker}; {words}" if worst else words,
        action="mend the cause, delete the job, submit it again: it resumes from its last checkpoint",
        evidence=worst.evidence if worst else _get(view),
    )


def _held(view: View, around: Surroundings) -> Cause | None:
    if not view.suspended:
        return None
    return (
        flex.queued(view, around)
        or quota.held(view, around)
        or Cause(
            word=Word.SUSPENDED,
            blocker="spec.suspend is true and no queue has it",
            action="set spec.suspend to false, or label the job with a queue",
            evidence=_get(view),
        )
    )


def _crashing(view: View, _: Surroundings) -> Cause | None:
    """Of a JobSet only its count may be left: a restart deletes the pods that made it necessary."""
    found, used = ended(view), int(view.status.get("restartsCountTowardsMax", 0))
    if found or not used:
        return found
    granted = view.body["spec"].get("failurePolicy", {}).get("maxRestarts", 0)
    return Cause(
        word=Word.CRASH,
        blocker=f"{used} of {granted} granted restarts are used up by its own failures; their pods are gone",
        action="read its log where logs are kept: `gcloud logging read`; evictions use up no restart",
        evidence=_get(view),
    )


def _between_lives(view: View, _: Surroundings) -> Cause | None:
    """Taken down by the platform and not yet made anew: the Job controller backs off, JobSet does not."""
    lost = [pod for pod in view.phase("Failed") if disruption(pod)]
    lacking = view.wanted - len(view.active)
    if lacking <= 0:
        return None
    reasons = ", ".join(sorted({disruption(pod) for pod in lost})) or "pods not made yet"
    return Cause(
        word=Word.BACK_OFF,
        blocker=f"{lacking} of {view.size} pods are not replaced yet, {len(lost)} were evicted: {reasons}",
        action="wait: a Job waits 10 s to 10 min after evictions; a JobSet is made anew within seconds",
        evidence=_get(view),
    )


def _get(view: View) -> str:
    return f"kubectl describe {view.kind.lower()} -n {view.namespace} {view.name}"
