"""Rendered jobs in a real cluster, and the machines that a story gives and takes."""

import copy
import json
import time
from dataclasses import dataclass, replace

from holdfast.clients.api import Api, ApiError, Object
from holdfast.controllers.cluster_objects import find_controller
from holdfast.cost.receipt import ANNOTATION, Receipt
from holdfast.jobs.diagnose.cluster_snapshot import PROVISIONING
from holdfast.jobs.diagnose.job_snapshot import KUEUE
from holdfast.support.values import rfc3339
from holdfast.vocabulary.exit_codes import EXIT_COMPLETE, EXIT_PREEMPTED
from holdfast.vocabulary.kubernetes import LABEL_NAME
from holdfast.vocabulary.lifecycle import ANNOTATION_TERMINATION
from holdfast.vocabulary.pools import QUEUED_TAINT
from tests.cluster.sim import nodes, pods
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World
from tests.workloads.manifests import rendered
from workloads.library.tests.cluster.objects import list_conditions, list_uids
from workloads.library.tests.cluster.walk import ENVIRONMENT, Walk

SPOT = ENVIRONMENT.pool("spot-a100")
FLEX = ENVIRONMENT.pool("flex-a100")
SYSTEM = ENVIRONMENT.pool("system")
# GKE keeps other flex-start jobs off these nodes.
QUEUED = replace(FLEX, taints=(*FLEX.taints, QUEUED_TAINT))
ZONE = "us-central1-a"
REQUESTS = f"{PROVISIONING}/namespaces/training/provisioningrequests"
EXIT_CRASH = 1
OVER = ("Complete", "Completed", "Failed")


def load_resized(kind: str, name: str, pods: int) -> Object:
    """Loads a rendered job, with another number of pods."""
    doc = copy.deepcopy(rendered.find_object("example", kind, name))
    job_spec(doc).update(parallelism=pods, completions=pods)
    return doc


def job_spec(doc: Object) -> Object:
    """Returns the spec of a Job, or of the only one of a JobSet."""
    if doc["kind"] == "Job":
        return doc["spec"]
    return doc["spec"]["replicatedJobs"][0]["template"]["spec"]


def answer(api: Api, request: Object, *kinds: str) -> None:
    """Answers a request for nodes as Google does, with these conditions."""
    met = {
        "status": "True",
        "reason": "Met",
        "message": "",
        "lastTransitionTime": rfc3339(time.time()),
    }
    path = f"{REQUESTS}/{request['metadata']['name']}/status"
    conditions: list[Object] = []
    for kind in kinds:
        conditions.append(met | {"type": kind})
    api.merge(path, {"status": {"conditions": conditions}})


def list_time_limited(api: Api) -> list[Object]:
    """Lists the Workloads that Kueue stops if their pods are not ready in time. Upstream's default
    stops a job after half an hour without a node, again and again, and a flex-start job has no node
    for minutes to days.
    """
    workloads = api.items(f"{KUEUE}/namespaces/training/workloads")
    ready_workloads: list[Object] = []
    for workload in workloads:
        if "PodsReady" in list_conditions(workload):
            ready_workloads.append(workload)
    return ready_workloads


@dataclass
class Submitted:
    """One rendered job in the cluster."""

    api: Api
    doc: Object

    @property
    def name(self) -> str:
        return self.doc["metadata"]["name"]

    @property
    def namespace(self) -> str:
        return self.doc["metadata"]["namespace"]

    @property
    def selector(self) -> dict[str, str]:
        return job_spec(self.doc)["template"]["spec"]["nodeSelector"]

    def workloads(self) -> list[Object]:
        """Kueue's records of it: two while it grows."""
        uid = self.body()["metadata"]["uid"]
        workloads = self.api.items(f"{KUEUE}/namespaces/{self.namespace}/workloads")
        return [workload for workload in workloads if find_controller(workload) == uid]

    def workload(self) -> Object | None:
        return next(iter(self.workloads()), None)

    def submit(self) -> None:
        self.api.apply(self.api.path_of(self.doc), self.doc)

    def cancel(self) -> None:
        try:
            self.api.delete(self.api.path_of(self.doc), propagationPolicy="Background")
        except ApiError as error:
            if error.status != 404:
                raise
        until(f"no pod of {self.name} is left", lambda: not self.pods() or None)

    def body(self) -> Object:
        return self.api.get(self.api.path_of(self.doc))

    def pods(self, phase: str = "") -> list[Object]:
        label = f"{LABEL_NAME}={self.doc['metadata']['labels'][LABEL_NAME]}"
        candidates = self.api.items(
            f"/api/v1/namespaces/{self.namespace}/pods", labelSelector=label
        )
        pods: list[Object] = []
        for pod in candidates:
            if not phase or pod["status"].get("phase") == phase:
                pods.append(pod)
        return pods

    def running(self) -> set[str]:
        return list_uids(self.pods("Running"))

    def wait(self, phase: str, count: int) -> list[Object]:
        def there() -> list[Object] | None:
            owned = []
            for pod in self.pods(phase):
                if "deletionTimestamp" not in pod["metadata"]:
                    owned.append(pod)
            return owned if len(owned) == count else None

        return until(f"{count} pods of {self.name} are {phase}", there)

    def end(self, code: int) -> None:
        """Ends the pods. `Trainers` writes the lines of their processes."""
        for pod in self.pods("Running"):
            pods.end(self.api, pod, code)

    def wait_until_ended(self) -> str:
        """Waits until the job has ended, and returns the type of its condition."""

        def condition() -> str | None:
            conditions = (self.body().get("status") or {}).get("conditions") or ()
            for c in conditions:
                if c["type"] in OVER and c["status"] == "True":
                    return c["type"]
            return None

        return until(f"{self.name} has ended", condition)

    def receipt(self) -> Receipt:
        def read_receipt() -> Object | None:
            return json.loads(
                self.body()["metadata"].get("annotations", {}).get(ANNOTATION, "null")
            )

        fields = until(f"{self.name} has its receipt", read_receipt)
        fields.pop("schema", None)
        return Receipt(**fields)


def provision(world: World, job: Submitted, *spent: Object) -> tuple[Object, list[str]]:
    """Grants the request that Kueue made for a job, which is none of the spent ones. Returns the
    request and its nodes.
    """
    uids = list_uids(spent)

    def find_request() -> Object | None:
        # Requests of jobs that are gone stay for a while.
        owners = list_uids(job.workloads())
        for request in world.api.items(REQUESTS):
            if request["metadata"]["uid"] not in uids and find_controller(request) in owners:
                return request
        return None

    request = until("Kueue asks for nodes", find_request)
    machines = world.add_nodes(QUEUED, 2, zone=ZONE, labels=job.selector)
    answer(world.api, request, "Accepted", "Provisioned")
    job.wait("Running", 2)
    return request, machines


class Cast:
    """The jobs of the story, and where they run."""

    def __init__(self, world: World, story: Walk) -> None:
        self.world = world
        self.story = story
        self.gang = Submitted(world.api, load_resized("JobSet", "train-gang", 4))
        self.sweep = Submitted(world.api, load_resized("Job", "train-sweep", 2))
        self.flex = Submitted(world.api, load_resized("Job", "train-flex-tesla-a100", 2))
        self.queued = Submitted(world.api, load_resized("JobSet", "train-queued-tesla-a100", 2))
        self.jobs = self.gang, self.sweep, self.flex, self.queued

    def add_spot(self) -> list[str]:
        """Adds as many nodes as the queue lends."""
        return self.world.add_nodes(
            SPOT,
            4,
            zone=ZONE,
            labels={},
        )

    def add_flex(self, job: Submitted, *, ends_s: float = 0.0) -> list[str]:
        """Adds nodes as auto-provisioning makes them for a job's selector."""
        found = self.world.add_nodes(
            FLEX,
            2,
            zone=ZONE,
            labels=job.selector,
        )
        ends = {"metadata": {"annotations": {ANNOTATION_TERMINATION: rfc3339(ends_s)}}}
        for name in found if ends_s else ():
            self.world.api.merge(f"{nodes.NODES}/{name}", ends)
        return found

    def take(self, job: Submitted, machines: list[str]) -> None:
        """Preempts the nodes of a job, with notice."""
        self.story.trainers.leave(job.name, EXIT_PREEMPTED)
        self.world.preempt(machines)
        if SPOT.name in machines[0]:
            self.story.count_lost_nodes(SPOT.name, len(machines))
        job.wait("Pending", len(machines))

    def finish(self, job: Submitted) -> None:
        self.story.trainers.leave(job.name, EXIT_COMPLETE)
        job.end(EXIT_COMPLETE)
        job.wait_until_ended()

    def crash(self, job: Submitted) -> None:
        """Ends all its pods with a bug's exit code; they are made again."""
        before = job.running()
        self.story.trainers.leave(job.name, EXIT_CRASH)
        job.end(EXIT_CRASH)
        until(f"{job.name} runs again", lambda: len(job.running() - before) == len(before))
