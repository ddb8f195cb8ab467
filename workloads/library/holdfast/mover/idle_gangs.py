"""Gives back the nodes of gangs that have fewer nodes than they work with.

The pods of such a gang stay when one is lost, and wait. After its wait the gang ends by itself, but
the Job would start its pods again on the same nodes, which are billed and do nothing. So the mover
stops the gang through Kueue, which releases its quota, and queues it again after a pause. The pause
doubles while the gang comes back without getting its nodes. Guarantee: a gang is stopped only while
some of its pods have a node and fewer than it needs; what a person stopped stays so; a mover that
is gone leaves a gang stopped until the next one runs.
"""

# Why it is so: infra/decisions/0153.

from collections.abc import Iterable
from dataclasses import dataclass, field

from holdfast.clients.api import Api, ApiError, Object
from holdfast.controllers.cluster_objects import (
    find_end_s,
    find_held,
    is_true,
    since_s,
)
from holdfast.controllers.controller_log import get_logger
from holdfast.mover.cluster_api import write_event
from holdfast.support.values import rfc3339, unix_s
from holdfast.vocabulary.capacity import (
    ANNOTATION_GIVEN_BACK,
    ANNOTATION_QUEUED_AGAIN,
    ANNOTATION_WAIT,
    LABEL_LEAST_NODES,
)
from holdfast.vocabulary.exit_codes import EXIT_RETRY
from holdfast.vocabulary.job_identity import is_count
from holdfast.vocabulary.kubernetes import JOB_API, KUEUE_API, LABEL_JOB, api_path
from holdfast.vocabulary.roles import JOB_NAMESPACES

LOG = get_logger("move")
GIVEN_BACK = "NodesGivenBack"
QUEUED_AGAIN = "QueuedAgain"
STORE_S = 120.0
"""Longest time after its wait in which a gang writes what it holds to the bucket."""
SKEW_S = 30.0
"""The mover sees a loss a pass later than the gang, which has begun to wait by then."""
START_S = 420.0
"""Shortest time that the nodes of a start have to come, counted from the first one."""
PAUSE_S = 900.0
"""First pause: GKE removes a node that is idle for 10 minutes."""
MOST_PAUSE_S = 3_600.0
MOST_DOUBLINGS = 8
"""A power of more is no float after a thousand returns."""
RECOVERED_S = 4 * MOST_PAUSE_S
"""A gang that was in the cluster for so long starts again with the first pause."""


@dataclass(slots=True)
class IdleGangs:
    api: Api
    below_since_s: dict[str, float] = field(default_factory=dict)
    """Uid of a Job -> since when too few of its pods have a node."""
    started: set[str] = field(default_factory=set)
    """Uids of Jobs that have had enough nodes since they were admitted."""

    def step(
        self,
        now_s: float,
        namespaces: Iterable[str] = JOB_NAMESPACES,
    ) -> int:
        """Stops gangs and queues them again. Returns how many Workloads were changed."""
        changes = 0
        uids = set[str]()
        for namespace in namespaces:
            jobs = self._list_jobs(namespace)
            if not jobs:
                continue
            uids |= jobs.keys()
            path = f"{api_path(KUEUE_API)}/namespaces/{namespace}/workloads"
            workloads = find_held(self.api.items(path))
            for uid, workload in workloads.items():
                if uid in jobs:
                    changes += self._advance(
                        jobs[uid],
                        workload,
                        now_s,
                    )
        for uid in (self.below_since_s.keys() | self.started) - uids:
            self._forget(uid)
        return changes

    def _list_jobs(self, namespace: str) -> dict[str, Object]:
        path = f"{api_path(JOB_API)}/namespaces/{namespace}/jobs"
        jobs: dict[str, Object] = {}
        for job in self.api.items(path, labelSelector=LABEL_LEAST_NODES):
            meta = job["metadata"]
            if not find_end_s(job) and not meta.get("deletionTimestamp"):
                jobs[meta["uid"]] = job
        return jobs

    def _advance(
        self,
        job: Object,
        workload: Object,
        now_s: float,
    ) -> bool:
        """Takes the next step with a gang. Returns whether its Workload was changed."""
        try:
            if not workload["spec"].get("active", True):
                self._forget(job["metadata"]["uid"])
                return self._queue_again(
                    job,
                    workload,
                    now_s,
                )
            if self._is_idle(
                job,
                workload,
                now_s,
            ):
                self._give_back(
                    job,
                    workload,
                    now_s,
                )
                return True
        except ApiError as error:
            LOG.warning(
                "%s keeps its state in this pass: %s",
                job["metadata"]["name"],
                error,
            )
        return False

    def _is_idle(
        self,
        job: Object,
        workload: Object,
        now_s: float,
    ) -> bool:
        """Returns whether the gang has waited long enough below its least."""
        uid = job["metadata"]["uid"]
        if not is_true(workload, "Admitted"):
            self._forget(uid)
            return False
        least_nodes = _parse_count(job["metadata"]["labels"][LABEL_LEAST_NODES])
        status = job.get("status") or {}
        ready = int(status.get("ready") or 0)
        pods: list[Object] = []
        if ready < least_nodes:
            pods = self._list_pods(job)
        billed = [pod for pod in pods if _is_billed(pod)]
        if max(ready, len(billed)) >= least_nodes:
            self.below_since_s.pop(uid, None)
            self.started.add(uid)
            return False
        if uid not in self.below_since_s:
            # Pods without a node are a request for capacity that costs nothing.
            if billed:
                self.below_since_s[uid] = now_s
            return False
        since = self.below_since_s[uid]
        ends_s: list[float] = []
        for pod in pods:
            end_s = _find_retry_s(pod)
            if end_s >= since - SKEW_S:
                ends_s.append(end_s)
        if not billed and not ends_s:
            del self.below_since_s[uid]
            return False
        wait_s = _find_wait_s(job)
        if uid not in self.started:
            # It holds nothing in memory that it would have to write.
            return bool(billed) and now_s >= since + max(wait_s, START_S)
        has_given_up = max(ends_s, default=0.0) >= since + wait_s - SKEW_S
        is_overdue = bool(billed) and now_s >= since + wait_s + STORE_S
        return has_given_up or is_overdue

    def _forget(self, uid: str) -> None:
        self.below_since_s.pop(uid, None)
        self.started.discard(uid)

    def _list_pods(self, job: Object) -> list[Object]:
        meta = job["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods"
        return list(self.api.items(path, labelSelector=f"{LABEL_JOB}={meta['name']}"))

    def _give_back(
        self,
        job: Object,
        workload: Object,
        now_s: float,
    ) -> None:
        """Makes Kueue end the pods and release the quota."""
        annotations = workload["metadata"].get("annotations") or {}
        count = _parse_count(annotations.get(ANNOTATION_GIVEN_BACK, "")) + 1
        if now_s - since_s(workload, "Admitted") > RECOVERED_S:
            count = 1
        doublings = min(count - 1, MOST_DOUBLINGS)
        pause_s = min(PAUSE_S * 2**doublings, MOST_PAUSE_S)
        return_time = rfc3339(now_s + pause_s)
        change = {
            "metadata": {
                "annotations": {
                    ANNOTATION_GIVEN_BACK: str(count),
                    ANNOTATION_QUEUED_AGAIN: return_time,
                }
            },
            "spec": {"active": False},
        }
        self.api.merge(_get_path(workload), change)
        least_nodes = job["metadata"]["labels"][LABEL_LEAST_NODES]
        message = (
            f"fewer than {least_nodes} of its nodes were there for too long: the nodes are given"
            f" back, and the gang queues again at {return_time}"
        )
        self._announce(
            job,
            GIVEN_BACK,
            message,
            now_s,
        )

    def _queue_again(
        self,
        job: Object,
        workload: Object,
        now_s: float,
    ) -> bool:
        annotations = workload["metadata"].get("annotations") or {}
        again_s = unix_s(annotations.get(ANNOTATION_QUEUED_AGAIN))
        # Without the mark a person stopped it. Kueue suspends the Job a moment after it was asked.
        is_stopped = job["spec"].get("suspend") and not is_true(workload, "QuotaReserved")
        if not again_s or now_s < again_s or not is_stopped:
            return False
        change = {
            "metadata": {"annotations": {ANNOTATION_QUEUED_AGAIN: None}},
            "spec": {"active": True},
        }
        self.api.merge(_get_path(workload), change)
        self._announce(
            job,
            QUEUED_AGAIN,
            "the gang waits for its nodes again",
            now_s,
        )
        return True

    def _announce(
        self,
        job: Object,
        reason: str,
        message: str,
        now_s: float,
    ) -> None:
        LOG.info(
            "%s: %s",
            job["metadata"]["name"],
            message,
        )
        involved = {
            "apiVersion": JOB_API,
            "kind": "Job",
        } | job["metadata"]
        write_event(
            self.api,
            involved,
            reason,
            message,
            now_s,
        )


def _is_billed(pod: Object) -> bool:
    """Returns whether the pod keeps a node and will go on."""
    is_over = pod["status"].get("phase") in ("Failed", "Succeeded")
    has_node = bool(pod["spec"].get("nodeName"))
    return has_node and not is_over and "deletionTimestamp" not in pod["metadata"]


def _find_retry_s(pod: Object) -> float:
    """Returns when a container of the pod ended to be started again; 0 if none did."""
    for container in pod["status"].get("containerStatuses") or ():
        terminated = (container.get("state") or {}).get("terminated") or {}
        if terminated.get("exitCode") == EXIT_RETRY:
            return unix_s(terminated.get("finishedAt"))
    return 0.0


def _find_wait_s(job: Object) -> float:
    annotations = job["metadata"].get("annotations") or {}
    return float(_parse_count(annotations.get(ANNOTATION_WAIT, "")))


def _parse_count(text: str) -> int:
    return int(text) if is_count(text) else 0


def _get_path(workload: Object) -> str:
    meta = workload["metadata"]
    return f"{api_path(KUEUE_API)}/namespaces/{meta['namespace']}/workloads/{meta['name']}"
