"""Mirrors the cluster for the mover: nodes, pods, the jobs that ended, and where they ran. Pure."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from holdfast.controllers.cluster import Cluster
from holdfast.controllers.cluster_objects import SPOT, find_controller, find_end_s
from holdfast.controllers.watch import Kind, uid
from holdfast.cost.receipt import ANNOTATION
from holdfast.ledger.events import Event
from holdfast.mover.movable_jobs import Movable
from holdfast.mover.mover import Observation, Pods
from holdfast.mover.node_usage import NodeUsage, NodeUsages
from holdfast.mover.spending import LimitedJob, Spending, parse_limited_job
from holdfast.support.values import unix_s
from holdfast.vocabulary.job_identity import read_source
from holdfast.vocabulary.kubernetes import ANNOTATION_SOURCE, JOB_API, JOBSET_API, api_path
from holdfast.vocabulary.roles import JOB_NAMESPACES

# The last lines of a job may arrive this long after its end.
SETTLE_END_S = 90.0
# Deleted pods whose last lines may still arrive.
REMEMBERED = 5_000


@dataclass(frozen=True, slots=True)
class EndedJob:
    namespace: str
    name: str
    start_s: float
    end_s: float
    node_usage: NodeUsage | None = None
    """The machines that it ran on; None if its pods were not watched."""
    source: str = ""
    """Digest of its code; empty if its image has the code."""


@dataclass
class View(Cluster):
    over: dict[str, dict[str, EndedJob]] = field(default_factory=dict)
    """Path of a watch -> uid -> job that ended and has no receipt."""
    taken: dict[str, set[str]] = field(default_factory=dict)
    """Path of a watch -> uids of existing jobs that `take_due_jobs` has returned. A job without a
    receipt appears in every list.
    """
    node_usages: NodeUsages = field(default_factory=NodeUsages)
    spending: Spending = field(default_factory=Spending)
    parents: dict[str, dict[str, str]] = field(default_factory=dict)
    """Path of a watch -> uid of a Job or JobSet -> uid of its controller, or empty."""
    limited: dict[str, dict[str, LimitedJob]] = field(default_factory=dict)
    """Path of a watch -> uid -> job with a limit of dollars."""
    writers: dict[tuple[str, str], str] = field(default_factory=dict)
    """Namespace and name of a pod -> uid of its controller. Labels would not do: any author can
    write them.
    """
    nodes_by_writer: dict[tuple[str, str], str] = field(default_factory=dict)
    """Namespace and name of a pod -> its node, as long as `writers` has the pod."""

    def pod(self, change: str, body: Mapping[str, Any]) -> None:
        super().pod(change, body)
        meta = body["metadata"]
        key = (meta["namespace"], meta.get("name", ""))
        self.writers.pop(key, None)  # moves it to the end, as the newest
        self.writers[key] = find_controller(body)
        self.nodes_by_writer[key] = (body.get("spec") or {}).get("nodeName") or ""
        while len(self.writers) > max(REMEMBERED, 2 * len(self.pods)):
            oldest = next(iter(self.writers))
            del self.writers[oldest]
            del self.nodes_by_writer[oldest]

    def job(self, path: str, change: str, body: Mapping[str, Any]) -> None:
        """Applies a change of a Job or JobSet that the watch of `path` saw."""
        parents = self.parents.setdefault(path, {})
        over = self.over.setdefault(path, {})
        limited = self.limited.setdefault(path, {})
        taken = self.taken.setdefault(path, set())
        meta = body["metadata"]
        uid = meta["uid"]
        over.pop(uid, None)
        limited.pop(uid, None)
        if change == "DELETED":
            parents.pop(uid, None)
            taken.discard(uid)
            return
        parents[uid] = find_controller(body)
        limited_job = parse_limited_job(path, body)
        if limited_job is not None:
            limited[uid] = limited_job
        end_s = find_end_s(body)
        # The annotation records the receipt, so that no job gets a second one.
        annotations = meta.get("annotations") or {}
        has_receipt = ANNOTATION in annotations
        # A JobSet or CronJob gets the receipt for the Jobs that it made.
        has_owner = bool(meta.get("ownerReferences"))
        if end_s and not has_receipt and not has_owner and uid not in taken:
            over[uid] = EndedJob(
                namespace=meta["namespace"],
                name=meta["name"],
                start_s=unix_s(meta.get("creationTimestamp")),
                end_s=end_s,
                source=read_source(annotations.get(ANNOTATION_SOURCE)),
            )

    def root(self, uid: str) -> str:
        """Returns the JobSet that made a Job, else the Job or JobSet itself; empty for others."""
        for parents in self.parents.values():
            if uid in parents:
                return parents[uid] or uid
        return ""

    def find_owner(self, namespace: str, pod: str) -> str:
        """Returns the uid of the Job or JobSet of a pod; empty if it is not known."""
        controller = self.writers.get((namespace, pod), "")
        return self.root(controller)

    def find_nodes(self, pods: Iterable[tuple[str, str]]) -> set[str]:
        """Returns the nodes of pods, which may be gone by now; without those that are not known."""
        nodes = {self.nodes_by_writer.get(pod, "") for pod in pods}
        return nodes - {""}

    @property
    def uids(self) -> set[str]:
        """Uids of all Jobs and JobSets."""
        uids: set[str] = set()
        for parents in self.parents.values():
            uids.update(parents)
        return uids

    def count_time(self, now_s: float) -> None:
        """Counts the time since the last pass.

        Call it in each pass, even without the lease: this replica may have to price later what it
        sees now.
        """
        pods = [(self.root(pod.owner), pod) for pod in self.pods.values()]
        self.node_usages.count_time(pods, self.nodes, now_s)
        limited_jobs: dict[str, LimitedJob] = {}
        for jobs in self.limited.values():
            limited_jobs |= jobs
        self.spending.count(limited_jobs, pods, self.nodes, now_s)
        self.lines(now_s)  # dropped here, because the exporter writes them

    def take_due_jobs(self, now_s: float) -> list[EndedJob]:
        """Returns the jobs that are due for their receipt, each once."""
        due: list[EndedJob] = []
        for path, jobs in self.over.items():
            for job_uid, job in list(jobs.items()):
                if now_s - job.end_s >= SETTLE_END_S:
                    del jobs[job_uid]
                    self.taken[path].add(job_uid)
                    usage = self.node_usages.by_job.pop(job_uid, None)
                    due.append(replace(job, node_usage=usage))
        return due

    def without_node(self) -> dict[str, float]:
        """Returns the jobs with a pod that finds no node, and since when the first such pod waits.

        Keys are uids of Jobs and JobSets.
        """
        waits: dict[str, float] = {}
        for pod in self.pods.values():
            job = self.root(pod.owner)
            if pod.waits_since_s and job:
                earliest = waits.get(job, pod.waits_since_s)
                waits[job] = min(pod.waits_since_s, earliest)
        return waits

    def observe(self, events: Callable[[Movable], Iterable[Event]]) -> Observation:
        """Returns what the mover decides by."""
        spot_machines: list[str] = []
        for node in self.nodes.values():
            if node.capacity == SPOT and not node.taken:
                spot_machines.append(node.machine_type)
        waiting_for_spot: list[str] = []
        for pod in self.pods.values():
            if pod.capacity == SPOT and pod.waits_since_s:
                waiting_for_spot.append(pod.accelerator)
        return Observation(
            pods=self._count_pods(),
            spot_machines=spot_machines,
            waiting_for_spot=waiting_for_spot,
            events=events,
        )

    def _count_pods(self) -> dict[str, Pods]:
        pods_by_job: dict[str, Pods] = {}
        for pod in self.pods.values():
            job = self.root(pod.owner)
            if not job:
                continue
            before = pods_by_job.get(job, Pods())
            is_placed = bool(pod.node) and not pod.disrupted
            pods_by_job[job] = Pods(
                total=before.total + 1,
                placed=before.placed + is_placed,
                accelerator=pod.accelerator,
            )
        return pods_by_job

    def forget_all_but(self, kind: str, keys: set[Any]) -> None:
        """Drops what is missing from a fresh list. The `kind` of jobs is the path of its watch."""
        if not kind.startswith("/"):
            super().forget_all_but(kind, keys)
            return
        # A mapping has no entry for a kind of which no job was seen.
        for jobs_by_path in (self.over, self.parents, self.limited):
            jobs = jobs_by_path.get(kind, {})
            for key in jobs.keys() - keys:
                del jobs[key]
        if kind in self.taken:
            self.taken[kind] &= keys


def list_job_kinds(namespaces: Iterable[str] = JOB_NAMESPACES) -> list[Kind]:
    """Returns the kinds to watch for jobs that end: Jobs and JobSets of these namespaces."""
    namespaces = list(namespaces)
    kinds: list[Kind] = []
    for version, resource in ((JOB_API, "jobs"), (JOBSET_API, "jobsets")):
        for namespace in namespaces:
            path = f"{api_path(version)}/namespaces/{namespace}/{resource}"
            kinds.append(_make_kind(path))
    return kinds


def _make_kind(path: str) -> Kind:
    return Kind(
        path,
        path,
        lambda view: partial(view.job, path),
        uid,
        optional=True,
    )
