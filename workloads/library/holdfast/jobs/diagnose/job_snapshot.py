"""One job of the cluster with what belongs to it: its pods, and its place in the queue.

A job is a JobSet, a Job that no JobSet owns, or a Deployment of workers. Nothing here judges.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches

from holdfast.clients.api import Api, Object
from holdfast.ledger import disruptions
from holdfast.support.errors import InputError
from holdfast.support.values import moment
from holdfast.vocabulary import kubernetes
from holdfast.vocabulary.kubernetes import LABEL_JOBSET, LABEL_NAME, api_path
from holdfast.vocabulary.roles import NAMESPACE_BATCH

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
        """Empty for a manifest that was not sent."""
        return self.body["metadata"].get("uid", "")

    @property
    def kind(self) -> str:
        return self.body["kind"]

    @property
    def status(self) -> Object:
        return self.body.get("status", {})

    @property
    def suspended(self) -> bool:
        return bool(self.body["spec"].get("suspend"))

    @property
    def size(self) -> int:
        """Pods that run at once when all is well."""
        if self.kind != "JobSet":
            return int(
                self.body["spec"].get("parallelism" if self.kind == "Job" else "replicas", 1)
            )
        groups = self.body["spec"]["replicatedJobs"]
        return sum(
            int(g.get("replicas", 1)) * int(g["template"]["spec"].get("parallelism", 1))
            for g in groups
        )

    @property
    def wanted(self) -> int:
        """Pods that should run now: those that succeeded are not made again."""
        if self.kind == "Deployment":
            return self.size
        if self.kind == "JobSet":
            return self.size - len(self.phase("Succeeded"))
        left = int(self.body["spec"].get("completions") or self.size) - int(
            self.status.get("succeeded", 0)
        )
        return max(0, min(self.size, left))

    @property
    def pod_spec(self) -> Object:
        """Of the first group; ours have one."""
        spec = self.body["spec"]
        holder = spec if self.kind != "JobSet" else spec["replicatedJobs"][0]["template"]["spec"]
        return holder["template"]["spec"]

    @property
    def sharded(self) -> bool:
        """A gang whose pods wait in place for each that is lost."""
        return any(
            "--sharded" in (each.get("command") or ())
            for each in self.pod_spec.get("containers", ())
        )

    @property
    def missing_places(self) -> list[int]:
        """Of a sharded gang the places without a running pod, for which its other pods wait; empty:
        for none.
        """
        there = {place_of(pod) for pod in self.phase("Running") + self.phase("Succeeded")}
        waits = there and self.sharded and not self.finished
        if waits:
            return [place for place in range(self.size) if place not in there]
        return []

    @property
    def finished(self) -> str:
        """`Complete`, `Failed` or nothing yet."""
        found = {c["type"]: c["status"] for c in self.status.get("conditions") or ()}
        if found.get("Failed") == "True":
            return "Failed"
        if "True" in (found.get("Complete"), found.get("Completed")):
            return "Complete"
        return ""

    @property
    def active(self) -> list[Object]:
        return self.phase("Running") + self.phase("Pending")

    def phase(self, name: str) -> list[Object]:
        return [pod for pod in self.pods if pod["status"].get("phase") == name]


def all_jobs(api: Api, namespace: str = "") -> Iterator[JobSnapshot]:
    """JobSets, then Jobs of their own, then Deployments of workers."""
    pods = list(api.items(path_in("/api/v1", "pods", namespace)))
    workloads = list(api.items(path_in(KUEUE, "workloads", namespace)))
    for kind, group, plural, label in LISTED:
        for body in api.items(path_in(group, plural, namespace)):
            meta = body["metadata"]
            if kind == "Job" and LABEL_JOBSET in meta.get("labels", {}):
                continue
            if kind == "Deployment":
                account = body["spec"]["template"]["spec"].get("serviceAccountName")
            else:
                account = ""
            if kind == "Deployment" and NAMESPACE_BATCH not in (meta["namespace"], account):
                continue  # servers and the platform's own
            yield JobSnapshot(
                body=body | {"kind": kind},
                pods=[pod for pod in pods if _belongs(pod, meta, label)],
                workload=next((w for w in workloads if meta["uid"] in owners(w)), None),
            )


def find(api: Api, name: str, namespace: str = "") -> JobSnapshot:
    """The job called `name`, or the newest that was made of it; an InputError for none, or one in
    several namespaces.
    """
    views = list(all_jobs(api, namespace))
    found = [job for job in views if job.name == name] or _newest_of(views, name)
    if len(found) == 1:
        return found[0]
    if found:
        places = ", ".join(job.namespace for job in found)
        raise InputError(
            "job name is not unique",
            got=f"{name} in {places}",
            allowed="one job",
            fix="--namespace NAME",
        )
    names = sorted({job.name for job in views})
    near = get_close_matches(name, names, n=1)
    raise InputError(
        "no such job",
        got=name,
        allowed=", ".join(names[:10]) or f"none: no job in {namespace or 'this cluster'}",
        fix=f"did you mean {near[0]}?" if near else "`holdfast explain`",
    )


def _newest_of(views: list[JobSnapshot], run: str) -> list[JobSnapshot]:
    """One a namespace. A job's own name ends in a digest of its template, which people do not type."""
    made = [job for job in views if job.body["metadata"].get("labels", {}).get(LABEL_NAME) == run]
    made.sort(key=lambda job: job.body["metadata"].get("creationTimestamp", ""))
    return list({job.namespace: job for job in made}.values())


def place_of(pod: Object) -> int:
    """Index of its Job; -1: none."""
    return int(pod["metadata"].get("annotations", {}).get(kubernetes.ANNOTATION_INDEX, -1))


def lost_at_s(job: JobSnapshot, place: int) -> float | None:
    """Unix seconds since which the place has no running pod, as far as the cluster still knows;
    None: it does not.
    """
    pods = sorted(
        (p for p in job.pods if place_of(p) == place),
        key=lambda p: p["metadata"]["creationTimestamp"],
    )
    taken = [
        condition(pod, "DisruptionTarget").get("lastTransitionTime")
        for pod in pods
        if pod in job.phase("Failed")
    ]
    made = [pod["metadata"]["creationTimestamp"] for pod in pods if pod in job.phase("Pending")]
    return min((when(text) for text in (*taken[-1:], *made) if text), default=None)


def owners(body: Object) -> set[str]:
    return {owner["uid"] for owner in body["metadata"].get("ownerReferences", ())}


def condition(body: Object, kind: str) -> Object:
    """Empty where the object has none of this kind."""
    found = body.get("status", {}).get("conditions") or ()
    return next((c for c in found if c["type"] == kind), {})


def disruption(pod: Object) -> str:
    """Why the platform ended the pod; empty if the platform did not."""
    return disruptions.disruption(pod)[0]


def containers(pod: Object) -> list[Object]:
    """Statuses, those of init containers first."""
    status = pod["status"]
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def crashed(job: JobSnapshot) -> list[Object]:
    """Pods that ended by their own fault and are still there."""
    return [pod for pod in job.phase("Failed") if not disruption(pod)]


def when(text: str) -> float:
    """Unix seconds of Kubernetes' time."""
    at = moment(text)
    assert at, text
    return at.timestamp()


def waited_s(pod: Object) -> float | None:
    """From creation to a node; None while it has none."""
    scheduled = condition(pod, "PodScheduled")
    if scheduled.get("status") != "True":
        return None
    return max(
        0.0, when(scheduled["lastTransitionTime"]) - when(pod["metadata"]["creationTimestamp"])
    )


def ran_s(pod: Object, now: float) -> float:
    """From its start to its end, or until now."""
    start = pod["status"].get("startTime")
    if not start:
        return 0.0
    ends = []
    for status in pod["status"].get("containerStatuses") or ():
        if status.get("state", {}).get("terminated", {}).get("finishedAt"):
            ends.append(when(status["state"]["terminated"]["finishedAt"]))
    return max(0.0, (max(ends) if ends else now) - when(start))


def held_since_s(job: JobSnapshot) -> float | None:
    """Unix seconds since which Kueue holds the job back: its creation, or its last eviction; None
    where it does not.

    As the exporter counts queue_wait_seconds.
    """
    workload = job.workload
    if workload is None or condition(workload, "Admitted").get("status") == "True":
        return None
    evicted = condition(workload, "Evicted")
    times = [workload["metadata"]["creationTimestamp"]]
    times += [evicted["lastTransitionTime"]] if evicted.get("status") == "True" else []
    return max(map(when, times))


def held_for_s(job: JobSnapshot, now_s: float) -> float:
    """0 where Kueue does not hold it."""
    since_s = held_since_s(job)
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
