"""`explain` over objects as Kubernetes, the autoscaler and Kueue write them: a row each."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from holdfast.clients.api import Object
from holdfast.jobs.diagnose.cluster_snapshot import ClusterSnapshot
from holdfast.jobs.diagnose.diagnosis import describe_state, find_cause
from holdfast.jobs.diagnose.failures import losses
from holdfast.jobs.diagnose.job_snapshot import JobSnapshot
from holdfast.support.values import rfc3339
from holdfast.vocabulary.capacity import (
    ANNOTATION_QUEUED_AGAIN,
    ANNOTATION_YIELDED,
    LABEL_LEAST_NODES,
)
from workloads.library.tests.test_messages import OF_A_CLONE

DAY_S = 86_400


def ago(seconds: float) -> str:
    return rfc3339(time.time() - seconds)


def make_pod(
    *, deleted_s: float | None = None, started_s: float = 3600, **changes: Object
) -> Object:
    """Makes a pod of a Job that has run for `started_s`; its window ended `deleted_s` ago."""
    container = {
        "name": "main",
        "state": {"running": {"startedAt": ago(started_s)}},
    }
    meta = {
        "name": "my-run-0-x2x4x",
        "namespace": "training",
        "uid": "pod-0",
        "creationTimestamp": ago(started_s + 30),
        "finalizers": ["batch.kubernetes.io/job-tracking"],
        "annotations": {"batch.kubernetes.io/job-completion-index": "0"},
    }
    if deleted_s is not None:
        meta["deletionTimestamp"] = ago(deleted_s)
        meta["deletionGracePeriodSeconds"] = 15
    body = {
        "metadata": meta,
        "spec": {
            "nodeName": "spot-a-1",
            "containers": [{"name": "main"}],
        },
        "status": {
            "phase": "Running",
            "startTime": ago(started_s + 10),
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [container],
        },
    }
    for name, change in changes.items():
        body[name] = body[name] | change
    return body


def make_node(ready: str = "True", since_s: float = DAY_S, **spec: object) -> Object:
    reason = "NodeStatusUnknown" if ready == "Unknown" else "KubeletReady"
    condition = {
        "type": "Ready",
        "status": ready,
        "reason": reason,
        "lastTransitionTime": ago(since_s),
    }
    return {
        "metadata": {
            "name": "spot-a-1",
            "labels": {"pool": "spot"},
        },
        "spec": spec,
        "status": {
            "conditions": [condition],
            "allocatable": {"nvidia.com/gpu": "1"},
        },
    }


def make_crashed(ended_s: float) -> Object:
    """A failed pod that its Job has replaced."""
    end = {
        "exitCode": 1,
        "reason": "Error",
        "finishedAt": ago(ended_s),
    }
    pod = make_pod(
        status={
            "phase": "Failed",
            "containerStatuses": [
                {
                    "name": "main",
                    "state": {"terminated": end},
                }
            ],
        }
    )
    pod["metadata"] |= {
        "name": "my-run-0-old",
        "uid": "old",
        "creationTimestamp": ago(ended_s + 60),
    }
    return pod


def make_pending(message: str, **spec: Object) -> Object:
    """A pod that the scheduler has judged."""
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": message,
    }
    pod = make_pod(spec={"nodeName": None} | spec)
    pod["status"] = {
        "phase": "Pending",
        "conditions": [condition],
    }
    return pod


def make_workload(active: bool = True, *conditions: Object, **status: Object) -> Object:
    return {
        "metadata": {
            "name": "job-my-run-1f2e3",
            "namespace": "training",
            "uid": "workload",
            "creationTimestamp": ago(7200),
        },
        "spec": {
            "queueName": "spot",
            "active": active,
            "priority": 0,
        },
        "status": {"conditions": [*conditions]} | status,
    }


def make_returning() -> Object:
    """Returns the Workload of a gang that gave its nodes back."""
    workload = make_workload(False, STOPPED)
    workload["metadata"]["annotations"] = {ANNOTATION_QUEUED_AGAIN: "2027-01-31T12:00:00Z"}
    return workload


def make_condition(kind: str, status: str, reason: str, message: str) -> Object:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": ago(300),
    }


PREEMPTED = make_condition(
    "Evicted",
    "True",
    "Preempted",
    "Preempted to accommodate a workload (UID: 6f1c, JobUID: 0a36) due to prioritization in the"
    " ClusterQueue; preemptor path: /spot; preemptee path: /spot",
)
NO_QUOTA = make_condition(
    "QuotaReserved",
    "False",
    "Pending",
    "couldn't assign flavors to pod set main: insufficient unused quota for nvidia.com/gpu in"
    " flavor spot, 1 more needed",
)
STOPPED = make_condition("Evicted", "True", "Deactivated", "The workload is deactivated")
GAVE_UP = make_condition(
    "Evicted",
    "True",
    "DeactivatedDueToRequeuingLimitExceeded",
    "The workload is deactivated due to exceeding the maximum number of re-queuing retries",
)
EVICTIONS = {
    "evictions": [
        {
            "reason": "Preempted",
            "underlyingCause": "",
            "count": 1,
        }
    ]
}
STOPS = {
    "evictions": [
        {
            "reason": "Deactivated",
            "underlyingCause": "",
            "count": 2,
        }
    ]
}
QUEUES = {
    "local_queues": [
        {
            "metadata": {"name": "spot"},
            "spec": {"clusterQueue": "spot"},
        }
    ],
    "cluster_queues": [
        {
            "metadata": {"name": "spot"},
            "spec": {},
        }
    ],
}
LARGE_QUEUES = QUEUES | {
    "cluster_queues": [
        {
            "metadata": {"name": "spot"},
            "spec": {
                "resourceGroups": [
                    {"flavors": [{"resources": [{"name": "nvidia.com/gpu", "nominalQuota": "2k"}]}]}
                ]
            },
            "status": {
                "flavorsReservation": [{"resources": [{"name": "nvidia.com/gpu", "total": "1k"}]}]
            },
        }
    ]
}
DOTTED = (
    "0/5 nodes are available: 1 node(s) had untolerated taint {cloud.google.com/gke-spot: true}, 4"
    " node(s) didn't match Pod's node affinity/selector. preemption: 0/5 nodes are available: 5"
    " Preemption is not helpful for scheduling."
)
FULL = (
    "0/5 nodes are available: 1 Insufficient nvidia.com/gpu, 4 node(s) had untolerated taint"
    " {cloud.google.com/gke-spot: true}. no new claims to deallocate, preemption: 0/5 nodes are"
    " available: 1 No preemption victims found for incoming pod."
)


def make_event(reason: str, message: str) -> Object:
    """An event of GKE's autoscaler about the pod."""
    return {
        "metadata": {
            "namespace": "training",
            "creationTimestamp": ago(60),
        },
        "involvedObject": {
            "kind": "Pod",
            "name": "my-run-0-x2x4x",
            "uid": "pod-0",
        },
        "reason": reason,
        "message": message,
        "lastTimestamp": ago(60),
    }


def make_jobset(pods: list[Object]) -> JobSnapshot:
    """A JobSet that restarted twice by its own failures, and whose old pods are deleted."""
    template = {"spec": {"template": {"spec": {"containers": []}}}}
    body = {
        "kind": "JobSet",
        "metadata": {
            "name": "my-run",
            "namespace": "training",
            "uid": "job",
        },
        "spec": {
            "replicatedJobs": [
                {
                    "name": "workers",
                    "replicas": 1,
                    "template": template,
                }
            ],
            "failurePolicy": {"maxRestarts": 3},
        },
        "status": {"restarts": 2, "restartsCountTowardsMax": 2},
    }
    return JobSnapshot(body=body, pods=pods)


def make_yielding() -> JobSnapshot:
    """Returns a gang of 1 to 2 nodes of which an urgent job has one."""
    job = make_job([make_pod(started_s=DAY_S)])
    job.body["metadata"]["labels"] = {LABEL_LEAST_NODES: "1"}
    job.body["metadata"]["annotations"] = {ANNOTATION_YIELDED: "urgent"}
    job.body["spec"]["completions"] = 2
    return job


def make_job(pods: list[Object], workload: Object | None = None) -> JobSnapshot:
    body = {
        "kind": "Job",
        "metadata": {
            "name": "my-run",
            "namespace": "training",
            "uid": "job",
        },
        "spec": {
            "parallelism": 1,
            "completions": 1,
            "backoffLimitPerIndex": 6,
            "suspend": workload is not None,
            "template": {"spec": {"containers": []}},
        },
    }
    return JobSnapshot(body=body, pods=pods, workload=workload)


@dataclass(frozen=True, kw_only=True)
class Row:
    job: Callable[[], JobSnapshot]
    nodes: list[Object] = field(default_factory=lambda: [make_node()])
    events: list[Object] = field(default_factory=list)
    queues: dict[str, list[Object]] = field(default_factory=dict)
    reason: str
    blocker: str
    action: str
    state: str = ".*"


SILENT = [make_node("Unknown", 900)]
ROWS = {
    "a running pod on a silent node": Row(
        job=lambda: make_job([make_pod()]),
        nodes=SILENT,
        reason="node",
        blocker="1 of 1 pods are on a node that does not answer: spot-a-1 since 2.*Z",
        action="wait: .*ask the platform team to delete the node",
    ),
    "a pod held in deletion on a silent node": Row(
        job=lambda: make_job([make_pod(deleted_s=700)]),
        nodes=SILENT,
        reason="node",
        blocker=(
            ".*does not answer: spot-a-1 .*; 1 of them are being deleted, and are not replaced.*"
        ),
        action="wait: .*",
        state="Waiting: 0 of 1 pods run; .*",
    ),
    "a pod that saves in its window": Row(
        job=lambda: make_job([make_pod(deleted_s=-10)]),
        reason="back-off",
        blocker="1 of 1 pods are asked to exit, and have until 2.*Z to save",
        action="wait: a new pod starts when they are gone",
        state="Waiting: 0 of 1 pods run; .*",
    ),
    "a pod that a finalizer keeps": Row(
        job=lambda: make_job(
            [
                make_pod(
                    deleted_s=900,
                    metadata={
                        "finalizers": ["acme.dev/backup"],
                        "deletionTimestamp": ago(900),
                    },
                )
            ]
        ),
        reason="node",
        blocker="1 of 1 pods are deleted since 2.*Z and kept by acme.dev/backup",
        action="ask the owner of this finalizer.*",
    ),
    "a kubelet that does not report the end": Row(
        job=lambda: make_job([make_pod(deleted_s=900)]),
        reason="node",
        blocker="1 of 1 pods should have ended by .*",
        action=".*ask the platform team.*",
    ),
    "a crash of yesterday": Row(
        job=lambda: make_job([make_crashed(DAY_S), make_pod(started_s=DAY_S - 60)]),
        reason="none",
        blocker="nothing: all its pods run; it has recovered from exit code 1 in 1 pods",
        action="look at its speed: .*",
        state="Running: 1 of 1 pods run; evicted 0, crashed 1",
    ),
    "a gang that yielded a node": Row(
        job=make_yielding,
        reason="none",
        blocker="nothing: all its pods run, on 1 of 2 nodes: urgent has a higher priority and .*",
        action="look at its speed: .*",
        state="Running: 1 of 1 pods run; evicted 0, crashed 0",
    ),
    "crashes of yesterday that a JobSet counts": Row(
        job=lambda: make_jobset([make_pod(started_s=DAY_S)]),
        reason="none",
        blocker="nothing: all its pods run",
        action="look at its speed: .*",
        state="Running: 1 of 1 pods run; evicted 0, crashed 2",
    ),
    "a crash of a minute ago": Row(
        job=lambda: make_job([make_crashed(60), make_pod(started_s=30)]),
        reason="crash",
        blocker="exit code 1 in 1 pods",
        action="read the log; .*",
    ),
    "a gang that restarted a minute ago": Row(
        job=lambda: make_jobset([make_pod(started_s=60)]),
        reason="crash",
        blocker="2 of 3 granted restarts are used up by its own failures; .*",
        action="read its log where logs are kept: .*",
    ),
    "an affinity behind a taint whose key has a dot": Row(
        job=lambda: make_job([make_pending(DOTTED)]),
        reason="selector",
        blocker="1 of 1 pods have no node: 0/5 nodes are available: .*affinity/selector",
        action="compare the selector with `kubectl get nodes --show-labels`; .*",
    ),
    "full nodes behind a taint whose key has a dot": Row(
        job=lambda: make_job([make_pending(FULL)]),
        reason="capacity",
        blocker=".*1 Insufficient nvidia.com/gpu.*",
        action="wait for a node or for another job to end.*",
    ),
    "a taint that the pod does not tolerate": Row(
        job=lambda: make_job([make_pending(FULL, nodeSelector={"pool": "spot"})]),
        nodes=[
            make_node(
                taints=[
                    {
                        "key": "team",
                        "value": "other",
                        "effect": "NoSchedule",
                    }
                ]
            )
        ],
        reason="taint",
        blocker=".*1 nodes have the taint team=other:NoSchedule",
        action="tolerate the taint, or select another pool.*",
    ),
    "a label that no node has": Row(
        job=lambda: make_job([make_pending(DOTTED, nodeSelector={"pool": "other"})]),
        reason="selector",
        blocker=".*no node matches pool=other",
        action="compare the selector with `kubectl get nodes.*",
    ),
    "a pool at its maximum": Row(
        job=lambda: make_job([make_pending(FULL)]),
        events=[
            make_event(
                "NotTriggerScaleUp", "pod didn't trigger scale-up: 1 max node group size reached"
            )
        ],
        reason="pool-limit",
        blocker=".*max node group size reached",
        action=".*ask the platform team to raise the pool's maximum",
    ),
    "a zone without such machines": Row(
        job=lambda: make_job([make_pending(FULL)]),
        events=[
            make_event(
                "FailedScaleUp",
                "Node scale up in zones us-central1-a associated with"
                " this pod failed: GCE out of resources. Pod is at risk of not being scheduled.",
            )
        ],
        reason="stock-out",
        blocker=".*GCE out of resources",
        action=".*`holdfast place`",
    ),
    "a job that Kueue preempted": Row(
        job=lambda: make_job(
            [], make_workload(True, NO_QUOTA, PREEMPTED, schedulingStats=EVICTIONS)
        ),
        queues=QUEUES,
        reason="quota",
        blocker=r"Kueue stopped it 2\S*Z \(Preempted\): Preempted to accommodate .*; quota: .*",
        action="wait for its turn, .*; it resumes from its newest checkpoint",
        state="Suspended: 0 of 1 pods run; evicted 1, crashed 0",
    ),
    "a job in its queue for the first time": Row(
        job=lambda: make_job([], make_workload(True, NO_QUOTA)),
        queues=QUEUES,
        reason="quota",
        blocker="quota: .*insufficient unused quota for nvidia.com/gpu.*",
        action="wait for its turn, .*ask the platform team for a larger quota",
        state="Suspended: 0 of 1 pods run; evicted 0, crashed 0",
    ),
    "a queue of thousands of GPUs, which Kubernetes writes as 2k": Row(
        job=lambda: make_job([], make_workload(True)),
        queues=LARGE_QUEUES,
        reason="quota",
        blocker="quota: asks for 0 nvidia.com/gpu, queue spot lends 2000, 1000 are in use",
        action="wait for its turn, .*",
    ),
    "a job that a person stopped": Row(
        job=lambda: make_job([], make_workload(False, STOPPED, schedulingStats=STOPS)),
        queues=QUEUES,
        reason="suspended",
        blocker="it was stopped and keeps no place in its queue: The workload is deactivated",
        action="holdfast resume my-run",
        state="Suspended: 0 of 1 pods run; evicted 0, crashed 0",
    ),
    "a gang that gave its nodes back": Row(
        job=lambda: make_job([], make_returning()),
        queues=QUEUES,
        reason="back-off",
        blocker="it had fewer than 1 nodes for too long.*again at 2027-01-31T12:00:00Z; .*nothing",
        action="wait, or queue it now: holdfast resume my-run",
    ),
    "a job that Kueue gave up": Row(
        job=lambda: make_job([], make_workload(False, GAVE_UP)),
        queues=QUEUES,
        reason="suspended",
        blocker=".*exceeding the maximum number of re-queuing retries",
        action="holdfast resume my-run",
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_each_situation_has_its_cause_and_advice(name: str) -> None:
    row = ROWS[name]
    job = row.job()
    cluster = ClusterSnapshot(nodes=row.nodes, events=row.events, **row.queues)
    cause = find_cause(job, cluster)
    assert cause.reason == row.reason, cause
    for pattern, text in ((row.blocker, cause.blocker), (row.action, cause.action)):
        assert re.fullmatch(pattern, text), text
    state = describe_state(job, losses(job, cluster.events))
    assert re.fullmatch(row.state, state), state
    assert not OF_A_CLONE.search(f"{cause.blocker} {cause.action} {cause.evidence}")
