"""Fakes a cluster of one job as the mover reads it: Kubernetes and Kueue objects, event lines."""

import json
from dataclasses import dataclass, field

from holdfast.ledger.events import Event, parse
from holdfast.mover.cluster_api import ClusterApi
from holdfast.mover.movable_jobs import Movable, Object
from holdfast.mover.mover import Observation, Pods
from holdfast.mover.patches import Patch
from holdfast.place.plan import Plan
from holdfast.support.values import rfc3339
from holdfast.vocabulary.capacity import ANNOTATION_PLAN, ANNOTATION_TEMPLATES
from holdfast.vocabulary.kubernetes import JOBSET_API, KUEUE_API, LABEL_CLUSTER_QUEUE, LABEL_QUEUE
from holdfast.vocabulary.pools import LABEL_POOL_CLASS

CREATED_S = 1_800_000_000.0
STEPS_PER_H = 1_000.0
NAME = "train-0a1b2c3d"
GPU = "nvidia-h100-80gb"
MACHINE = "a3-highgpu-8g"
SELECTOR = {"cloud.google.com/gke-accelerator": GPU}
CLEAN: Object = {
    "metadata": {},
    "spec": {"nodeSelector": SELECTOR, "tolerations": []},
}
# As Kueue 0.19 left it: "Missing Workload; unable to restore pod templates".
MARKED: Object = {
    "metadata": {"labels": {LABEL_CLUSTER_QUEUE: "spot"}},
    "spec": {"nodeSelector": SELECTOR | {LABEL_POOL_CLASS: "spot-h100"}, "tolerations": []},
}


@dataclass
class FakeCluster(ClusterApi):
    """Fakes the API that the mover gets, and the job behind it."""

    plan: Plan
    queue: str = "spot"
    workload_queue: str = "spot"
    admitted: bool = True
    active: bool = True
    placed: bool = False
    spot_there: bool = False
    requests: list[str] = field(default_factory=list)
    announced: list[str] = field(default_factory=list)
    annotation: str = ""
    saved_templates: str = ""
    job_template: Object = field(default_factory=lambda: CLEAN)
    workload_template: Object = field(default_factory=lambda: CLEAN)
    patches: list[Patch] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    step: float = 0.0
    """The step that the trainer wrote last."""

    def read(self) -> tuple[list[Object], list[Object]]:
        meta = {
            "name": NAME,
            "namespace": "training",
            "uid": "u",
            "resourceVersion": str(len(self.requests)),
        }
        meta |= {
            "creationTimestamp": rfc3339(CREATED_S),
            "labels": {LABEL_QUEUE: self.queue},
        }
        annotations = {ANNOTATION_PLAN: self.annotation or self.plan.text()}
        if self.saved_templates:
            annotations[ANNOTATION_TEMPLATES] = self.saved_templates
        meta |= {"annotations": annotations}
        replicated = [
            {
                "name": "workers",
                "template": {"spec": {"template": self.job_template}},
            }
        ]
        spec = {"suspend": not self.admitted, "replicatedJobs": replicated}
        job = {
            "apiVersion": JOBSET_API,
            "metadata": meta,
            "spec": spec,
        }
        owner = {"uid": "u", "controller": True}
        workload = {
            "apiVersion": KUEUE_API,
            "metadata": {
                "name": "w",
                "namespace": "training",
                "ownerReferences": [owner],
            },
            "spec": {
                "active": self.active,
                "queueName": self.workload_queue,
                "podSets": [{"template": self.workload_template}],
            },
            "status": {
                "conditions": [{"type": "Admitted", "status": "True"}] if self.admitted else []
            },
        }
        return [job], [workload]

    def patch(self, path: str, ops: Patch) -> None:
        self.requests.append(f"patch {path}")
        self.patches.append(ops)
        for op in reversed(ops):
            if "queue-name" in op["path"]:
                self.queue = op["value"]

    def delete(self, path: str) -> None:
        """Kueue stops the job and makes another Workload in the queue of the label."""
        self.requests.append(f"delete {path}")
        self.workload_queue = self.queue
        self.placed = False

    def announce(self, job: Movable, reason: str, message: str, now_s: float) -> None:
        self.announced.append(f"{reason}: {message}")

    def observe(self) -> Observation:
        return Observation(
            pods={
                "u": Pods(
                    total=1,
                    placed=int(self.placed),
                    accelerator=GPU,
                )
            },
            spot_machines=[MACHINE] if self.spot_there else [],
            waiting_for_spot=[],
            events=lambda job: self.events,
        )

    def work(self, done_h: float, now_s: float) -> None:
        """Writes a trainer's progress: a window if it went on, a restore if it was set back."""
        # The step may be a fraction, so that nothing is rounded.
        step = done_h * STEPS_PER_H
        before = self.step
        self.step = step
        if step > before:
            seconds = (step - before) / STEPS_PER_H * 3_600
            self._write(
                now_s,
                "window",
                first_step=before + 1,
                last_step=step,
                seconds=seconds,
            )
        elif step < before:
            self._write(now_s, "restore", step=step, seconds=1.0)

    def _write(self, now_s: float, event: str, **fields: float) -> None:
        line = {
            "v": 1,
            "t": now_s,
            "event": event,
            "job": NAME,
            "kind": "training",
            "process": "p-0",
        } | fields
        reading = parse([json.dumps(line).encode()], job=NAME)
        assert not reading.problems, reading.problems
        self.events += reading.events
