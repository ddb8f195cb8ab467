"""Jobs of a simulated month: their Kubernetes objects, and the event lines of their processes."""

import random
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from holdfast.controllers.cluster import Cluster
from holdfast.support.values import rfc3339
from holdfast.vocabulary.exit_codes import EXIT_COMPLETE, EXIT_PREEMPTED, EXIT_RETRY
from holdfast.vocabulary.job_identity import LABEL_HOLDFAST_JOB, LABEL_RUN_PER_INDEX
from holdfast.vocabulary.kubernetes import ANNOTATION_INDEX, LABEL_MACHINE_TYPE
from holdfast.vocabulary.lifecycle import ANNOTATION_TERMINATION
from holdfast.vocabulary.pools import (
    LABEL_ACCELERATOR,
    LABEL_FLEX_START,
    LABEL_NODEPOOL,
    LABEL_SPOT,
    LABEL_ZONE,
)
from workloads.library.tests.exporter.fake_source import FakeSource
from workloads.library.tests.sample import EPOCH, line

Object = dict[str, Any]
STEPS_A_MINUTE = 10
COMMIT_EVERY_MIN = 10
FAILED_SAVES = 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """The queue and the machines of a job."""

    queue: str
    accelerator: str
    flex: bool = False
    by_index: bool = False
    pods: int = 2

    @property
    def pool(self) -> str:
        return f"{self.queue}-{self.accelerator}"

    @property
    def selector(self) -> dict[str, str]:
        return {
            LABEL_ACCELERATOR: self.accelerator,
            LABEL_FLEX_START if self.flex else LABEL_SPOT: "true",
        }


@dataclass(slots=True)
class Job:
    """A job: `queued_min` in Kueue, `unplaced_min` without a node after each start, then work."""

    name: str
    kind: Kind
    born_min: int
    queued_min: int
    work_min: int
    rng: random.Random
    unplaced_min: int = 3
    startup_min: int = 2
    saves: bool = True
    ends_after_min: int = 0
    """Minutes after which its flex-start nodes end; 0 for other nodes."""
    attempt: int = 0
    step: int = 0
    saved: int = 0
    done_min: int = 0
    save_at_min: int = COMMIT_EVERY_MIN
    commits: int = 0
    failed_in_a_row: int = 0
    placed_min: int = -1
    is_gone: bool = False
    pending_since: int = -1

    def uid(self, index: int) -> str:
        return f"{self.name}-{self.attempt}-{index}"

    def node(self, index: int) -> str:
        return f"node-{self.uid(index)}"


@dataclass(slots=True)
class Platform:
    """Runs jobs, and shows their effects to a cluster as its watch would."""

    cluster: Cluster
    written: FakeSource
    minute: int = 0
    interruptions: dict[str, int] = field(default_factory=dict)
    """Spot nodes that GKE counts as interrupted in this minute, by pool."""

    def time(self, minute: int) -> str:
        return rfc3339(EPOCH + 60 * minute)

    def step(self, job: Job) -> None:
        """Advances a job by one minute."""
        age = self.minute - job.born_min
        if job.is_gone or age < 0:
            return
        if age == 0 or age == job.queued_min:
            self.cluster.queues.workload(
                "MODIFIED", self._kueue(job, admitted=age == job.queued_min)
            )
        if age < job.queued_min:
            return
        if job.pending_since < 0:
            job.pending_since = self.minute
            self._pods(job, "MODIFIED", "Pending")
        if job.placed_min < 0 and self.minute - job.pending_since >= job.unplaced_min:
            self._add_nodes(job)
        if job.placed_min >= 0:
            self._compute(job)

    def _add_nodes(self, job: Job) -> None:
        job.placed_min = self.minute
        for index in range(job.kind.pods):
            self.cluster.node("ADDED", self._node(job, index))
        self._pods(job, "MODIFIED", "Running")

    def _compute(self, job: Job) -> None:
        since = self.minute - job.placed_min
        if since < job.startup_min:
            return
        if since == job.startup_min:
            job.step = job.saved
            self._write_ranks(
                job,
                "start",
                rank=0,
                world_size=job.kind.pods,
                attempt=job.attempt,
                steps=job.work_min * STEPS_A_MINUTE,
            )
            self._write_lead(
                job,
                "restore",
                step=job.saved,
                seconds=2.0,
                skipped=[],
            )
            return
        job.step += STEPS_A_MINUTE
        job.done_min += 1
        if job.done_min % 5 == 0:
            self._write_lead(
                job,
                "window",
                first_step=job.step - 5 * STEPS_A_MINUTE + 1,
                last_step=job.step,
                seconds=300.0,
            )
        if job.saves and job.done_min >= job.save_at_min:
            # One save in a hundred fails, and the next one succeeds.
            job.save_at_min += COMMIT_EVERY_MIN
            if job.rng.random() > FAILED_SAVES:
                self.save(job)
            else:
                job.failed_in_a_row += 1
                self._write_lead(job, "save_failed", step=job.step, reason="503")
        if job.step >= job.work_min * STEPS_A_MINUTE:
            self.end(job, EXIT_COMPLETE)

    def save(self, job: Job) -> None:
        self._write_lead(
            job,
            "save",
            step=job.step,
            blocking_seconds=0.1,
            bytes=1,
        )
        self._write_lead(
            job,
            "commit",
            step=job.step,
            seconds=5.0,
            bytes=1,
        )
        job.saved = job.step
        job.commits = job.commits + 1
        job.failed_in_a_row = 0

    def evict(self, job: Job, *, notice: bool) -> None:
        """Takes all nodes with a notice, or one node without; the job waits for other nodes."""
        if job.placed_min < 0:
            return
        if notice:
            self._write_lead(job, "stop", step=job.step, reason="SIGTERM")
            self.save(job)
            self._write_ranks(job, "exit", code=EXIT_PREEMPTED, step=job.step)
        else:
            self._write_ranks(
                job,
                "exit",
                first=1,
                code=EXIT_RETRY,
                step=job.step,
            )
        self._remove_pods(job, "MODIFIED", "Failed", taken=range(job.kind.pods if notice else 1))
        self._restart(job)

    def crash(self, job: Job, code: int) -> None:
        self._write_ranks(job, "exit", code=code, step=job.step)
        self._remove_pods(job, "DELETED", "Failed")
        self._restart(job)

    def end(self, job: Job, code: int) -> None:
        """Ends a job, complete or cancelled with the notice's code, and removes its objects."""
        if job.placed_min >= 0:
            self._write_ranks(job, "exit", code=code, step=job.step)
        self._remove_pods(job, "DELETED", "Succeeded")
        self.cluster.queues.workload("DELETED", self._kueue(job, admitted=True))
        job.is_gone = True

    def _remove_pods(
        self,
        job: Job,
        change: str,
        phase: str,
        taken: Collection[int] = (),
    ) -> None:
        """Ends its pods and removes their nodes; GKE takes the nodes in `taken`."""
        self._pods(job, change, phase, disrupted=taken)
        if job.placed_min < 0:
            return
        for index in range(job.kind.pods):
            if index in taken:
                self.cluster.node("MODIFIED", self._node(job, index, taken=True))
                if not job.kind.flex:
                    pool = job.kind.pool
                    self.interruptions[pool] = self.interruptions.get(pool, 0) + 1
            self.cluster.node("DELETED", self._node(job, index, taken=index in taken))

    def _restart(self, job: Job) -> None:
        job.attempt += 1
        job.placed_min = -1
        job.pending_since = -1
        job.done_min = 0
        job.save_at_min = COMMIT_EVERY_MIN + job.rng.choice((0, 1))
        job.failed_in_a_row = 0

    def _write_lead(self, job: Job, event: str, **fields: object) -> None:
        for index in range(job.kind.pods if job.kind.by_index else 1):
            self._write_line(job, index, event, fields)

    def _write_ranks(self, job: Job, event: str, first: int = 0, **fields: object) -> None:
        for index in range(first, job.kind.pods):
            ranked = {"rank": index} if "rank" in fields and not job.kind.by_index else {}
            self._write_line(job, index, event, fields | ranked)

    def _write_line(
        self,
        job: Job,
        index: int,
        event: str,
        fields: dict[str, Any],
    ) -> None:
        process = f"{job.name}-{index}-{job.attempt}-ab"
        if job.kind.by_index:
            fields = {"index": index} | fields
        time_s = EPOCH + 60 * self.minute + 0.001 * index
        entry = line(time_s, event, job.name, process=process, **fields)
        self.written.add(entry, job=job.name)

    def _kueue(self, job: Job, *, admitted: bool) -> Object:
        conditions = []
        for condition in ("QuotaReserved", "Admitted"):
            conditions.append(
                {
                    "type": condition,
                    "status": "True",
                    "reason": "",
                    "lastTransitionTime": self.time(self.minute),
                }
            )
        pods = {"template": {"spec": {"nodeSelector": job.kind.selector}}}
        meta = {
            "uid": job.name,
            "name": job.name,
            "creationTimestamp": self.time(job.born_min),
        }
        spec = {
            "queueName": job.kind.queue,
            "podSets": [pods],
            "active": True,
        }
        return {
            "metadata": meta,
            "spec": spec,
            "status": {"conditions": conditions if admitted else []},
        }

    def _pods(
        self,
        job: Job,
        change: str,
        phase: str,
        disrupted: Collection[int] = (),
    ) -> None:
        for index in range(job.kind.pods):
            self.cluster.pod(change, self._pod(job, index, phase, disrupted=index in disrupted))

    def _pod(self, job: Job, index: int, phase: str, *, disrupted: bool) -> Object:
        labels = {LABEL_HOLDFAST_JOB: job.name}
        if job.kind.by_index:
            labels |= {
                LABEL_RUN_PER_INDEX: "true",
                ANNOTATION_INDEX: str(index),
            }
        now = self.time(self.minute)
        placed = "False" if phase == "Pending" else "True"
        conditions = [
            {
                "type": "PodScheduled",
                "status": placed,
                "lastTransitionTime": now,
            }
        ]
        if disrupted:
            conditions.append(
                {
                    "type": "DisruptionTarget",
                    "status": "True",
                    "reason": "TerminationByKubelet",
                    "lastTransitionTime": now,
                }
            )
        state = {"Running": "running", "Failed": "terminated"}.get(phase)
        running = [{"state": {state: {"startedAt": now}}}] if state else []
        name = job.uid(index)
        meta = {
            "uid": name,
            "name": name,
            "namespace": "training",
            "labels": labels,
            "creationTimestamp": self.time(max(0, job.pending_since)),
        }
        spec: Object = {"nodeSelector": job.kind.selector}
        if phase != "Pending":
            spec["nodeName"] = job.node(index)
        return {
            "metadata": meta,
            "spec": spec,
            "status": {
                "phase": phase,
                "conditions": conditions,
                "containerStatuses": running,
            },
        }

    def _node(self, job: Job, index: int, *, taken: bool = False) -> Object:
        labels = job.kind.selector | {
            LABEL_NODEPOOL: job.kind.pool,
            LABEL_ZONE: "us-central1-a",
            LABEL_MACHINE_TYPE: "a2-highgpu-1g",
        }
        annotations = {}
        if job.ends_after_min:
            end_min = job.placed_min + job.ends_after_min
            annotations[ANNOTATION_TERMINATION] = self.time(end_min)
        meta = {
            "name": job.node(index),
            "labels": labels,
            "annotations": annotations,
            "creationTimestamp": self.time(max(0, job.placed_min)),
        }
        ready = {
            "type": "Ready",
            "status": "False" if taken else "True",
            "message": "node is shutting down" if taken else "",
        }
        return {
            "metadata": meta,
            "spec": {},
            "status": {"conditions": [ready]},
        }
