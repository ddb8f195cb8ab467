"""Stops a job so that its work is kept, and starts it again.

A stop is what an eviction is: the pods get SIGTERM and their usual window, save what fits and exit.
The job is suspended, not deleted, so that `resume` starts it again from its newest checkpoint. A
job in a queue is stopped by its Workload, since Kueue would start it again otherwise.
"""

# Why it is so: infra/decisions/0128, infra/decisions/0182.

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.clients.api import Api, ApiError, Object
from holdfast.job_commands.control import pod_logs
from holdfast.job_commands.control.pod_logs import Selection, Source, Streams
from holdfast.jobs.diagnose import job_snapshot
from holdfast.jobs.diagnose.job_snapshot import APPS, JOBS, JOBSETS, KUEUE, JobSnapshot, Limit
from holdfast.jobs.submit.submission import lacks_right
from holdfast.platform import Platform
from holdfast.support.errors import InputError, Later, Unjudged
from holdfast.support.values import moment, rfc3339
from holdfast.vocabulary.capacity import (
    ANNOTATION_MAX_USD,
    ANNOTATION_QUEUED_AGAIN,
    ANNOTATION_REQUEST_ENDED,
    ANNOTATION_STOPPED_FOR,
)
from holdfast.vocabulary.kubernetes import LABEL_QUEUE
from holdfast.vocabulary.lifecycle import DEFAULT_WINDOW

ANNOTATION_REPLICAS = "holdfast.dev/stopped-replicas"
"""Replicas that a stopped Deployment had."""
SLACK_S = 60.0
"""Time for the controllers and the kubelet, in addition to the window of the pods."""
LOG_END_S = 10.0
"""Time in which the log of a pod that is gone ends."""
POLL_S = 0.5
Report = Callable[[str], object]


@dataclass(kw_only=True)
class Saves:
    """The checkpoints that the pods of a job reported after the call."""

    since_s: float
    """Unix time of the call, by the clock of the cluster."""
    committed: dict[str, Object] = field(default_factory=dict)
    """Run, with its index if it has one -> its newest commit line."""
    reported: bool = False
    """A pod wrote an event line: its program uses the library."""
    stopped_step: int | None = None
    """Last step that was done before the exit."""

    def read(self, line: str) -> None:
        """Note what one line of a log reports; other lines are left out."""
        event = _parse_event(line)
        if event is None:
            return
        self.reported = True
        kind = event["event"]
        step = event.get("step")
        if kind in ("stop", "exit") and isinstance(step, int):
            self.stopped_step = max(self.stopped_step or 0, step)
        if kind == "commit" and float(event.get("t", 0)) >= self.since_s:
            run = f"{event.get('job')}/{event.get('index', '')}"
            self.committed[run] = event

    def list_saved(self) -> list[Object]:
        """Return run, step and seconds from the call to the commit, of each run that saved."""
        saved: list[Object] = []
        for name, commit in sorted(self.committed.items()):
            after_s = max(0.0, float(commit["t"]) - self.since_s)
            saved.append({"run": name.rstrip("/"), "step": commit.get("step"), "after_s": after_s})
        return saved


def _parse_event(line: str) -> Object | None:
    if not line.startswith("{") or '"event"' not in line:
        return None
    try:
        event: Any = json.loads(line)
    except ValueError:
        return None
    has_type = isinstance(event, dict) and isinstance(event.get("event"), str)
    return event if has_type else None


def is_stopped(job: JobSnapshot) -> bool:
    """Return whether a person stopped the job; one that waits in a queue is not stopped."""
    if job.workload is not None:
        is_active = job.workload["spec"].get("active", True)
        return not is_active and not job.return_time
    if job.kind == "Deployment":
        return job.size == 0
    return job.is_suspended and not _queue(job)


def stop(
    api: Api,
    platform: Platform,
    job: JobSnapshot,
    report: Report,
    *,
    now: bool = False,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> Saves:
    """Ask the pods of a job to save and exit, and wait until they are gone.

    now: kill them at once. Returns the checkpoints that were committed after the call. Raises
    Unjudged if the user may not stop the job, or if a pod is not gone in time.
    """
    sources = pod_logs.select_sources(job, Selection())
    since_s = _set_stopped(api, platform, job, stopped=True)
    saves = Saves(since_s=since_s)
    streams = Streams(api=api, query={"sinceTime": rfc3339(since_s)})
    streams.follow(sources)
    window_s = find_window_s(job)
    wish = "exit at once" if now else f"save and exit within {window_s:.0f} s"
    report(f"asked {len(job.active)} pods of {job.name} to {wish}")
    deadline = clock() + window_s + SLACK_S
    is_killed = False
    while (remaining := _list_running(api, job)) or not _is_held(api, job):
        _stop_growth(api, job)
        # Not earlier: a Job that is not suspended yet would count its killed pods as failures.
        if now and not is_killed and _is_held(api, job):
            is_killed = True
            _kill(api, job.namespace, remaining, report)
        if clock() > deadline:
            raise _timeout_error(job, remaining, window_s + SLACK_S)
        streams.follow(Source(pod, pod_logs.find_container(pod)) for pod in remaining)
        sleep(POLL_S)
    # A kubelet ends the log of a container that has exited; a lost node never does.
    streams.wait_for_ends(LOG_END_S)
    for _, line in streams.take():
        saves.read(line)
    return saves


def _stop_growth(api: Api, job: JobSnapshot) -> None:
    """Deactivate the other Workload of a gang that was growing.

    Kueue goes on with it when the one that had quota ends. If both ended at once, Kueue would
    finish both and leave the pods.
    """
    if job.workload is None:
        return
    path = job_snapshot.path_in(KUEUE, "workloads", job.namespace)
    workloads = list(api.items(path))
    workload = job_snapshot.find_workload(workloads, job.uid)
    if workload and workload["spec"].get("active", True):
        name = workload["metadata"]["name"]
        api.merge(f"{path}/{name}", {"spec": {"active": False}})


def _timeout_error(job: JobSnapshot, remaining: list[Object], waited_s: float) -> Unjudged:
    names = [pod["metadata"]["name"] for pod in remaining[:4]] or ["its controller"]
    return Unjudged(
        f"{job.name} was asked to stop, but {len(remaining)} of its pods are not gone",
        got=f"{', '.join(names)} after {waited_s:.0f} s",
        fix=f"their nodes may be lost: holdfast explain {job.name}",
    )


def find_window_s(job: JobSnapshot) -> float:
    """Return the time that the pods have between SIGTERM and SIGKILL."""
    return float(job.pod_spec.get("terminationGracePeriodSeconds") or DEFAULT_WINDOW.pod_s)


def resume(
    api: Api,
    platform: Platform,
    job: JobSnapshot,
    max_usd: float | None = None,
) -> None:
    """Start a stopped job again, from its newest checkpoint.

    max_usd: a new limit of what it may cost in all. Raises InputError if the job runs, or if it has
    reached its limit.
    """
    if job.outcome:
        raise InputError(
            "the job has ended",
            got=f"{job.name}: {job.outcome}",
            allowed="a job that `holdfast stop` stopped",
            fix="holdfast submit FILE: the run resumes from its newest checkpoint",
        )
    if not is_stopped(job) and not job.return_time:
        raise InputError(
            "the job is not stopped",
            got=f"{job.name}, which waits in its queue" if job.is_suspended else f"{job.name} runs",
            allowed="a job that `holdfast stop` stopped",
            fix=f"holdfast explain {job.name}",
        )
    limit = job_snapshot.find_limit(job)
    if limit is not None and limit.stopped and max_usd is None:
        raise InputError(
            "the job was stopped before its max_usd",
            got=f"{job.name}: ${limit.spent_usd:,.2f} of ${limit.max_usd:,.2f}",
            allowed="a higher limit",
            fix=f"holdfast resume {job.name} --max-usd {2 * limit.max_usd:g}",
        )
    if max_usd is not None:
        _raise_limit(api, platform, job, limit, max_usd)
    _set_stopped(api, platform, job, stopped=False)


def _raise_limit(
    api: Api,
    platform: Platform,
    job: JobSnapshot,
    limit: Limit | None,
    max_usd: float,
) -> None:
    least_usd = limit.spent_usd if limit else 0.0
    if not least_usd < max_usd < math.inf:
        raise InputError(
            "--max-usd",
            got=max_usd,
            allowed=f"more than ${least_usd:,.2f}, which {job.name} has cost",
            fix="a higher one",
        )
    annotations = {ANNOTATION_MAX_USD: f"{max_usd:g}", ANNOTATION_STOPPED_FOR: None}
    try:
        api.merge(_path(job), {"metadata": {"annotations": annotations}})
    except ApiError as error:
        if not lacks_right(error):
            raise
        raise _no_right(platform, job, error) from error


def _set_stopped(api: Api, platform: Platform, job: JobSnapshot, *, stopped: bool) -> float:
    """Change the one field that starts and stops the job.

    Returns the Unix time of the change, by the clock of the cluster.
    """
    path, change = _make_change(job, stopped=stopped)
    try:
        answer = api.merge(path, change)
    except ApiError as error:
        if not lacks_right(error):
            raise
        raise _no_right(platform, job, error) from error
    return _find_change_time(answer)


def _make_change(job: JobSnapshot, *, stopped: bool) -> tuple[str, Object]:
    """Return the path of the object that starts and stops the job, and the change of it."""
    workload = job.workload
    if workload is not None:
        path = f"{KUEUE}/namespaces/{job.namespace}/workloads/{workload['metadata']['name']}"
        # If a mark remained, the mover would start the job again.
        marks = {ANNOTATION_QUEUED_AGAIN: None, ANNOTATION_REQUEST_ENDED: None}
        change: Object = {"metadata": {"annotations": marks}, "spec": {"active": not stopped}}
        return path, change
    if _queue(job) and job.is_suspended:
        raise Later(
            "Kueue has not seen the job yet",
            got=f"{job.name} without a Workload in {job.namespace}",
            allowed="a job that is in its queue",
            fix="run it again in a few seconds",
        )
    if job.kind == "Deployment":
        return _path(job), _scale(job, stopped=stopped)
    return _path(job), {"spec": {"suspend": stopped}}


def _scale(job: JobSnapshot, *, stopped: bool) -> Object:
    """Return the change of a Deployment, which cannot be suspended."""
    if stopped:
        return {
            "metadata": {"annotations": {ANNOTATION_REPLICAS: str(job.size)}},
            "spec": {"replicas": 0},
        }
    annotations = job.body["metadata"].get("annotations") or {}
    replicas = annotations.get(ANNOTATION_REPLICAS, "1")
    return {
        "metadata": {"annotations": {ANNOTATION_REPLICAS: None}},
        "spec": {"replicas": int(replicas) if replicas.isdecimal() else 1},
    }


def _path(job: JobSnapshot) -> str:
    groups = {
        "JobSet": (JOBSETS, "jobsets"),
        "Job": (JOBS, "jobs"),
        "Deployment": (APPS, "deployments"),
    }
    group, plural = groups[job.kind]
    return f"{job_snapshot.path_in(group, plural, job.namespace)}/{job.name}"


def _queue(job: JobSnapshot) -> str:
    return (job.body["metadata"].get("labels") or {}).get(LABEL_QUEUE, "")


def _find_change_time(body: Object) -> float:
    """Return the newest time in the object's history: the clock of the user may be wrong."""
    seconds = [time.time()] if "managedFields" not in body["metadata"] else []
    for entry in body["metadata"].get("managedFields") or ():
        changed = moment(entry.get("time", ""))
        if changed:
            seconds.append(changed.timestamp())
    return max(seconds, default=time.time())


def _no_right(platform: Platform, job: JobSnapshot, error: ApiError) -> Unjudged:
    team = platform.job_namespaces.get(job.namespace)
    owner = f"the members of team {team}" if team else "the platform team"
    return Unjudged(
        f"no right to change {job.kind} {job.name} in {job.namespace}; nothing was changed",
        got=str(error),
        fix=f"ask {owner}, whose namespace it is",
    )


def _list_running(api: Api, job: JobSnapshot) -> list[Object]:
    """List the pods of the job that may still write."""
    labels = {kind: label for kind, _, _, label in job_snapshot.LISTED}
    label = labels[job.kind]
    path = job_snapshot.path_in("/api/v1", "pods", job.namespace)
    pods = api.items(path, labelSelector=f"{label}={job.name}")
    return [pod for pod in pods if pod["status"].get("phase") in ("Pending", "Running")]


def _is_held(api: Api, job: JobSnapshot) -> bool:
    """Return whether no controller makes new pods.

    Kueue suspends a job a moment after it was asked, unless the job completes within its window.
    """
    body = api.find(_path(job))
    if body is None or replace(job, body=body).outcome:
        return True
    spec = body["spec"]
    if job.kind == "Deployment":
        return spec.get("replicas") == 0
    return bool(spec.get("suspend"))


def _kill(api: Api, namespace: str, pods: list[Object], report: Report) -> None:
    """Shorten the window of the pods to a second, if the user may delete pods."""
    for pod in pods:
        path = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}"
        try:
            api.delete(path, gracePeriodSeconds=1)
        except ApiError as error:
            if error.status == 404:
                continue
            if not lacks_right(error):
                raise
            report(f"its pods end within their window: {error}")
            return


def describe(job: JobSnapshot, saves: Saves, *, had_pods: bool) -> list[str]:
    """Return what the stop kept and what it lost, one fact a line."""
    if not had_pods:
        return [f"stopped {job.name}, which had no pod: nothing was lost"]
    lines: list[str] = []
    for save in saves.list_saved():
        after_s = save["after_s"]
        lines.append(f"saved step {save['step']} of {save['run']}, {after_s:.0f} s after the call")
    if not lines and saves.reported:
        step = "" if saves.stopped_step is None else f", of {saves.stopped_step} that were done"
        lines.append(
            f"no checkpoint was committed after the call{step}: the steps since its newest one are"
            " done again"
        )
    elif not lines:
        lines.append("its program wrote no event line, so whether it saved is not known")
    lines.append(f"stopped {job.name}")
    return lines


def stop_json(job: JobSnapshot, result: str, saves: Saves | None = None) -> Object:
    """Return the body that `stop --json` prints.

    result: `stopped` by this call, `stopped before` it, or `ended`, so that there was nothing to
    stop. Without `saves` nothing was asked to save.
    """
    return {
        "schema": "holdfast.stop/1",
        "job": job.name,
        "namespace": job.namespace,
        "result": result,
        "pods": len(job.active) if saves else 0,
        "saves": saves.list_saved() if saves else [],
        "stopped_step": saves.stopped_step if saves else None,
    }


def resume_json(job: JobSnapshot, max_usd: float | None) -> Object:
    """Return the body that `resume --json` prints; max_usd: the new limit, if one was given."""
    return {
        "schema": "holdfast.resume/1",
        "job": job.name,
        "namespace": job.namespace,
        "max_usd": max_usd,
    }
