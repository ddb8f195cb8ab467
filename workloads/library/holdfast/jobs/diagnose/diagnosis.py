"""Diagnoses why a job waits, restarts or is slow: the first cause that holds is the answer.

The input is a snapshot of the job and one of its cluster. The order of the checks is from what
stops everything to what stops one pod.
"""

import re
from collections.abc import Iterator

from holdfast.clients.api import Object
from holdfast.jobs.diagnose import cluster_snapshot, queues
from holdfast.jobs.diagnose.cluster_snapshot import ClusterSnapshot
from holdfast.jobs.diagnose.ending_pods import explain_deletion, explain_silent_node
from holdfast.jobs.diagnose.failures import Losses, explain_failure
from holdfast.jobs.diagnose.job_snapshot import (
    JobSnapshot,
    Limit,
    condition,
    disruption,
    find_limit,
    is_ending,
    list_container_statuses,
    runs_since_s,
)
from holdfast.jobs.diagnose.reasons import Cause, Reason, brief, describe
from holdfast.jobs.diagnose.unscheduled import explain_refusal, explain_unscheduled
from holdfast.vocabulary.capacity import ANNOTATION_YIELDED, LABEL_LEAST_NODES

_OVERDUE = "DeadlineExceeded"
RECOVERED_S = 600.0
"""Time after which a restarted program has recovered from its crash."""


def find_cause(job: JobSnapshot, cluster: ClusterSnapshot) -> Cause:
    """Return the first cause that holds; the last one is that nothing blocks."""
    checks = (
        _explain_finish,
        _explain_hold,
        explain_refusal,
        _explain_stuck,
        explain_silent_node,
        explain_unscheduled,
        explain_deletion,
        _explain_crash,
        _explain_back_off,
        _explain_start,
    )
    for check in checks:
        cause = check(job, cluster)
        if cause is not None:
            return cause
    action = (
        f"look at its speed: `holdfast explain {job.name} --follow --events FOLDER`, then `holdfast"
        " report --events FOLDER`"
    )
    return Cause(
        Reason.NONE,
        f"nothing: all its pods run{_describe_yield(job)}{_describe_history(job)}",
        action,
        f"kubectl get pods -n {job.namespace} -o wide",
    )


def describe_state(job: JobSnapshot, losses: Losses) -> str:
    running = sum(not is_ending(pod) for pod in job.phase("Running"))
    if job.outcome:
        state = job.outcome
    elif job.is_suspended:
        state = "Suspended"
    else:
        state = "Running" if running >= job.target_size else "Waiting"
    return (
        f"{state}: {running} of {job.size} pods run; evicted {losses.evicted}, crashed"
        f" {losses.crashed}"
    )


def _explain_finish(job: JobSnapshot, _: ClusterSnapshot) -> Cause | None:
    if job.outcome == "Complete":
        return Cause(Reason.DONE, "nothing: it is complete", "-", _describe_command(job))
    if job.outcome != "Failed":
        return None
    reason = condition(job.body, "Failed")
    if _has_reached_limit(job, reason.get("reason", "")):
        blocker = f"it ran for its max_hours, {job.limit_s / 3600:g} h since its last start"
        action = "raise max_hours in its file and submit it: it resumes from its last checkpoint"
        return Cause(Reason.FAILED, blocker, action, _describe_command(job))
    failure = explain_failure(job)
    details = f"{reason.get('reason', '')}: {reason.get('message', '')}"
    action = "fix the cause, delete the job, submit it again: it resumes from its last checkpoint"
    if failure is None:
        return Cause(Reason.FAILED, details, action, _describe_command(job))
    return Cause(Reason.FAILED, f"{failure.blocker}; {details}", action, failure.evidence)


def _has_reached_limit(job: JobSnapshot, reason: str) -> bool:
    """Return whether a job failed for its deadline.

    A JobSet names the action of its rule, so all rules that fail it must be about deadlines.
    """
    if not job.limit_s:
        return False
    if job.kind != "JobSet":
        return reason == _OVERDUE
    rules = job.body["spec"].get("failurePolicy", {}).get("rules") or ()
    for rule in rules:
        is_failing = rule.get("action") == "FailJobSet"
        if is_failing and rule.get("onJobFailureReasons") != [_OVERDUE]:
            return False
    return reason == "FailJobSetFailurePolicyAction"


def _explain_hold(job: JobSnapshot, cluster: ClusterSnapshot) -> Cause | None:
    if not job.is_suspended:
        return None
    if job.workload is not None and not job.workload["spec"].get("active", True):
        return _explain_stop(job, job.workload)
    queue = queues.explain_flex_start(job, cluster) or queues.explain_kueue(job, cluster)
    if queue:
        return queue
    limit = find_limit(job)
    if limit is not None and limit.stopped:
        return _explain_limit(job, limit)
    blocker = "spec.suspend is true and no queue has it"
    return Cause(Reason.SUSPENDED, blocker, _resume_command(job), _describe_command(job))


def _explain_stop(job: JobSnapshot, workload: Object) -> Cause:
    """Explain a Workload that is not active: its price limit ended it, it gave its nodes back, a
    person stopped it, or Kueue gave up.
    """
    limit = find_limit(job)
    if limit is not None and limit.stopped:
        return _explain_limit(job, limit)
    if job.return_time:
        return _explain_pause(job, workload)
    eviction = condition(workload, "Evicted")
    message = brief(str(eviction.get("message", "")))
    details = f": {message}" if message else ""
    evidence = f"kubectl describe workload -n {job.namespace} {workload['metadata']['name']}"
    blocker = f"it was stopped and keeps no place in its queue{details}"
    return Cause(Reason.SUSPENDED, blocker, _resume_command(job), evidence)


def _explain_pause(job: JobSnapshot, workload: Object) -> Cause:
    """Explain a gang that waited below its least and gave its nodes back."""
    blocker = (
        f"it had fewer than {job.least_nodes} nodes for too long, gave them back, and queues again"
        f" at {job.return_time}; until then it costs nothing"
    )
    action = f"wait, or queue it now: {_resume_command(job)}"
    evidence = f"kubectl describe workload -n {job.namespace} {workload['metadata']['name']}"
    return Cause(Reason.BACK_OFF, blocker, action, evidence)


def _explain_limit(job: JobSnapshot, limit: Limit) -> Cause:
    blocker = (
        f"it was stopped before its max_usd: it has cost ${limit.spent_usd:,.2f} of"
        f" ${limit.max_usd:,.2f}"
    )
    action = f"{_resume_command(job)} --max-usd {2 * limit.max_usd:g}"
    return Cause(Reason.SUSPENDED, blocker, action, _describe_command(job))


def _resume_command(job: JobSnapshot) -> str:
    return f"holdfast resume {job.name}"


def _describe_yield(job: JobSnapshot) -> str:
    """Return why a gang with a range of sizes has fewer nodes, or an empty text."""
    meta = job.body["metadata"]
    full_size = int(job.body["spec"].get("completions") or 0)
    if LABEL_LEAST_NODES not in (meta.get("labels") or {}) or job.size >= full_size:
        return ""
    yielded_to = (meta.get("annotations") or {}).get(ANNOTATION_YIELDED)
    if yielded_to:
        reason = f"{yielded_to} has a higher priority and took the others"
    else:
        reason = "its queue had no more"
    return f", on {job.size} of {full_size} nodes: {reason}, and it gets more when they are free"


def _describe_history(job: JobSnapshot) -> str:
    """Return the last crash of a job that has recovered from it, or an empty text."""
    failure = explain_failure(job)
    return f"; it has recovered from {failure.blocker}" if failure else ""


def _explain_crash(job: JobSnapshot, cluster: ClusterSnapshot) -> Cause | None:
    """Explain a crash by its pods, or by the count of a JobSet, whose restart deletes the pods.

    Pods that have all run for long show that an earlier crash is over.
    """
    since_s = runs_since_s(job)
    if since_s is not None and cluster.taken_s - since_s >= RECOVERED_S:
        return None
    failure = explain_failure(job)
    restarts = int(job.status.get("restartsCountTowardsMax", 0))
    if failure or not restarts:
        return failure
    max_restarts = job.body["spec"].get("failurePolicy", {}).get("maxRestarts", 0)
    blocker = (
        f"{restarts} of {max_restarts} granted restarts are used up by its own failures; their"
        " pods were deleted"
    )
    action = "read its log where logs are kept: `gcloud logging read`; evictions use up no restart"
    return Cause(Reason.CRASH, blocker, action, _describe_command(job))


def _explain_back_off(job: JobSnapshot, _: ClusterSnapshot) -> Cause | None:
    """Explain pods that were evicted and not yet created again.

    The Job controller backs off, JobSet does not.
    """
    missing = job.target_size - len(job.active)
    if missing <= 0:
        return None
    disruptions = [disruption(pod) for pod in job.phase("Failed") if disruption(pod)]
    reasons = ", ".join(sorted(set(disruptions))) or "pods not made yet"
    blocker = (
        f"{missing} of {job.size} pods are not replaced yet, {len(disruptions)} were evicted:"
        f" {reasons}"
    )
    action = (
        "wait: a Job waits 10 s to 10 min after evictions; a JobSet is recreated within seconds"
    )
    return Cause(Reason.BACK_OFF, blocker, action, _describe_command(job))


def _describe_command(job: JobSnapshot) -> str:
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


def _explain_stuck(job: JobSnapshot, cluster: ClusterSnapshot) -> Cause | None:
    """Explain problems that waiting does not solve."""
    return _explain_container(job) or _explain_mount(job, cluster)


def _explain_start(job: JobSnapshot, cluster: ClusterSnapshot) -> Cause | None:
    """Describe a start without a problem: the kubelet's last event, or a scheduler's silence."""
    pending = job.phase("Pending")
    if not pending:
        return None
    first = pending[0]
    uids = {pod["metadata"]["uid"] for pod in pending}
    event = cluster_snapshot.newest_event(cluster.events, uids)
    if event:
        news = f"{event['reason']}: {brief(cluster_snapshot.get_message(event))}"
    elif _list_starting(job):
        news = "the kubelet has reported nothing yet"
    else:
        scheduler = first["spec"].get("schedulerName", "default-scheduler")
        news = f"{scheduler} has not looked at them yet"
    since = first["metadata"]["creationTimestamp"]
    blocker = f"{len(pending)} of {job.size} pods start since {since}; {news}"
    action = "wait: a large image takes minutes on a fresh node; `streaming` images start sooner"
    return Cause(Reason.STARTING, blocker, action, describe(first))


def _list_starting(job: JobSnapshot) -> list[Object]:
    return [pod for pod in job.phase("Pending") if pod["spec"].get("nodeName")]


def _list_waiting(job: JobSnapshot, reasons: tuple[str, ...]) -> Iterator[tuple[Object, Object]]:
    """Yield the pod and the status of each container that waits for one of the reasons."""
    for pod in job.active:
        for status in list_container_statuses(pod):
            waiting = status.get("state", {}).get("waiting", {})
            if waiting.get("reason") in reasons:
                yield pod, status


def _explain_container(job: JobSnapshot) -> Cause | None:
    """Explain an image that cannot be pulled, or a container that lacks a setting."""
    waiting = list(_list_waiting(job, _IMAGE))
    if waiting:
        pod, status = waiting[0]
        reason, message = _get_waiting_reason(status)
        node = pod["spec"].get("nodeName", "?")
        text = brief(f"{reason}: {status['image']} on {node}: {message}")
        blocker = f"{len(waiting)} of {job.size} pods: {text.removesuffix(':')}"
        action = "push the image, or correct its name or the node's right to read it"
        return Cause(Reason.IMAGE, blocker, action, describe(pod))
    waiting = list(_list_waiting(job, _CONFIG))
    if waiting:
        pod, status = waiting[0]
        reason, message = _get_waiting_reason(status)
        text = f"{reason} of {status['name']}: {message}"
        return _explain_missing(job, len(waiting), pod, text)
    return None


def _get_waiting_reason(status: Object) -> tuple[str, str]:
    waiting = status["state"]["waiting"]
    return waiting["reason"], waiting.get("message", "")


def _explain_missing(job: JobSnapshot, count: int, pod: Object, message: str) -> Cause:
    """Explain a ConfigMap, Secret or setting that does not exist."""
    missing = _MISSING.search(message)
    evidence = describe(pod)
    if missing:
        evidence = f"kubectl get {missing['kind']} -n {job.namespace} {missing['name']}"
    action = "create what is missing, or correct it in the manifest"
    blocker = f"{count} of {job.size} pods: {brief(message)}"
    return Cause(Reason.CONFIG, blocker, action, evidence)


def _explain_mount(job: JobSnapshot, cluster: ClusterSnapshot) -> Cause | None:
    """Explain a volume that cannot be mounted.

    Running pods are left out: their mount failed and later succeeded.
    """
    pods = {pod["metadata"]["uid"]: pod for pod in _list_starting(job)}
    events = cluster_snapshot.events_about(cluster.events, pods, *_MOUNT)
    if not events:
        return None
    count = len({event["involvedObject"]["uid"] for event in events})
    newest = events[-1]
    pod = pods[newest["involvedObject"]["uid"]]
    message = cluster_snapshot.get_message(newest)
    if _MISSING.search(message):
        return _explain_missing(job, count, pod, message)
    action = "correct the volume in the manifest, or fix what the driver names"
    if _BUCKET in message:
        action = (
            "check the bucket's name, the Cloud Storage FUSE add-on, and the service account's"
            " right to read it"
        )
    blocker = f"{count} of {job.size} pods: {newest['reason']}: {brief(message)}"
    return Cause(Reason.VOLUME, blocker, action, describe(pod))
