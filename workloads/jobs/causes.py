"""Why a job waits, restarts or is slow: the first cause that holds, with the number that blocks.

Pure: a view and its surroundings in, an explanation out. The order is from what stops everything to what
stops one pod. Called by `explain`.
"""

from dataclasses import dataclass

from infra.contract.pools import GPU_RESOURCE, LABEL_FLEX_START
from workloads.jobs import nodes, quota
from workloads.jobs.view import Surroundings, View, condition, crashed, crashes, disruption, evicted, exit_code

IMAGE_REASONS = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """`word` is stable, for programs: done, failed, quota, image, crash, taint, selector, flex-queue, stock-out,
    capacity, refused, back-off, suspended, none."""

    word: str
    blocker: str
    action: str
    evidence: str
    position: str = ""


def cause_of(view: View, around: Surroundings) -> Cause:
    checks = (_finished, _held, _image, _unschedulable, _crashing, _between_lives)
    for check in checks:
        found = check(view, around)
        if found is not None:
            return found
    return Cause(
        word="none",
        blocker="nothing: all its pods run",
        action="look at its speed: `python -m monitoring report`",
        evidence=f"kubectl get pods -n {view.namespace} -o wide",
    )


def state_of(view: View) -> str:
    running = len(view.phase("Running"))
    word = view.finished or ("Suspended" if view.suspended else "Running" if running >= view.size else "Waiting")
    return f"{word}: {running} of {view.size} pods run; evicted {evicted(view)}, crashed {crashes(view)}"


def _finished(view: View, _: Surroundings) -> Cause | None:
    if view.finished == "Complete":
        return Cause(word="done", blocker="nothing: it is complete", action="-", evidence=_get(view))
    if view.finished != "Failed":
        return None
    worst = _crash(view)
    reason = condition(view.body, "Failed")
    told = f"{reason.get('reason', '')}: {reason.get('message', '')}"
    return Cause(
        word="failed",
        blocker=f"{worst}; {told}" if worst else told,
        action="mend the cause, delete the job, submit it again: it resumes from its last checkpoint",
        evidence=_logs(view) or _get(view),
    )


def _held(view: View, around: Surroundings) -> Cause | None:
    if not view.suspended:
        return None
    held = quota.held(view, around)
    if held is None:
        return Cause(
            word="suspended",
            blocker="spec.suspend is true and no queue has it",
            action="set spec.suspend to false, or label the job with a queue",
            evidence=_get(view),
        )
    assert view.workload is not None
    return Cause(
        word="quota",
        blocker=held.blocker,
        position=held.position,
        action="wait for its turn, ask for fewer GPUs, or raise the quota in infra/environments",
        evidence=f"kubectl describe workload -n {view.namespace} {view.workload['metadata']['name']}",
    )


def _image(view: View, _: Surroundings) -> Cause | None:
    for pod in view.phase("Pending"):
        for status in pod["status"].get("containerStatuses") or ():
            reason = status.get("state", {}).get("waiting", {}).get("reason", "")
            if reason in IMAGE_REASONS:
                return Cause(
                    word="image",
                    blocker=f"{reason}: {status['image']} on {pod['spec'].get('nodeName', '?')}",
                    action="push the image, or correct its name or the node's right to read it",
                    evidence=f"kubectl describe pod -n {view.namespace} {pod['metadata']['name']}",
                )
    return None


def _unschedulable(view: View, around: Surroundings) -> Cause | None:
    waiting = [p for p in view.phase("Pending") if condition(p, "PodScheduled").get("reason") == "Unschedulable"]
    if not waiting:
        return None
    pod = waiting[0]
    evidence = f"kubectl describe pod -n {view.namespace} {pod['metadata']['name']}"
    many = f"{len(waiting)} of {view.size} pods have no node"
    fit = nodes.fit(pod["spec"], around.nodes, around.others)
    flex = LABEL_FLEX_START in pod["spec"].get("nodeSelector", {})
    refused = nodes.scale_up_refused(pod, around.events)
    if fit.untolerated:
        taint, count = fit.untolerated
        action = "use the manifest of this pool: `python -m workloads render`"
        return Cause(word="taint", blocker=f"{many}: {count} nodes bear {taint}", action=action, evidence=evidence)
    if refused:
        action = "wait, allow more zones or machine types, or take flex-start: `python -m infra place`"
        return Cause(word="stock-out", blocker=f"{many}: {refused}", action=action, evidence=evidence)
    if flex and not fit.selected:
        action = "wait: Google gives no ETA for flex-start; `python -m infra place` compares with Spot"
        return Cause(word="flex-queue", blocker=f"{many}: no flex-start node yet", action=action, evidence=evidence)
    if not fit.selected:
        action = "compare the selector with `python -m infra pools`; a pool at 0 nodes scales up within minutes"
        return Cause(
            word="selector", blocker=f"{many}: no node matches {fit.selector}", action=action, evidence=evidence
        )
    blocker = f"{many}: each wants {fit.wanted} {GPU_RESOURCE}, the fitting nodes have {fit.free} of {fit.total} free"
    action = "wait for a node or for another job to end, or ask for fewer at once"
    return Cause(word="capacity", blocker=blocker, action=action, evidence=evidence)


def _crashing(view: View, _: Surroundings) -> Cause | None:
    worst = _crash(view)
    if not worst:
        return None
    return Cause(
        word="crash",
        blocker=worst,
        action="read the log; a crash uses up the job's own limit, an eviction does not",
        evidence=_logs(view),
    )


def _between_lives(view: View, around: Surroundings) -> Cause | None:
    """Taken down by the platform and not yet made anew: the Job controller backs off, JobSet does not."""
    lost = [pod for pod in view.phase("Failed") if disruption(pod)]
    active = len(view.phase("Running")) + len(view.phase("Pending"))
    if active >= view.size:
        return None
    refused = nodes.creation_refused(view.name, around.events)
    if refused:
        return Cause(
            word="refused",
            blocker=f"the cluster refuses its pods: {refused}",
            action="correct the manifest or the namespace's quota",
            evidence=f"kubectl get events -n {view.namespace} --field-selector reason=FailedCreate",
        )
    reasons = ", ".join(sorted({disruption(pod) for pod in lost})) or "pods not made yet"
    return Cause(
        word="back-off",
        blocker=f"{view.size - active} of {view.size} pods are not replaced yet, {len(lost)} were evicted: {reasons}",
        action="wait: a Job waits 10 s to 10 min after evictions; a JobSet is made anew within seconds",
        evidence=_get(view),
    )


def _crash(view: View) -> str:
    """`exit code 70 in 3 pods` of the code that most crashed pods ended with."""
    codes = [code for pod in crashed(view) if (code := exit_code(pod)) is not None]
    if not codes:
        return ""
    common = max(set(codes), key=codes.count)
    return f"exit code {common} in {codes.count(common)} pods"


def _logs(view: View) -> str:
    last = max(crashed(view), key=lambda pod: pod["metadata"]["creationTimestamp"], default=None)
    return f"kubectl logs -n {view.namespace} {last['metadata']['name']}" if last else ""


def _get(view: View) -> str:
    return f"kubectl describe {view.kind.lower()} -n {view.namespace} {view.name}"
