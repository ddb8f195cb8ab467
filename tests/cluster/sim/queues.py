"""Kueue's objects for a test: a local queue `team` that lends GPUs of one pool, and Jobs submitted
to it.
"""

from typing import Any

from holdfast.clients.api import Object
from holdfast.vocabulary.pools import GPU_RESOURCE, Pool
from tests.cluster.sim.world import World

GROUP = "/apis/kueue.x-k8s.io/v1beta2"
QUEUE = "team"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"


def create(world: World, kind: str, path: str, name: str, body: Object) -> None:
    head = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": kind,
        "metadata": {"name": name},
    }
    world.api.create(path, head | body, fieldValidation="Strict")


def lend(world: World, pool: Pool, gpus: int) -> None:
    """Cluster-wide objects have the world's name, so that tests do not share them."""
    labels = pool.selector() | world.selector
    create(
        world,
        "ResourceFlavor",
        f"{GROUP}/resourceflavors",
        world.name,
        {"spec": {"nodeLabels": labels}},
    )
    flavor = {
        "name": world.name,
        "resources": [{"name": GPU_RESOURCE, "nominalQuota": gpus}],
    }
    spec = {
        "namespaceSelector": {},
        "resourceGroups": [
            {
                "coveredResources": [GPU_RESOURCE],
                "flavors": [flavor],
            }
        ],
        "preemption": {"withinClusterQueue": "LowerPriority"},
    }
    create(world, "ClusterQueue", f"{GROUP}/clusterqueues", world.name, {"spec": spec})
    create(
        world,
        "LocalQueue",
        world.path("localqueues", GROUP),
        QUEUE,
        {"spec": {"clusterQueue": world.name}},
    )


def priority(world: World, name: str, value: int) -> str:
    full = f"{world.name}-{name}"
    create(
        world, "WorkloadPriorityClass", f"{GROUP}/workloadpriorityclasses", full, {"value": value}
    )
    return full


def submit(
    world: World, pool: Pool, name: str, priority_class: str = "", *, pods: int = 1, **how: Any
) -> None:
    """Submits a Job. Its pods have no selector: Kueue adds that of the flavor."""
    spec = world.job_spec(pool, pods, suspend=True, **how)
    del spec["template"]["spec"]["nodeSelector"]
    labels = {QUEUE_LABEL: QUEUE} | ({PRIORITY_LABEL: priority_class} if priority_class else {})
    body = {
        "metadata": {"name": name, "labels": labels},
        "spec": spec,
    }
    world.api.create(world.path("jobs", "/apis/batch/v1"), body, fieldValidation="Strict")
