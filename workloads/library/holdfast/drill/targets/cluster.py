"""Pods of a cluster, named by namespace and selector, and their nodes.

The drill creates nothing here and deletes only the pods that it evicts. Nodes are hit only if they
are Spot or flex-start, which can be lost at any time, and run no other work.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from holdfast.clients.api import Api, Object
from holdfast.drill.plan import RECOVERED, Fault
from holdfast.drill.target import Undo
from holdfast.drill.targets.evictors import NODES, NodeEvictor
from holdfast.jobs.diagnose.job_snapshot import JOBS, JOBSETS, JobSnapshot, disruption
from holdfast.support.errors import InputError, Stopped
from holdfast.vocabulary.kubernetes import (
    ANNOTATION_INDEX,
    LABEL_JOB,
    LABEL_JOBSET,
    SYSTEM_NAMESPACES,
)
from holdfast.vocabulary.pools import LABEL_FLEX_START, LABEL_ROLE, LABEL_SPOT, Role

_ENDED = ("Succeeded", "Failed")
_NEVER = (Role.SYSTEM.value, Role.SERVING.value)


@dataclass(frozen=True, kw_only=True, slots=True)
class Named:
    """The namespace and selector of the drill's pods."""

    namespace: str
    selector: str


class Cluster:
    def __init__(
        self,
        api: Api,
        named: Named,
        fault: Fault,
        evictor: NodeEvictor,
    ) -> None:
        self._api = api
        self._named = named
        self._fault = fault
        self._evictor = evictor
        self._snapshots: dict[str, Object] = {}
        """The last state of every pod by uid, because an evicted pod is deleted soon after."""
        self._active: dict[str, Object] = {}
        self._before: dict[str, Object] = {}
        self._victims: set[str] = set()
        self._earlier_charges: Counter[str] = Counter()
        self._fault_t: float | None = None
        self._recovery_t: float | None = None
        self.doubles = 0

    def prepare(self) -> None:
        self._refresh()
        if not self._active:
            raise InputError(
                "no such pods in the cluster",
                got=f"{self._named.selector} in namespace {self._named.namespace}",
                allowed="at least one pod that has not ended",
                fix="give --namespace and --selector of a running job",
            )

    def candidates(self) -> list[str]:
        self._refresh()
        # The oldest first: replacements from an earlier drill restart later, by the Job's back-off.
        running = sorted(self._running(), key=_age)
        if self._fault is Fault.EVICT:
            return [f"pod/{pod['metadata']['name']}" for pod in running]
        hosts = list(dict.fromkeys(pod["spec"]["nodeName"] for pod in running))
        refusals = self._find_refusals(hosts)
        if hosts and all(refusals.values()):
            examples = [f"{name}: {reason}" for name, reason in refusals.items()]
            raise Stopped(
                "no node may be hit",
                got="; ".join(examples[:3]),
                allowed="Spot and flex-start nodes that run no other work",
                fix="name other pods",
            )
        return [f"node/{name}" for name in hosts if not refusals[name]]

    def inject(self, victims: Sequence[str]) -> str:
        """Causes the fault. Raises Stopped if a victim may no longer be hit."""
        # A person may have taken long to agree, and other work may run on the nodes by now.
        changed = sorted({*victims} - {*self.candidates()})
        if changed:
            raise Stopped(
                "the targets have changed, and nothing was hit",
                got=f"{', '.join(changed)} is no target any more",
                allowed="the targets that were shown",
                fix="run the drill again",
            )
        names = [victim.split("/", 1)[1] for victim in victims]
        self._before = dict(self._active)
        self._earlier_charges = self._read_charges()
        self._victims = set()
        for uid, pod in self._before.items():
            if self._get_target(pod) in names:
                self._victims.add(uid)
        self._fault_t = time.time()
        if self._fault is Fault.EVICT:
            for name in names:
                self._api.evict(self._named.namespace, name)
            return f"evicted {', '.join(names)}"
        return self._evictor.evict(names)

    def _get_target(self, pod: Object) -> str | None:
        """Returns the name of the object that the fault hits: the pod or its node."""
        if self._fault is Fault.EVICT:
            return pod["metadata"].get("name")
        return pod["spec"].get("nodeName")

    def has_recovered(self) -> bool:
        """Returns whether as many pods run as before the fault, without the victims."""
        self._refresh()
        uids = {pod["metadata"]["uid"] for pod in self._running()}
        if len(uids) < len(self._before) or self._victims & uids:
            return False
        if self._recovery_t is None:
            self._recovery_t = time.time()
        return True

    def measure(self, metric: str) -> float | None:
        if metric != RECOVERED:
            self._refresh()
        return METRICS[metric](self)

    def rollback(self) -> Iterable[Undo]:
        return self._evictor.rollback()

    # -- measurements --

    def count_missing(self) -> float | None:
        """Counts pods that the Jobs want and that do not run; None if no Job owns the pods."""
        jobs: set[str] = set()
        for pod in self._active.values():
            jobs.add(_labels(pod).get(LABEL_JOB, ""))
        jobs.discard("")
        if not jobs:
            return None
        count = 0
        for name in jobs:
            job = self._find_job(name)
            if job:
                count += JobSnapshot(body=job, pods=[]).target_size
        return max(0, count - len(self._running()))

    def measure_recovery(self) -> float | None:
        if self._recovery_t is None or self._fault_t is None:
            return None
        return self._recovery_t - self._fault_t

    def count_charges(self) -> float:
        """Counts failures of Jobs and restarts of JobSets that count against a limit."""
        charges = self._read_charges() - self._earlier_charges
        return float(charges.total())

    def count_bystanders(self) -> float:
        """Counts pods that ended although they were no victims, without those of a JobSet, which
        restarts its whole gang by design.
        """
        count = 0
        for uid in set(self._before) - self._victims - set(self._active):
            in_gang = LABEL_JOBSET in _labels(self._before[uid])
            if not in_gang and _phase(self._snapshots[uid]) != "Succeeded":
                count += 1
        return float(count)

    def victims(self) -> list[Object]:
        """Returns the last known state of the victims."""
        return [self._snapshots[uid] for uid in self._victims]

    # -- the cluster --

    def _running(self) -> list[Object]:
        return [pod for pod in self._active.values() if _phase(pod) == "Running"]

    def _refresh(self) -> None:
        """Reads the pods of the drill and updates the largest number of doubles."""
        path = f"/api/v1/namespaces/{self._named.namespace}/pods"
        active: dict[str, Object] = {}
        pods_by_share: Counter[tuple[str, str]] = Counter()
        for pod in self._api.items(path, labelSelector=self._named.selector):
            uid = pod["metadata"]["uid"]
            self._snapshots[uid] = pod
            if not _is_active(pod):
                continue
            active[uid] = pod
            share = _find_share(pod)
            if share:
                pods_by_share[share] += 1
        self._active = active
        for count in pods_by_share.values():
            self.doubles = max(self.doubles, count - 1)

    def _find_refusals(self, hosts: Sequence[str]) -> dict[str, str]:
        """Returns for each node why it must not be hit; empty if it may be."""
        nodes = {node["metadata"]["name"]: node for node in self._api.items(NODES)}
        other_work = self._find_other_work()
        refusals: dict[str, str] = {}
        for name in hosts:
            node = nodes.get(name)
            # The pods of a node that was preempted remain for up to a minute.
            if node is None:
                refusals[name] = "it is gone"
                continue
            reason = _refuse(node) or other_work.get(name, "")
            refusals[name] = reason or self._evictor.check(node)
        return refusals

    def _find_other_work(self) -> dict[str, str]:
        """Returns for each node a sentence about a pod on it that the drill does not target."""
        sentences: dict[str, str] = {}
        for pod in self._api.items("/api/v1/pods"):
            if not _is_active(pod) or _follows_node(pod):
                continue
            meta = pod["metadata"]
            if meta["uid"] not in self._snapshots:
                host = pod["spec"].get("nodeName", "")
                sentences[host] = f"{meta['namespace']}/{meta['name']} runs there too"
        return sentences

    def _read_charges(self) -> Counter[str]:
        charges: Counter[str] = Counter()
        jobsets: set[str] = set()
        jobs: set[str] = set()
        for pod in {**self._before, **self._active}.values():
            labels = _labels(pod)
            if labels.get(LABEL_JOBSET):
                jobsets.add(labels[LABEL_JOBSET])
            elif labels.get(LABEL_JOB):
                jobs.add(labels[LABEL_JOB])
        for jobset in jobsets:
            status = _status(self._find_jobset(jobset))
            charges[f"jobset/{jobset}"] = int(status.get("restartsCountTowardsMax", 0))
        for job in jobs:
            status = _status(self._find_job(job))
            charges[f"job/{job}"] = int(status.get("failed", 0))
        return charges

    def _find_job(self, name: str) -> Object | None:
        return self._api.find(f"{JOBS}/namespaces/{self._named.namespace}/jobs/{name}")

    def _find_jobset(self, name: str) -> Object | None:
        return self._api.find(f"{JOBSETS}/namespaces/{self._named.namespace}/jobsets/{name}")


def _status(body: Object | None) -> Object:
    return body.get("status", {}) if body else {}


def _labels(body: Object) -> dict[str, str]:
    return body["metadata"].get("labels", {})


def _age(pod: Object) -> tuple[str, str]:
    return pod["metadata"]["creationTimestamp"], pod["metadata"]["name"]


def _phase(pod: Object) -> str:
    return pod["status"].get("phase", "")


def _is_active(pod: Object) -> bool:
    return _phase(pod) not in _ENDED and "deletionTimestamp" not in pod["metadata"]


def _find_share(pod: Object) -> tuple[str, str] | None:
    """Returns the Job and the completion index; None for a pod without an index."""
    index = pod["metadata"].get("annotations", {}).get(ANNOTATION_INDEX)
    if index is None:
        return None
    return _labels(pod).get(LABEL_JOB, ""), index


def _follows_node(pod: Object) -> bool:
    """Returns whether the pod belongs to the node itself, as those of a DaemonSet."""
    if pod["metadata"]["namespace"] in SYSTEM_NAMESPACES:
        return True
    owners = pod["metadata"].get("ownerReferences", ())
    return any(owner["kind"] in ("DaemonSet", "Node") for owner in owners)


def _refuse(node: Object) -> str:
    """Returns why a node of this kind must not be hit; empty if it may be."""
    labels = _labels(node)
    if labels.get(LABEL_ROLE) in _NEVER:
        return f"a {labels[LABEL_ROLE]} node is never hit"
    if "true" not in (labels.get(LABEL_SPOT), labels.get(LABEL_FLEX_START)):
        return "it is neither Spot nor flex-start, so nothing would preempt it"
    return ""


def _count_false_completions(cluster: Cluster) -> float:
    completed = [pod for pod in cluster.victims() if _phase(pod) == "Succeeded"]
    return float(len(completed))


def _count_crashes(cluster: Cluster) -> float:
    """Counts victims that failed without a disruption, so by their own fault."""
    failed = [pod for pod in cluster.victims() if _phase(pod) == "Failed"]
    return float(sum(not disruption(pod) for pod in failed))


METRICS: dict[str, Callable[[Cluster], float | None]] = {
    "pods_missing": Cluster.count_missing,
    RECOVERED: Cluster.measure_recovery,
    "failures_charged": Cluster.count_charges,
    # The largest number of pods that shared one index, less one, since the drill began.
    "pods_doubled": lambda cluster: float(cluster.doubles),
    "pods_outside_blast": Cluster.count_bystanders,
    "false_completions": _count_false_completions,
    "pods_crashed": _count_crashes,
}
