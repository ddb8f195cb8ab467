"""Stops a job before its machines have cost more than the `max_usd` of its file.

The job is stopped as `holdfast stop` does it: its pods get SIGTERM and their window, and save. What
it has cost is an annotation of the job, so it outlives pods, nodes and movers: a mover counts on
from it, and counts pods that it did not watch from their start. Guarantee: a job is stopped while
the money for its window is still left; one whose machines have no price is never stopped, and the
log says so.
"""

# Why it is so: infra/decisions/0148, infra/decisions/0182.

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.clients.api import Api, ApiError, Object
from holdfast.controllers.cluster_objects import Node, Pod, find_end_s, find_held
from holdfast.controllers.controller_log import get_logger
from holdfast.cost.money import find_prices
from holdfast.mover.cluster_api import write_event
from holdfast.support.errors import InputError
from holdfast.vocabulary.capacity import (
    ANNOTATION_MAX_USD,
    ANNOTATION_QUEUED_AGAIN,
    ANNOTATION_REQUEST_ENDED,
    ANNOTATION_SPENT_USD,
    ANNOTATION_STOPPED_FOR,
    STOPPED_FOR_MAX_USD,
)
from holdfast.vocabulary.kubernetes import KUEUE_API, LABEL_QUEUE, api_path
from holdfast.vocabulary.lifecycle import DEFAULT_WINDOW

LOG = get_logger("spend")
REASON = "MaxUsd"
MARGIN_S = 120.0
"""Time for the mover, Kueue and the kubelet, in addition to the window of the pods."""
WRITE_EVERY_S = 60.0
HOUR_S = 3_600.0


@dataclass(
    frozen=True,
    kw_only=True,
    slots=True,
)
class LimitedJob:
    """A Job or JobSet with a limit."""

    path: str
    """Path of its object."""
    body: Object
    """apiVersion, kind, name, namespace and uid, as an Event needs them."""
    max_usd: float
    spent: "Spent"
    window_s: float
    queued: bool
    """A queue starts it."""
    suspended: bool
    stopped: bool
    """The mover stopped it, and no person has resumed it."""


@dataclass(frozen=True, slots=True)
class Spent:
    usd: float = 0.0
    until_s: float = 0.0
    """Unix time up to which it is counted; 0: nothing is."""
    per_hour: float = 0.0
    """Dollars an hour of the machines that it has now."""

    @property
    def text(self) -> str:
        return f"{self.usd:.4f} {self.until_s:.0f}"


def parse_spent(text: object) -> Spent:
    """Parses the annotation; nothing is spent if it is missing or has another form."""
    usd, _, until_s = str(text or "").partition(" ")
    try:
        spent = Spent(float(usd), float(until_s))
    except ValueError:
        return Spent()
    is_finite = math.isfinite(spent.usd) and math.isfinite(spent.until_s)
    return spent if is_finite and spent.usd >= 0 else Spent()


def parse_limited_job(watch_path: str, body: Mapping[str, Any]) -> LimitedJob | None:
    """Parses a Job or JobSet.

    Returns None if it has no limit, has ended, or belongs to another object.
    """
    meta = body["metadata"]
    annotations = meta.get("annotations") or {}
    try:
        max_usd = float(annotations.get(ANNOTATION_MAX_USD, ""))
    except ValueError:
        return None
    if not 0 < max_usd < math.inf:
        return None
    if meta.get("ownerReferences") or find_end_s(body):
        return None
    spec = body["spec"]
    involved = {key: meta[key] for key in ("name", "namespace", "uid")}
    kind = "JobSet" if "replicatedJobs" in spec else "Job"
    return LimitedJob(
        path=f"{watch_path}/{meta['name']}",
        body=involved | {"apiVersion": _find_api_version(watch_path), "kind": kind},
        max_usd=max_usd,
        spent=parse_spent(annotations.get(ANNOTATION_SPENT_USD)),
        window_s=_find_window_s(spec),
        queued=LABEL_QUEUE in (meta.get("labels") or {}),
        suspended=bool(spec.get("suspend")),
        stopped=annotations.get(ANNOTATION_STOPPED_FOR) == STOPPED_FOR_MAX_USD,
    )


def _find_window_s(spec: Mapping[str, Any]) -> float:
    """Returns the longest time between SIGTERM and SIGKILL of the pods."""
    jobs = [spec]
    if "replicatedJobs" in spec:
        jobs = [group["template"]["spec"] for group in spec["replicatedJobs"]]
    windows_s = [float(DEFAULT_WINDOW.pod_s)]
    for job_spec in jobs:
        pod_spec = job_spec.get("template", {}).get("spec", {})
        windows_s.append(float(pod_spec.get("terminationGracePeriodSeconds") or 0))
    return max(windows_s)


def _find_api_version(watch_path: str) -> str:
    """Returns batch/v1 of /apis/batch/v1/namespaces/training/jobs."""
    return watch_path.partition("/namespaces/")[0].removeprefix("/apis/")


@dataclass(slots=True)
class Spending:
    """Counts what jobs with a limit have cost."""

    by_job: dict[str, Spent] = field(default_factory=dict)
    """Cost by uid of the Job or JobSet."""
    _limited: dict[str, LimitedJob] = field(default_factory=dict)
    _written_s: dict[str, float] = field(default_factory=dict)
    _unpriced: set[str] = field(default_factory=set)

    def count(
        self,
        limited: Mapping[str, LimitedJob],
        pods: Iterable[tuple[str, Pod]],
        nodes: Mapping[str, Node],
        now_s: float,
    ) -> None:
        """Adds what the machines of the jobs have cost since the last call.

        Every replica counts, so that each can take over. `pods` are pairs of the uid of a job and a
        pod, of all jobs: those that share a node pay for it in equal parts.
        """
        self._limited = dict(limited)
        pods_by_node: dict[str, dict[str, Pod]] = defaultdict(dict)
        for uid, pod in pods:
            if uid and pod.node in nodes:
                pods_of_node = pods_by_node[pod.node]
                first = pods_of_node.get(uid, pod)
                is_older = pod.running_since_s < first.running_since_s
                pods_of_node[uid] = pod if is_older else first
        counted: dict[str, Spent] = {}
        for uid, job in limited.items():
            counted[uid] = self._find_spent(uid, job)
        added = dict.fromkeys(limited, 0.0)
        per_hour = dict.fromkeys(limited, 0.0)
        for name, pods_by_job in pods_by_node.items():
            for uid, pod in pods_by_job.items():
                if uid in limited:
                    usd = self._find_price(uid, nodes[name]) / len(pods_by_job)
                    per_hour[uid] += usd
                    since_s = max(counted[uid].until_s, pod.running_since_s) or now_s
                    uncounted_s = max(0.0, now_s - since_s)
                    added[uid] += usd * uncounted_s / HOUR_S
        self.by_job = {}
        for uid, spent in counted.items():
            self.by_job[uid] = Spent(
                spent.usd + added[uid],
                now_s,
                per_hour[uid],
            )
        for uid in self._written_s.keys() - limited.keys():
            del self._written_s[uid]

    def _find_spent(
        self,
        uid: str,
        job: LimitedJob,
    ) -> Spent:
        """Returns what is known: another replica may have counted further."""
        counted = self.by_job.get(uid, Spent())
        return job.spent if job.spent.until_s > counted.until_s else counted

    def _find_price(
        self,
        uid: str,
        node: Node,
    ) -> float:
        if node.own_usd_per_hour:
            return node.own_usd_per_hour
        region = node.zone.rpartition("-")[0]
        try:
            prices = find_prices(node.machine_type, region)
        except InputError as error:
            if uid not in self._unpriced:
                self._unpriced.add(uid)
                name = self._limited[uid].body["name"]
                LOG.warning(
                    "max_usd of %s is not kept: %s: %s",
                    name,
                    error.what,
                    error.got,
                )
            return 0.0
        return prices.find_rate(node.capacity)

    def act(
        self,
        api: Api,
        now_s: float,
    ) -> int:
        """Stops the jobs that are about to reach their limit, and writes what jobs have cost.

        Returns how many were stopped. Only the replica that leads calls it.
        """
        count = 0
        for uid, job in self._limited.items():
            spent = self.by_job[uid]
            try:
                if self._is_due(job, spent):
                    count += _stop(api, job, spent, now_s)
                    self._written_s[uid] = now_s
                elif spent.per_hour and now_s - self._written_s.get(uid, 0.0) >= WRITE_EVERY_S:
                    self._written_s[uid] = now_s
                    annotations = {ANNOTATION_SPENT_USD: spent.text}
                    api.merge(job.path, {"metadata": {"annotations": annotations}})
            except ApiError as error:
                if error.status != 404:
                    name = job.body["name"]
                    LOG.warning(
                        "max_usd of %s is not kept in this pass: %s",
                        name,
                        error,
                    )
        return count

    def _is_due(
        self,
        job: LimitedJob,
        spent: Spent,
    ) -> bool:
        if job.stopped and job.suspended and not spent.per_hour:
            return False
        to_come_usd = spent.per_hour * (job.window_s + MARGIN_S) / HOUR_S
        return spent.usd + to_come_usd >= job.max_usd


def _stop(
    api: Api,
    job: LimitedJob,
    spent: Spent,
    now_s: float,
) -> bool:
    """Stops a job as `holdfast stop` does: by its Workload if a queue has it.

    A gang that was growing has two. If both ended at once, Kueue would finish both and leave the
    pods; so the one that has quota ends, and in a later pass the other one, with which Kueue goes
    on. Returns False if there is nothing to end in this pass.
    """
    annotations = {ANNOTATION_SPENT_USD: spent.text, ANNOTATION_STOPPED_FOR: STOPPED_FOR_MAX_USD}
    api.merge(job.path, {"metadata": {"annotations": annotations}})
    if job.queued:
        namespace = job.body["namespace"]
        path = f"{api_path(KUEUE_API)}/namespaces/{namespace}/workloads"
        # With a mark from an earlier end of its nodes, the mover would start it again.
        marks = {ANNOTATION_QUEUED_AGAIN: None, ANNOTATION_REQUEST_ENDED: None}
        end = {"metadata": {"annotations": marks}, "spec": {"active": False}}
        workloads = find_held(api.items(path))
        workload = workloads.get(job.body["uid"])
        if workload is None or not _may_start(workload):
            return False
        api.merge(f"{path}/{workload['metadata']['name']}", end)
    else:
        api.merge(job.path, {"spec": {"suspend": True}})
    message = (
        f"stopped with ${spent.usd:.2f} of its max_usd ${job.max_usd:.2f} spent; what is left is"
        " for its last save"
    )
    LOG.info(
        "%s: %s",
        job.body["name"],
        message,
    )
    write_event(
        api,
        job.body,
        REASON,
        message,
        now_s,
    )
    return True


def _may_start(workload: Object) -> bool:
    """Returns whether the job runs by this Workload, or the mover would start it again."""
    annotations = workload["metadata"].get("annotations") or {}
    is_marked = ANNOTATION_QUEUED_AGAIN in annotations or ANNOTATION_REQUEST_ENDED in annotations
    return is_marked or workload["spec"].get("active", True)
