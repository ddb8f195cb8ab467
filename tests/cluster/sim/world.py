"""What one test owns in the shared cluster: a namespace, nodes, and pods that run nowhere else."""

import datetime
import itertools
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from holdfast.clients.api import Api, ApiError, Object
from holdfast.vocabulary.exit_codes import FATAL_EXIT_CODES
from holdfast.vocabulary.kubernetes import LABEL_PART_OF, PART_OF
from holdfast.vocabulary.pools import GPU_RESOURCE, Pool
from holdfast.vocabulary.roles import (
    NAMESPACE_BATCH,
    NAMESPACE_MONITORING,
    NAMESPACE_SERVING,
    NAMESPACE_TRAINING,
)
from tests.cluster.sim import nodes, pods, storm
from tests.cluster.sim.stages import EXIT_CODE, RUN_S
from tests.cluster.sim.waiting import until

RENDERED_NAMESPACES = (NAMESPACE_TRAINING, NAMESPACE_BATCH, NAMESPACE_SERVING, NAMESPACE_MONITORING)
OWNER = "sim.holdfast.dev/test"
# First ignore what the platform did, then stop at once for what a retry would only repeat.
POLICY = {
    "rules": [
        {
            "action": "Ignore",
            "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
        },
        {
            "action": "FailJob",
            "onExitCodes": {
                "operator": "In",
                "values": list(FATAL_EXIT_CODES),
            },
        },
    ]
}


JOBS = ("/apis/batch/v1/namespaces/{}/jobs", "/apis/jobset.x-k8s.io/v1alpha2/namespaces/{}/jobsets")


def end_jobs(api: Api) -> list[str]:
    """Ends the jobs in the namespaces that all tests share, and returns their names."""
    names = []
    for space, plural in itertools.product(RENDERED_NAMESPACES, JOBS):
        path = plural.format(space)
        for job in api.items(path):
            meta = job["metadata"]
            if "deletionTimestamp" in meta or "ownerReferences" in meta:
                continue
            with pods.if_there():
                api.delete(f"{path}/{meta['name']}", propagationPolicy="Background")
            names.append(f"{space}/{meta['name']}")
    return names


class World:
    def __init__(self, api: Api, name: str) -> None:
        self.api = api
        self.name = name
        self.selector = {OWNER: name}
        self.nodes: list[str] = []
        self._made = 0

    def create(self) -> None:
        self.api.create(
            "/api/v1/namespaces",
            {
                "metadata": {
                    "name": self.name,
                    "labels": {LABEL_PART_OF: PART_OF},
                }
            },
        )
        account = f"{self.path('serviceaccounts')}/default"
        until("the namespace has its service account", lambda: self.api.find(account))

    def delete(self) -> None:
        """Does not wait: names are unique, so the next test need not."""
        self.api.delete(f"/api/v1/namespaces/{self.name}")
        self._end_pods_elsewhere()
        nodes.remove(self.api, self.nodes)

    def _end_pods_elsewhere(self) -> None:
        """Deletes the pods of rendered jobs on this test's nodes.

        Such jobs have fixed names in namespaces that all tests share. Once its node is gone, a pod
        would stay for a minute, and the next test would take it for its own.
        """
        for space in RENDERED_NAMESPACES:
            path = f"/api/v1/namespaces/{space}/pods"
            for pod in self.api.items(path):
                if pod["spec"].get("nodeName") in self.nodes:
                    with pods.if_there():
                        self.api.delete(f"{path}/{pod['metadata']['name']}", gracePeriodSeconds=0)

    def path(self, plural: str, group: str = "/api/v1") -> str:
        return f"{group}/namespaces/{self.name}/{plural}"

    # -- nodes --

    def add_nodes(
        self,
        pool: Pool,
        count: int,
        *,
        zone: str = "",
        labels: dict[str, str] | None = None,
    ) -> list[str]:
        """Adds nodes of `pool`, waits until they are ready, and returns their names.

        Names are never used twice. `labels` replace those that keep other tests away.
        """
        first = self._made
        self._made = self._made + count
        selector = self.selector if labels is None else labels
        nodes_to_add = []
        for n in range(first, first + count):
            nodes_to_add.append(
                nodes.node(
                    pool,
                    f"{self.name}-{pool.name}-{n}",
                    zone=zone,
                    labels=selector,
                )
            )
        fresh = nodes.add(self.api, nodes_to_add)
        self.nodes += fresh
        until(f"{count} nodes are ready", lambda: nodes.ready(self.api, fresh))
        return fresh

    def preempt(self, victims: list[str], **how: int) -> int:
        hit = storm.preempt(self.api, victims, **how)
        self.nodes = [name for name in self.nodes if name not in victims]
        return hit

    # -- pods and jobs --

    def pod_template(
        self, pool: Pool, annotations: dict[str, str] | None = None, **spec: Any
    ) -> Object:
        container = {
            "name": "main",
            "image": "none",
            "resources": {"limits": {GPU_RESOURCE: str(pool.gpus_per_node)}},
        }
        return {
            "metadata": {"annotations": annotations or {}},
            "spec": {
                "restartPolicy": "Never",
                "nodeSelector": pool.selector() | self.selector,
                "tolerations": pool.tolerations(),
                "containers": [container],
            }
            | spec,
        }

    def job_spec(
        self, pool: Pool, size: int, *, run_s: float = 3600, code: int = 0, **spec: Any
    ) -> Object:
        """Returns the spec of an indexed Job whose indexes run for `run_s` and end with `code`."""
        annotations = {RUN_S: str(run_s)} | ({EXIT_CODE: str(code)} if code else {})
        return {
            "completionMode": "Indexed",
            "completions": size,
            "parallelism": size,
            "backoffLimitPerIndex": 0,
            "podFailurePolicy": POLICY,
            "template": self.pod_template(pool, annotations),
        } | spec

    def create_job(self, name: str, spec: Object) -> None:
        body = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name},
            "spec": spec,
        }
        self.api.create(self.path("jobs", "/apis/batch/v1"), body, fieldValidation="Strict")

    def create_pod(self, name: str, template: Object, **query: object) -> None:
        body = template | {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": template["metadata"] | {"name": name},
        }
        self.api.create(self.path("pods"), body, fieldValidation="Strict", **query)

    def try_pod(self, name: str, template: Object) -> int:
        """0 if the API server would make it, else its HTTP status. Nothing is made."""
        try:
            self.create_pod(name, template, dryRun="All")
        except ApiError as error:
            return error.status
        return 0

    def add_event(self, pod: Object, reason: str, message: str) -> None:
        """An event on the pod, as a controller that is not here would write it."""
        about = {key: pod["metadata"][key] for key in ("name", "namespace", "uid")} | {
            "kind": "Pod"
        }
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        event = {
            "metadata": {"generateName": "event-"},
            "involvedObject": about,
            "lastTimestamp": now,
        }
        self.api.create(self.path("events"), event | {"reason": reason, "message": message})

    def job(self, name: str) -> Object:
        return self.api.get(f"{self.path('jobs', '/apis/batch/v1')}/{name}")

    def pods(self, phase: str = "", **query: object) -> list[Object]:
        candidates = self.api.items(self.path("pods"), **query)
        pods: list[Object] = []
        for pod in candidates:
            if not phase or pod["status"]["phase"] == phase:
                pods.append(pod)
        return pods

    def pod(self, name: str) -> Object:
        return self.api.get(f"{self.path('pods')}/{name}")

    def evict(self, name: str) -> int:
        """Asks the Eviction API to evict a pod, and returns its HTTP status."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": self.name},
        }
        try:
            self.api.create(f"{self.path('pods')}/{name}/eviction", body)
        except ApiError as error:
            return error.status
        return 201

    def release(self, writers: int = 4) -> None:
        """Every pod that runs now comes to its own end, as if its run time were over."""
        with ThreadPoolExecutor(writers) as pool:
            list(pool.map(lambda pod: pods.end(self.api, pod), self.pods("Running")))

    def wait_running(
        self, count: int, timeout_s: float = 120.0, *, old: Collection[str] = ()
    ) -> list[Object]:
        """Waits for this number of pods that stay and have none of the `old` uids."""

        def running() -> list[Object]:
            running_pods = []
            for pod in self.pods("Running"):
                if "deletionTimestamp" not in pod["metadata"]:
                    running_pods.append(pod)
            candidates = []
            for pod in running_pods:
                if pod["metadata"]["uid"] not in old:
                    candidates.append(pod)
            return candidates if len(candidates) == count else []

        return until(f"{count} pods run", running, timeout_s)

    def wait_condition(self, job: str, timeout_s: float = 120.0) -> str:
        """Waits until the Job has ended, and returns `Complete` or `Failed:<reason>`."""

        def read_outcome() -> str | None:
            for condition in self.job(job)["status"].get("conditions", ()):
                if condition["type"] in ("Complete", "Failed") and condition["status"] == "True":
                    if condition["type"] == "Complete":
                        return condition["type"]
                    return f"Failed:{condition['reason']}"
            return None

        return until(f"Job {job} ends", read_outcome, timeout_s)
