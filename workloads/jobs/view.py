"""One job of the cluster with everything that belongs to it: its pods, its place in the queue, the nodes.

A job is a JobSet, or a Job that no JobSet owns. Read by `explain` and `list`; nothing here judges.
"""

import datetime
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches

from infra.contract.errors import InputError
from workloads.jobs.api import Api, Object

JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2"
JOBS = "/apis/batch/v1"
KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
LABEL_JOBSET = "jobset.sigs.k8s.io/jobset-name"
LABEL_JOB = "batch.kubernetes.io/job-name"
_INDEX = "batch.kubernetes.io/job-completion-index"
# Written on the pods of Jobs with backoffLimitPerIndex: earlier failures of the index.
_IGNORED = "batch.kubernetes.io/job-index-ignored-failure-count"
_CHARGED = "batch.kubernetes.io/job-index-failure-count"


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
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
        if self.kind == "Job":
            return int(self.body["spec"].get("parallelism", 1))
        groups = self.body["spec"]["replicatedJobs"]
        return sum(int(g.get("replicas", 1)) * int(g["template"]["spec"].get("parallelism", 1)) for g in groups)

    @property
    def pod_spec(self) -> Object:
        """Of the first group; ours have one."""
        spec = self.body["spec"]
        holder = spec if self.kind == "Job" else spec["replicatedJobs"][0]["template"]["spec"]
        return holder["template"]["spec"]

    @property
    def finished(self) -> str:
        """`Complete`, `Failed` or nothing yet."""
        found = {c["type"]: c["status"] for c in self.status.get("conditions") or ()}
        if found.get("Failed") == "True":
            return "Failed"
        return "Complete" if "True" in (found.get("Complete"), found.get("Completed")) else ""

    def phase(self, name: str) -> list[Object]:
        return [pod for pod in self.pods if pod["status"].get("phase") == name]


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """What a waiting job waits for."""

    nodes: list[Object] = field(default_factory=list)
    others: list[Object] = field(default_factory=list)
    """Every pod of the cluster."""
    events: list[Object] = field(default_factory=list)
    """Of the job's namespace."""
    workloads: list[Object] = field(default_factory=list)
    """Of Kueue, in the namespace."""
    local_queues: list[Object] = field(default_factory=list)
    cluster_queues: list[Object] = field(default_factory=list)


def all_views(api: Api, namespace: str = "") -> Iterator[View]:
    """JobSets, then Jobs of their own."""
    pods = list(api.items(_path("/api/v1", "pods", namespace)))
    workloads = list(api.items(_path(KUEUE, "workloads", namespace)))
    for kind, group, plural, label in (("JobSet", JOBSETS, "jobsets", LABEL_JOBSET), ("Job", JOBS, "jobs", LABEL_JOB)):
        for body in api.items(_path(group, plural, namespace)):
            meta = body["metadata"]
            if kind == "Job" and LABEL_JOBSET in meta.get("labels", {}):
                continue
            yield View(
                body=body | {"kind": kind},
                pods=[pod for pod in pods if _belongs(pod, meta, label)],
                workload=next((w for w in workloads if meta["uid"] in owners(w)), None),
            )


def find(api: Api, name: str, namespace: str = "") -> View:
    """The job called `name`; an InputError where there is none, or one in several namespaces."""
    views = list(all_views(api, namespace))
    found = [view for view in views if view.name == name]
    if len(found) == 1:
        return found[0]
    if found:
        places = ", ".join(view.namespace for view in found)
        raise InputError("job name is not unique", got=f"{name} in {places}", allowed="one job", fix="--namespace NAME")
    names = sorted({view.name for view in views})
    near = get_close_matches(name, names, n=1)
    raise InputError(
        "no such job",
        got=name,
        allowed=", ".join(names[:10]) or "none: no job in this cluster",
        fix=f"did you mean {near[0]}?" if near else "`python -m workloads list`",
    )


def surroundings(api: Api, view: View) -> Surroundings:
    return Surroundings(
        nodes=list(api.items("/api/v1/nodes")),
        others=list(api.items("/api/v1/pods")),
        events=list(api.items(_path("/api/v1", "events", view.namespace))),
        workloads=list(api.items(_path(KUEUE, "workloads", view.namespace))),
        local_queues=list(api.items(_path(KUEUE, "localqueues", view.namespace))),
        cluster_queues=list(api.items(f"{KUEUE}/clusterqueues")),
    )


def owners(body: Object) -> set[str]:
    return {owner["uid"] for owner in body["metadata"].get("ownerReferences", ())}


def condition(body: Object, kind: str) -> Object:
    """Empty where the object has none of this kind."""
    found = body.get("status", {}).get("conditions") or ()
    return next((c for c in found if c["type"] == kind), {})


def disruption(pod: Object) -> str:
    """Why the platform ended the pod; empty if the platform did not."""
    found = condition(pod, "DisruptionTarget")
    return str(found.get("reason", "")) if found.get("status") == "True" else ""


def exit_code(pod: Object) -> int | None:
    """The first non-zero one of its containers."""
    for status in pod["status"].get("containerStatuses") or ():
        code = status.get("state", {}).get("terminated", {}).get("exitCode")
        if code:
            return int(code)
    return None


def evicted(view: View) -> int:
    """Times that the platform took the job down, those included whose pods are gone with their nodes.

    JobSet counts restarts. Of an indexed Job each new pod bears how often its index was lost before; of any other
    Job only the pods tell that are still there.
    """
    if view.kind == "JobSet":
        return int(view.status.get("restarts", 0)) - int(view.status.get("restartsCountTowardsMax", 0))
    return _losses(view, _IGNORED, lambda pod: bool(disruption(pod)))


def crashes(view: View) -> int:
    """Times that it ended by its own fault, counted alike."""
    if view.kind == "JobSet":
        return max(int(view.status.get("restartsCountTowardsMax", 0)), len(crashed(view)))
    return _losses(view, _CHARGED, lambda pod: not disruption(pod))


def crashed(view: View) -> list[Object]:
    """Pods that ended by their own fault and are still there."""
    return [pod for pod in view.phase("Failed") if not disruption(pod)]


def _losses(view: View, counter: str, ours: Callable[[Object], bool]) -> int:
    """Per index, whichever knows of more: the failed pods that are there, or the newest pod's count of those before."""
    indexes: dict[str, list[Object]] = {}
    for n, pod in enumerate(view.pods):
        index = pod.get("metadata", {}).get("annotations", {}).get(_INDEX, f"none-{n}")
        indexes.setdefault(index, []).append(pod)

    def lost(pod: Object) -> bool:
        return pod["status"].get("phase") == "Failed" and ours(pod)

    def before(pod: Object) -> int:
        return int(pod.get("metadata", {}).get("annotations", {}).get(counter, 0))

    return sum(max(sum(map(lost, pods)), max(before(pod) + lost(pod) for pod in pods)) for pods in indexes.values())


def when(text: str) -> float:
    """Unix seconds of Kubernetes' time."""
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def waited_s(pod: Object) -> float | None:
    """From creation to a node; None while it has none."""
    scheduled = condition(pod, "PodScheduled")
    if scheduled.get("status") != "True":
        return None
    return max(0.0, when(scheduled["lastTransitionTime"]) - when(pod["metadata"]["creationTimestamp"]))


def _path(group: str, plural: str, namespace: str) -> str:
    return f"{group}/namespaces/{namespace}/{plural}" if namespace else f"{group}/{plural}"


def _belongs(pod: Object, owner: Object, label: str) -> bool:
    meta = pod["metadata"]
    return meta["namespace"] == owner["namespace"] and meta.get("labels", {}).get(label) == owner["name"]
