"""A snapshot of one job of the cluster, with its pods and its place in the queue.

A job is a JobSet, a Job that no JobSet owns, or a Deployment of workers. Nothing here judges.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from holdfast.clients.api import Api, ApiError, Object
from holdfast.ledger import disruptions
from holdfast.platform import Platform
from holdfast.support.errors import InputError
from holdfast.support.values import moment
from holdfast.vocabulary import kubernetes
from holdfast.vocabulary.capacity import (
    ANNOTATION_MAX_USD,
    ANNOTATION_QUEUED_AGAIN,
    ANNOTATION_REQUEUES_FOR,
    ANNOTATION_SPENT_USD,
    ANNOTATION_STOPPED_FOR,
    LABEL_LEAST_NODES,
    LABEL_REQUEUES,
    STOPPED_FOR_MAX_USD,
)
from holdfast.vocabulary.kubernetes import LABEL_JOBSET, LABEL_NAME, api_path
from holdfast.vocabulary.roles import NAMESPACE_BATCH
from holdfast.vocabulary.serving import LABEL_SERVICE

JOBSETS = api_path(kubernetes.JOBSET_API)
JOBS = api_path(kubernetes.JOB_API)
KUEUE = api_path(kubernetes.KUEUE_API)
APPS = "/apis/apps/v1"
LISTED = (
    ("JobSet", JOBSETS, "jobsets", LABEL_JOBSET),
    ("Job", JOBS, "jobs", kubernetes.LABEL_JOB),
    ("Deployment", APPS, "deployments", LABEL_NAME),
)
"""Kind, API, plural, and the label of its pods that names it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobSnapshot:
    body: Object
    pods: list[Object]
    workload: Object | None = None
    """Kueue's record of the job; None where no queue holds it."""

    @property
    def name(self) -> str:
        return self.body["metadata"]["name"]

    @property
    def namespace(self) -> str:
        return self.body["metadata"]["namespace"]

    @property
    def uid(self) -> str:
        """The object's uid; empty for a manifest that was not sent."""
        return self.body["metadata"].get("uid", "")

    @property
    def kind(self) -> str:
        return self.body["kind"]

    @property
    def status(self) -> Object:
        return self.body.get("status", {})

    @property
    def is_suspended(self) -> bool:
        return bool(self.body["spec"].get("suspend"))

    @property
    def size(self) -> int:
        """The number of pods that run at once when all is well."""
        spec = self.body["spec"]
        if self.kind == "Job":
            return int(spec.get("parallelism", 1))
        if self.kind != "JobSet":
            return int(spec.get("replicas", 1))
        size = 0
        for group in spec["replicatedJobs"]:
            parallelism = int(group["template"]["spec"].get("parallelism", 1))
            size += int(group.get("replicas", 1)) * parallelism
        return size

    @property
    def target_size(self) -> int:
        """The number of pods that should run now: those that succeeded are not made again."""
        if self.kind == "Deployment":
            return self.size
        if self.kind == "JobSet":
            return self.size - len(self.phase("Succeeded"))
        completions = int(self.body["spec"].get("completions") or self.size)
        remaining = completions - int(self.status.get("succeeded", 0))
        return max(0, min(self.size, remaining))

    @property
    def pod_spec(self) -> Object:
        """The pod spec of the first group; rendered jobs have one group."""
        spec = self.body["spec"]
        if self.kind == "JobSet":
            spec = spec["replicatedJobs"][0]["template"]["spec"]
        return spec["template"]["spec"]

    @property
    def limit_s(self) -> int:
        """The seconds after its start in which the job is stopped; 0 for none."""
        spec = self.body["spec"]
        if self.kind == "JobSet":
            spec = spec["replicatedJobs"][0]["template"]["spec"]
        return int(spec.get("activeDeadlineSeconds") or 0)

    @property
    def has_queued_nodes(self) -> bool:
        """The job is a gang on queued flex-start, whose nodes are used once."""
        return LABEL_REQUEUES in (self.body["metadata"].get("labels") or {})

    def queues_again(self, end_s: float) -> bool:
        """Return whether the mover queues the gang again if its nodes end at this Unix time."""
        metadata = self.body["metadata"]
        requeues = (metadata.get("labels") or {}).get(LABEL_REQUEUES, "")
        if not requeues.isdecimal() or int(requeues) < 1:
            return False
        within = (metadata.get("annotations") or {}).get(ANNOTATION_REQUEUES_FOR, "")
        if not within.isdecimal():
            return True
        return end_s <= when(metadata["creationTimestamp"]) + int(within)

    @property
    def return_time(self) -> str:
        """The time at which a gang that gave its nodes back queues again; else empty."""
        if self.workload is None or self.workload["spec"].get("active", True):
            return ""
        meta = self.workload.get("metadata") or {}
        return (meta.get("annotations") or {}).get(ANNOTATION_QUEUED_AGAIN, "")

    @property
    def is_sharded(self) -> bool:
        """The job is a gang whose pods stay while a lost one is replaced."""
        for container in self.pod_spec.get("containers", ()):
            if "--sharded" in (container.get("command") or ()):
                return True
        return False

    @property
    def least_nodes(self) -> int:
        """The fewest pods with which a gang still works if the other pods are lost; all pods,
        unless its file says less.
        """
        labels = self.body["metadata"].get("labels") or {}
        label = labels.get(LABEL_LEAST_NODES, "")
        if label.isdecimal():
            return int(label)
        for container in self.pod_spec.get("containers", ()):
            command: list[str] = list(container.get("command") or ())
            if "--min-nodes" in command[:-1]:
                return int(command[command.index("--min-nodes") + 1])
        return self.size

    @property
    def missing_places(self) -> list[int]:
        """The places of a gang whose pods are missing, while the other pods stay and wait."""
        labels = self.body["metadata"].get("labels") or {}
        stays = self.is_sharded or LABEL_LEAST_NODES in labels
        running = [pod for pod in self.phase("Running") if not is_ending(pod)]
        pods = running + self.phase("Succeeded")
        if not pods or not stays or self.outcome:
            return []
        if self.least_nodes <= len(pods):
            return []
        count = int(self.body["spec"].get("completions") or self.size)
        places = {get_place(pod) for pod in pods}
        return [place for place in range(count) if place not in places]

    @property
    def outcome(self) -> str:
        """`Complete`, `Failed`, or empty while the job has not ended."""
        if has_condition(self.body, "Failed"):
            return "Failed"
        # A Job has the one condition, a JobSet the other.
        if has_condition(self.body, "Complete") or has_condition(self.body, "Completed"):
            return "Complete"
        return ""

    @property
    def active(self) -> list[Object]:
        return self.phase("Running") + self.phase("Pending")

    def phase(self, name: str) -> list[Object]:
        return [pod for pod in self.pods if pod["status"].get("phase") == name]


def all_jobs(api: Api, namespace: str = "", *, with_servers: bool = False) -> Iterator[JobSnapshot]:
    """Yield JobSets, then Jobs without a JobSet, then Deployments of workers.

    `with_servers`: then Deployments of services too.
    """
    pods = list(api.items(path_in("/api/v1", "pods", namespace)))
    workloads = list(api.items(path_in(KUEUE, "workloads", namespace)))
    for kind, group, plural, label in LISTED:
        for body in api.items(path_in(group, plural, namespace)):
            meta = body["metadata"]
            is_server = kind == "Deployment" and LABEL_SERVICE in meta.get("labels", {})
            if not _is_job(body, kind) and not (is_server and with_servers):
                continue
            yield JobSnapshot(
                body=body | {"kind": kind},
                pods=[pod for pod in pods if _belongs(pod, meta, label)],
                workload=find_workload(workloads, meta["uid"]),
            )


def find_workload(workloads: list[Object], uid: str) -> Object | None:
    """Return the Workload of a job; if it has several, the one that has quota."""
    job_workloads = [workload for workload in workloads if uid in owners(workload)]
    return max(job_workloads, key=_rank_workload, default=None)


def _rank_workload(workload: Object) -> tuple[bool, bool, str]:
    """Order the Workloads of one job: Kueue makes another one when the job gets more pods."""
    is_finished = has_condition(workload, "Finished")
    has_quota = has_condition(workload, "QuotaReserved")
    return not is_finished, has_quota, workload["metadata"].get("creationTimestamp", "")


def _is_job(body: Object, kind: str) -> bool:
    """Return False for the Jobs of JobSets, and for Deployments of servers and of the platform."""
    meta = body["metadata"]
    if kind == "Job":
        return LABEL_JOBSET not in meta.get("labels", {})
    if kind == "Deployment":
        account = body["spec"]["template"]["spec"].get("serviceAccountName")
        return NAMESPACE_BATCH in (meta["namespace"], account)
    return True


def find_namespaces(api: Api, platform: Platform, namespace: str = "") -> list[str]:
    """Return the namespaces in which to look for jobs; an empty name means all at once.

    A member of a team may not list the whole cluster, and gets those of the platform's namespaces
    that the member may read. Raises ApiError if there is none.
    """
    if namespace:
        return [namespace]
    refusal = _find_refusal(api, "")
    if refusal is None:
        return [""]
    readable = [name for name in platform.job_namespaces if _find_refusal(api, name) is None]
    if not readable:
        raise refusal
    return readable


def _find_refusal(api: Api, namespace: str) -> ApiError | None:
    """Return why the user may not list jobs and their pods there, or None."""
    for group, plural in (("/api/v1", "pods"), (JOBS, "jobs")):
        try:
            api.get(path_in(group, plural, namespace), limit=1)
        except ApiError as error:
            if error.status == 403:
                return error
            if error.status != 404:
                raise
    return None


def find(api: Api, name: str, *namespaces: str, with_servers: bool = False) -> JobSnapshot:
    """Return the job called `name`, or the newest job of the run called so.

    Without namespaces it looks in all; `with_servers`: also among Deployments of services. Raises
    InputError if there is none, or one in several namespaces.
    """
    jobs: list[JobSnapshot] = []
    for namespace in namespaces or ("",):
        jobs.extend(all_jobs(api, namespace, with_servers=with_servers))
    matches = [job for job in jobs if job.name == name]
    if not matches:
        matches = _find_newest(jobs, name)
    if len(matches) == 1:
        return matches[0]
    if matches:
        listing = ", ".join(job.namespace for job in matches)
        raise InputError(
            "job name is not unique",
            got=f"{name} in {listing}",
            allowed="one job",
            fix=f"add --namespace {matches[0].namespace}",
        )
    names = sorted({job.name for job in jobs})
    similar = get_close_matches(name, names, n=1)
    raise InputError(
        "no such job",
        got=name,
        allowed=", ".join(names[:10]) or f"none: no job in {_list(namespaces)}",
        fix=f"did you mean {similar[0]}?" if similar else "`holdfast list`",
    )


def _list(namespaces: Sequence[str]) -> str:
    return ", ".join(filter(None, namespaces)) or "this cluster"


def _find_newest(jobs: list[JobSnapshot], run: str) -> list[JobSnapshot]:
    """Return the newest job of the run in each namespace.

    A job's own name ends in a digest of its template, which people do not type.
    """
    run_jobs: list[JobSnapshot] = []
    for job in jobs:
        if job.body["metadata"].get("labels", {}).get(LABEL_NAME) == run:
            run_jobs.append(job)
    run_jobs.sort(key=lambda job: job.body["metadata"].get("creationTimestamp", ""))
    return list({job.namespace: job for job in run_jobs}.values())


def is_ending(pod: Object) -> bool:
    """Return whether the pod is being deleted; on a silent node it stays `Running` for long."""
    return "deletionTimestamp" in pod["metadata"]


def runs_since_s(job: JobSnapshot) -> float | None:
    """Return the Unix time since which all pods of the job have run.

    Returns None while one of them does not run, is being deleted, or waits for its container.
    """
    starts: list[float] = []
    for pod in job.phase("Running"):
        if is_ending(pod):
            return None
        for status in pod["status"].get("containerStatuses") or ():
            running = status.get("state", {}).get("running")
            if running is None:
                return None
            started_at = running.get("startedAt") or pod["status"]["startTime"]
            starts.append(when(started_at))
    is_whole = len(job.phase("Running")) >= job.target_size > 0
    return max(starts) if is_whole and starts else None


def get_place(pod: Object) -> int:
    """Return the pod's index in its Job, or -1 if it has none."""
    return int(pod["metadata"].get("annotations", {}).get(kubernetes.ANNOTATION_INDEX, -1))


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """The most that a job may cost, and the cost that the mover has counted."""

    max_usd: float
    spent_usd: float
    stopped: bool
    """The mover stopped the job before it reached its limit."""


def find_limit(job: JobSnapshot) -> Limit | None:
    """Return the limit of what a job may cost; None without one."""
    annotations: dict[str, str] = job.body["metadata"].get("annotations") or {}
    max_usd = read_number(annotations.get(ANNOTATION_MAX_USD))
    if not max_usd:
        return None
    spent, _, _ = annotations.get(ANNOTATION_SPENT_USD, "").partition(" ")
    stopped_for = annotations.get(ANNOTATION_STOPPED_FOR)
    return Limit(
        max_usd=max_usd,
        spent_usd=read_number(spent) or 0.0,
        stopped=stopped_for == STOPPED_FOR_MAX_USD,
    )


def read_number(text: object) -> float | None:
    """Return the number of an annotation; None if it is missing, or is no finite number."""
    try:
        number = float(str(text))
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def loss_time_s(job: JobSnapshot, place: int) -> float | None:
    """Return the Unix time since which a place has no running pod.

    Returns None if the cluster does not know it any more.
    """
    pods = [pod for pod in job.pods if get_place(pod) == place]
    pods.sort(key=lambda pod: pod["metadata"]["creationTimestamp"])
    disruption_time: str | None = None
    times: list[float] = []
    for pod in pods:
        if pod in job.phase("Failed"):
            disruption_time = condition(pod, "DisruptionTarget").get("lastTransitionTime")
        elif is_ending(pod):
            times.append(when(pod["metadata"]["deletionTimestamp"]))
        elif pod in job.phase("Pending"):
            times.append(when(pod["metadata"]["creationTimestamp"]))
    if disruption_time:
        times.append(when(disruption_time))
    return min(times, default=None)


def owners(body: Object) -> set[str]:
    return {owner["uid"] for owner in body["metadata"].get("ownerReferences", ())}


def condition(body: Object, kind: str) -> Object:
    """Return the condition of this kind, or an empty one."""
    conditions = body.get("status", {}).get("conditions") or ()
    return next((c for c in conditions if c["type"] == kind), {})


def has_condition(body: Object, kind: str) -> bool:
    """Return whether the object has a condition of this kind that is true."""
    return condition(body, kind).get("status") == "True"


def disruption(pod: Object) -> str:
    """Return why the platform ended the pod; empty if the platform did not."""
    return disruptions.find_disruption(pod)[0]


def list_container_statuses(pod: Object) -> list[Object]:
    """Return the statuses of the pod's containers, those of init containers first."""
    status = pod["status"]
    first_statuses = status.get("initContainerStatuses") or []
    statuses = status.get("containerStatuses") or []
    return [*first_statuses, *statuses]


def list_crashes(job: JobSnapshot) -> list[Object]:
    """Return the existing pods that ended by their own fault."""
    return [pod for pod in job.phase("Failed") if not disruption(pod)]


def when(text: str) -> float:
    """Return the Unix seconds of Kubernetes' time."""
    time = moment(text)
    assert time, text
    return time.timestamp()


def get_wait_s(pod: Object) -> float | None:
    """Return how long the pod waited for a node, or None while it has none."""
    if not has_condition(pod, "PodScheduled"):
        return None
    created_s = when(pod["metadata"]["creationTimestamp"])
    scheduled_s = when(condition(pod, "PodScheduled")["lastTransitionTime"])
    return max(0.0, scheduled_s - created_s)


def get_run_s(pod: Object, now: float) -> float:
    """Return how long the pod ran, until its end or until now."""
    start = pod["status"].get("startTime")
    if not start:
        return 0.0
    ends: list[float] = []
    for status in pod["status"].get("containerStatuses") or ():
        end = status.get("state", {}).get("terminated", {}).get("finishedAt")
        if end:
            ends.append(when(end))
    start_s = when(start)
    if pod["status"].get("phase") in ("Succeeded", "Failed") and not ends:
        # Its node rejected it or is lost, so no kubelet wrote an end.
        ends.append(start_s)
        for change in pod["status"].get("conditions") or ():
            if change.get("lastTransitionTime"):
                ends.append(when(change["lastTransitionTime"]))
    return max(0.0, max(ends, default=now) - start_s)


def find_hold_start_s(job: JobSnapshot) -> float | None:
    """Return the Unix time since which Kueue holds the job: its creation, or its last eviction.

    Returns None if Kueue does not hold it. The exporter counts queue_wait_seconds in the same way.
    """
    workload = job.workload
    if workload is None or has_condition(workload, "Admitted"):
        return None
    created_s = when(workload["metadata"]["creationTimestamp"])
    if not has_condition(workload, "Evicted"):
        return created_s
    evicted_s = when(condition(workload, "Evicted")["lastTransitionTime"])
    return max(created_s, evicted_s)


def get_hold_s(job: JobSnapshot, now_s: float) -> float:
    """Return how long Kueue has held the job; 0 if it does not."""
    since_s = find_hold_start_s(job)
    return 0.0 if since_s is None else max(0.0, now_s - since_s)


def path_in(group: str, plural: str, namespace: str) -> str:
    if namespace:
        return f"{group}/namespaces/{namespace}/{plural}"
    return f"{group}/{plural}"


def _belongs(pod: Object, owner: Object, label: str) -> bool:
    meta = pod["metadata"]
    return (
        meta["namespace"] == owner["namespace"]
        and meta.get("labels", {}).get(label) == owner["name"]
    )
