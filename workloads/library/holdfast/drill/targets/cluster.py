"""Pods of a cluster, named by namespace and selector, and the nodes under them.

The drill makes nothing here and deletes nothing but the pods that it evicts. Nodes are hit only if
they are Spot or flex-start, which may go anyway, and if no other work runs on them.
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
    """The work of the drill."""

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
        self._seen: dict[str, Object] = {}
        """The last look at every pod, by uid: an evicted pod is gone soon after."""
        self._active: dict[str, Object] = {}
        self._before: dict[str, Object] = {}
        self._victims: set[str] = set()
        self._charged_before: Counter[str] = Counter()
        self._fault_t: float | None = None
        self._back_t: float | None = None
        self.doubles = 0

    def prepare(self) -> None:
        self._look()
        if not self._active:
            raise InputError(
                "no such pods in the cluster",
                got=f"{self._named.selector} in namespace {self._named.namespace}",
                allowed="at least one pod that has not ended",
                fix="give --namespace and --selector of a running job",
            )

    def candidates(self) -> list[str]:
        self._look()
        # The oldest first: what an earlier drill took down waits longer each time, by the Job's
        # back-off.
        running = sorted(self._running(), key=_age)
        if self._fault is Fault.EVICT:
            return [f"pod/{pod['metadata']['name']}" for pod in running]
        hosts = list(dict.fromkeys(pod["spec"]["nodeName"] for pod in running))
        reasons = self._refusals(hosts)
        if hosts and all(reasons.values()):
            raise Stopped(
                "no node may be hit",
                got="; ".join(f"{name}: {why}" for name, why in list(reasons.items())[:3]),
                allowed="Spot and flex-start nodes that run no other work",
                fix="name other pods",
            )
        return [f"node/{name}" for name in hosts if not reasons[name]]

    def inject(self, victims: Sequence[str]) -> str:
        names = [victim.split("/", 1)[1] for victim in victims]
        self._before = dict(self._active)
        self._charged_before = self._charges()
        place = "name" if self._fault is Fault.EVICT else "nodeName"
        part = "metadata" if self._fault is Fault.EVICT else "spec"
        self._victims = {uid for uid, pod in self._before.items() if pod[part].get(place) in names}
        self._fault_t = time.time()
        if self._fault is Fault.EVICT:
            for name in names:
                self._api.evict(self._named.namespace, name)
            return f"evicted {', '.join(names)}"
        return self._evictor.evict(names)

    def recovered(self) -> bool:
        """As many pods run as before, none of them on what was hit."""
        self._look()
        running = self._running()
        back = len(running) >= len(self._before) and not self._victims & {
            pod["metadata"]["uid"] for pod in running
        }
        if back and self._back_t is None:
            self._back_t = time.time()
        return back

    def measure(self, metric: str) -> float | None:
        if metric != RECOVERED:
            self._look()
        return METRICS[metric](self)

    def rollback(self) -> Iterable[Undo]:
        return self._evictor.rollback()

    # -- what is measured --

    def missing(self) -> float | None:
        """Pods that the Jobs want and that do not run; None where no Job owns the pods."""
        jobs = {
            pod["metadata"].get("labels", {}).get(LABEL_JOB) for pod in self._active.values()
        } - {None}
        if not jobs:
            return None
        wanted = sum(
            JobSnapshot(body=body, pods=[]).wanted
            for name in jobs
            if (body := self._job(str(name)))
        )
        return max(0, wanted - len(self._running()))

    def recovered_s(self) -> float | None:
        if self._back_t is None or self._fault_t is None:
            return None
        return self._back_t - self._fault_t

    def charged(self) -> float:
        """Failures that count against a limit: of the Jobs, or restarts of the JobSets."""
        return float((self._charges() - self._charged_before).total())

    def outside(self) -> float:
        """Pods that were not meant and went. A JobSet restarts its whole gang by design: not
        counted.
        """
        gone = [
            uid
            for uid in set(self._before) - self._victims - set(self._active)
            if not _in_gang(self._before[uid])
        ]
        return float(sum(_phase(self._seen[uid]) != "Succeeded" for uid in gone))

    def victims(self) -> list[Object]:
        """As they were last seen."""
        return [self._seen[uid] for uid in self._victims]

    # -- the cluster --

    def _running(self) -> list[Object]:
        return [pod for pod in self._active.values() if _phase(pod) == "Running"]

    def _look(self) -> None:
        path = f"/api/v1/namespaces/{self._named.namespace}/pods"
        pods = {
            pod["metadata"]["uid"]: pod
            for pod in self._api.items(path, labelSelector=self._named.selector)
        }
        self._seen |= pods
        self._active = {uid: pod for uid, pod in pods.items() if _is_active(pod)}
        shares = Counter(_share(pod) for pod in self._active.values() if _share(pod))
        self.doubles = max(self.doubles, max(shares.values(), default=1) - 1)

    def _refusals(self, hosts: Sequence[str]) -> dict[str, str]:
        """Node -> why it must not be hit; empty if it may."""
        nodes = {node["metadata"]["name"]: node for node in self._api.items(NODES)}
        others: dict[str, str] = {}
        for pod in self._api.items("/api/v1/pods"):
            if (
                _is_active(pod)
                and not _follows_the_node(pod)
                and pod["metadata"]["uid"] not in self._seen
            ):
                meta = pod["metadata"]
                others[pod["spec"].get("nodeName", "")] = (
                    f"{meta['namespace']}/{meta['name']} runs there too"
                )
        return {
            name: _refusal(nodes[name]) or others.get(name, "") or self._evictor.check(nodes[name])
            for name in hosts
        }

    def _charges(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for pod in {**self._before, **self._active}.values():
            labels = pod["metadata"].get("labels", {})
            gang = labels.get(LABEL_JOBSET)
            if gang:
                body = (
                    self._api.find(f"{JOBSETS}/namespaces/{self._named.namespace}/jobsets/{gang}")
                    or {}
                )
                found[f"jobset/{gang}"] = int(
                    body.get("status", {}).get("restartsCountTowardsMax", 0)
                )
            elif job := labels.get(LABEL_JOB):
                found[f"job/{job}"] = int((self._job(job) or {}).get("status", {}).get("failed", 0))
        return found

    def _job(self, name: str) -> Object | None:
        return self._api.find(f"{JOBS}/namespaces/{self._named.namespace}/jobs/{name}")


def _age(pod: Object) -> tuple[str, str]:
    return pod["metadata"]["creationTimestamp"], pod["metadata"]["name"]


def _phase(pod: Object) -> str:
    return pod["status"].get("phase", "")


def _is_active(pod: Object) -> bool:
    return _phase(pod) not in _ENDED and "deletionTimestamp" not in pod["metadata"]


def _share(pod: Object) -> tuple[str, str] | None:
    """(job, index); None for a pod that has no index."""
    meta = pod["metadata"]
    index = meta.get("annotations", {}).get(ANNOTATION_INDEX)
    return None if index is None else (meta.get("labels", {}).get(LABEL_JOB, ""), index)


def _in_gang(pod: Object) -> bool:
    return LABEL_JOBSET in pod["metadata"].get("labels", {})


def _follows_the_node(pod: Object) -> bool:
    owners = pod["metadata"].get("ownerReferences", ())
    return pod["metadata"]["namespace"] in SYSTEM_NAMESPACES or any(
        o["kind"] in ("DaemonSet", "Node") for o in owners
    )


def _refusal(node: Object) -> str:
    labels = node["metadata"].get("labels", {})
    if labels.get(LABEL_ROLE) in _NEVER:
        return f"a {labels[LABEL_ROLE]} node is never hit"
    if "true" not in (labels.get(LABEL_SPOT), labels.get(LABEL_FLEX_START)):
        return "it is neither Spot nor flex-start, and would not go by itself"
    return ""


METRICS: dict[str, Callable[[Cluster], float | None]] = {
    "pods_missing": Cluster.missing,
    RECOVERED: Cluster.recovered_s,
    "failures_charged": Cluster.charged,
    # The most pods that worked on one index at the same time, less one, over all looks.
    "pods_doubled": lambda target: float(target.doubles),
    "pods_outside_blast": Cluster.outside,
    "false_completions": lambda target: float(
        sum(_phase(pod) == "Succeeded" for pod in target.victims())
    ),
    # Victims whose end looks like their own fault.
    "pods_crashed": lambda target: float(
        sum(_phase(pod) == "Failed" and not disruption(pod) for pod in target.victims())
    ),
}
