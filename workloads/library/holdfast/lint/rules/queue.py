"""HF3xx: priorities, Kueue, namespaces: who goes first and how much there is."""

from collections.abc import Iterator
from typing import Any

from holdfast.contract.kubernetes import LABEL_QUEUE, PRIORITIES
from holdfast.contract.pools import GPU_RESOURCE
from holdfast.lint.document import Path
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.objects import Job, Object, Pod, as_int, as_list, as_map, as_text, dig, quantity
from holdfast.lint.registry import Context, rule
from holdfast.lint.world import QUEUED_RESOURCES

DOC_PRIORITY = "https://kubernetes.io/docs/concepts/scheduling-eviction/pod-priority-preemption/"
DOC_KUEUE = "https://kueue.sigs.k8s.io/docs/"
MAX_USER_PRIORITY = 1_000_000
# The platform's own manifests make these; a repository that uses them need not repeat them.
PLATFORM_PRIORITIES = {name: priority.value for name, priority in PRIORITIES.items()}
_CLASS = """\
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {{name: {name}}}
description: example
value: {value}
"""


@rule(
    "HF301", "priority-class-unknown", Severity.ERROR, on=Pod,
    what="The pod names a PriorityClass that exists neither here nor in the platform.",
    why="The API server refuses every pod of it, and the Job waits without a word.",
    source=DOC_PRIORITY, fix=f"use one of {', '.join(PLATFORM_PRIORITIES)}, or add the class", base="job-pod",
    bad="priorityClassName: spot-low", good="priorityClassName: spot-workload-low",
)  # fmt: skip
def priority_class_unknown(pod: Pod, context: Context) -> Iterator[Hit]:
    name = as_text(pod.spec.get("priorityClassName"))
    if name and name not in PLATFORM_PRIORITIES | context.world.priorities:
        yield Hit((*pod.at, "priorityClassName"), f"no PriorityClass is named {name}")


@rule(
    "HF302", "priority-positive-on-spot", Severity.ERROR, on=Pod,
    what="A Spot pod has a priority above zero.",
    why="When Spot shrinks, it then pushes out other pods instead of waiting; Spot work is to yield.",
    source=DOC_PRIORITY, fix="use spot-workload-low", base="job-pod",
    bad="priorityClassName: serving", good="priorityClassName: spot-workload-low",
)  # fmt: skip
def priority_positive_on_spot(pod: Pod, context: Context) -> Iterator[Hit]:
    name = as_text(pod.spec.get("priorityClassName"))
    value = (PLATFORM_PRIORITIES | context.world.priorities).get(name, 0)
    ties = pod.job is not None or context.place(pod).ties_to_spot
    if value > 0 and ties and context.place(pod).on_spot:
        yield Hit((*pod.at, "priorityClassName"), f"{name} is {value}, on Spot")


@rule(
    "HF303", "priority-missing-on-spot", Severity.WARNING, on=Pod,
    what="A Spot Job without a PriorityClass.",
    why="It then has priority 0, equal to everybody who said nothing, and does not yield to them.",
    source=DOC_PRIORITY, fix="set priorityClassName: spot-workload-low", base="job-pod",
    bad="priorityClassName: null", good="priorityClassName: spot-workload-low",
)  # fmt: skip
def priority_missing_on_spot(pod: Pod, context: Context) -> Iterator[Hit]:
    if pod.job and not pod.spec.get("priorityClassName") and context.place(pod).on_spot:
        yield Hit(pod.at, "has no priority class, and so does not yield")


@rule(
    "HF304", "priority-too-high", Severity.ERROR, on=Object,
    what="A PriorityClass that could push out the platform's own pods, or is the default for all.",
    why="Controllers evicted for work cannot bring the work back; a global default changes pods that nobody reviewed.",
    source=DOC_PRIORITY, fix=f"stay at or below {MAX_USER_PRIORITY}, without globalDefault",
    bad=_CLASS.format(name="urgent", value=900_000_000), good=_CLASS.format(name="urgent", value=100),
)  # fmt: skip
def priority_too_high(obj: Object, context: Context) -> Iterator[Hit]:
    if obj.kind != "PriorityClass":
        return
    value = as_int(obj.body.get("value"))
    if value is not None and value > MAX_USER_PRIORITY:
        yield Hit(("value",), f"{value} is above every class of the platform")
    if obj.body.get("globalDefault") is True:
        yield Hit(("globalDefault",), "applies to every pod that names no class")


@rule(
    "HF305", "priority-of-spot-class-positive", Severity.ERROR, on=Object,
    what="A PriorityClass named for Spot with a value that is not negative.",
    why="Work without a class has 0; Spot work is to yield to it.",
    source=DOC_PRIORITY, fix="give it a value below 0",
    bad=_CLASS.format(name="spot-jobs", value=50), good=_CLASS.format(name="spot-jobs", value=-10),
)  # fmt: skip
def priority_of_spot_class(obj: Object, context: Context) -> Iterator[Hit]:
    value = as_int(obj.body.get("value"))
    if obj.kind == "PriorityClass" and "spot" in obj.name and value is not None and value >= 0:
        yield Hit(("value",), f"{obj.name} has the value {value}")


@rule(
    "HF306", "queue-unknown", Severity.ERROR, on=Object,
    what="A job names a Kueue LocalQueue that does not exist in its namespace.",
    why="Kueue never admits it, and it stays suspended without an event on the pod.",
    source=DOC_KUEUE, fix="name a LocalQueue of the namespace",
    bad="""\
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: spot, namespace: training}
spec: {clusterQueue: gpus}
---
apiVersion: batch/v1
kind: Job
metadata: {name: train, namespace: training, labels: {kueue.x-k8s.io/queue-name: spto}}
spec: {suspend: true, template: {spec: {containers: [{name: main, image: train}]}}}
""",
    good="""\
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: spot, namespace: training}
spec: {clusterQueue: gpus}
""",
)  # fmt: skip
def queue_unknown(obj: Object, context: Context) -> Iterator[Hit]:
    label = LABEL_QUEUE
    name = as_text(as_map(obj.metadata.get("labels")).get(label))
    queues = context.world.within("LocalQueue", obj.namespace)
    if name and queues and name not in [queue.name for queue in queues]:
        there = ", ".join(sorted(queue.name for queue in queues))
        yield Hit(("metadata", "labels", label), f"no LocalQueue {name} in {obj.namespace}; there are {there}")
    elsewhere = [q.namespace for q in context.world.all_named("LocalQueue", name) if q.namespace]
    if name and not queues and obj.namespace and elsewhere:
        yield Hit(("metadata", "labels", label), f"LocalQueue {name} is one of {elsewhere[0]}, not of {obj.namespace}")


_CLUSTER_QUEUE = """\
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {{name: gpus}}
spec:
  resourceGroups:
  - coveredResources: [nvidia.com/gpu]
    flavors: [{{name: {flavor}, resources: [{{name: nvidia.com/gpu, nominalQuota: "{gpus}"}}]}}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {{name: spot}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {{name: spot, namespace: training}}
spec: {{clusterQueue: {queue}}}
"""
_QUEUED_JOB = """\
---
apiVersion: batch/v1
kind: Job
metadata: {name: train, namespace: training, labels: {kueue.x-k8s.io/queue-name: spot}}
spec:
  parallelism: 4
  completions: 4
  suspend: true
  template: {spec: {containers: [{name: main, image: train, resources: {limits: {nvidia.com/gpu: "1"}}}]}}
"""
_SOUND = _CLUSTER_QUEUE.format(flavor="spot", gpus=4, queue="gpus")


@rule(
    "HF309", "cluster-queue-unknown", Severity.ERROR, on=Object,
    what="A LocalQueue points to a ClusterQueue that does not exist.",
    why="Kueue holds every job of the queue, with a condition that nobody looks at.",
    source=DOC_KUEUE, fix="name a ClusterQueue",
    bad=_CLUSTER_QUEUE.format(flavor="spot", gpus=4, queue="gpu"), good=_SOUND,
)  # fmt: skip
def cluster_queue_unknown(obj: Object, context: Context) -> Iterator[Hit]:
    name, known = as_text(obj.spec.get("clusterQueue")), context.world.by_kind.get("ClusterQueue", [])
    if obj.kind == "LocalQueue" and known and not context.world.named("ClusterQueue", name):
        there = ", ".join(sorted(queue.name for queue in known)[:5])
        yield Hit(("spec", "clusterQueue"), f"no ClusterQueue {name}; there are {there}")


@rule(
    "HF310", "flavor-unknown", Severity.ERROR, on=Object,
    what="A ClusterQueue lends of a ResourceFlavor that does not exist.",
    why="The queue is inactive until the flavor exists: it admits nothing, of any flavor.",
    source=DOC_KUEUE, fix="name a ResourceFlavor",
    bad=_CLUSTER_QUEUE.format(flavor="spto", gpus=4, queue="gpus"), good=_SOUND,
)  # fmt: skip
def flavor_unknown(obj: Object, context: Context) -> Iterator[Hit]:
    if obj.kind != "ClusterQueue" or not context.world.by_kind.get("ResourceFlavor"):
        return
    for path, flavor in _flavors(obj):
        name = as_text(flavor.get("name"))
        if not context.world.named("ResourceFlavor", name):
            yield Hit((*path, "name"), f"no ResourceFlavor {name}")


def _flavors(queue: Object) -> Iterator[tuple[Path, dict[str, Any]]]:
    for g, group in enumerate(as_list(queue.spec.get("resourceGroups"))):
        for f, flavor in enumerate(as_list(dig(group, "flavors"))):
            yield ("spec", "resourceGroups", g, "flavors", f), as_map(flavor)


@rule(
    "HF311", "quota-below-the-gang", Severity.ERROR, on=Object,
    what="A job asks for more GPUs, CPU or memory than any flavor of its queue lends.",
    why="Kueue admits a job whole, on one flavor: it is never admitted, and stays suspended without an error.",
    source=DOC_KUEUE, fix="raise nominalQuota, or ask for less",
    bad=_CLUSTER_QUEUE.format(flavor="spot", gpus=2, queue="gpus") + _QUEUED_JOB, good=_SOUND,
)  # fmt: skip
def quota_below_the_gang(obj: Object, context: Context) -> Iterator[Hit]:
    name = as_text(as_map(obj.metadata.get("labels")).get(LABEL_QUEUE))
    local = context.world.named("LocalQueue", name, obj.namespace) if name and obj.jobs else None
    queues = context.world.all_named("ClusterQueue", as_text(local.spec.get("clusterQueue"))) if local else []
    for resource in QUEUED_RESOURCES if queues else ():
        asked = max((_asked(job, resource) for job in obj.jobs), default=0.0)
        most = context.world.most_lent(queues, resource)
        # A queue without a quota on CPU or memory is one that does not count them.
        most = 0.0 if most is None and resource == GPU_RESOURCE else most
        if asked and most is not None and most < asked:
            what = _WHAT.get(resource, resource)
            at = ("metadata", "labels", LABEL_QUEUE)
            yield Hit(
                at, f"asks for {_shown(asked, resource)} {what}, its queue lends at most {_shown(most, resource)}"
            )


_WHAT = {GPU_RESOURCE: "GPUs", "cpu": "CPUs", "memory": "of memory"}


def _shown(amount: float, resource: str) -> str:
    return f"{amount / 2**30:g} GiB" if resource == "memory" else f"{amount:g}"


def _asked(job: Job, resource: str) -> float:
    """Of all pods that have to start together."""
    least = quantity(as_map(job.owner.metadata.get("annotations")).get("kueue.x-k8s.io/job-min-parallelism"))
    containers = [c for c in job.pod.containers if "containers" in c.path] if job.pod else []
    each = sum(quantity(c.request(resource)) or 0.0 for c in containers)
    return max(0.0, each) * (min(least, job.parallelism) if least is not None else job.parallelism)


@rule(
    "HF307", "quota-over-capacity", Severity.WARNING, on=Object,
    what="A ClusterQueue lends more GPUs than the environment can have.",
    why="Kueue then admits jobs whose pods stay Pending, and they hold quota meanwhile.",
    source=DOC_KUEUE, fix="lower nominalQuota, or raise the pools and caps",
    bad="""\
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: gpus}
spec:
  resourceGroups:
  - coveredResources: [nvidia.com/gpu]
    flavors: [{name: spot, resources: [{name: nvidia.com/gpu, nominalQuota: "5000"}]}]
""",
    good="""\
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: gpus}
spec:
  resourceGroups:
  - coveredResources: [nvidia.com/gpu]
    flavors: [{name: spot, resources: [{name: nvidia.com/gpu, nominalQuota: "4"}]}]
""",
)  # fmt: skip
def quota_over_capacity(obj: Object, context: Context) -> Iterator[Hit]:
    if obj.kind != "ClusterQueue":
        return
    platform = context.platform
    most = sum(p.max_nodes * p.gpus_per_node for p in platform.pools) + sum(platform.caps.values())
    for g, group in enumerate(as_list(obj.spec.get("resourceGroups"))):
        for f, flavor in enumerate(as_list(dig(group, "flavors"))):
            for r, resource in enumerate(as_list(dig(flavor, "resources"))):
                lent = quantity(dig(resource, "nominalQuota")) or 0
                if dig(resource, "name") == GPU_RESOURCE and lent > most:
                    at = ("spec", "resourceGroups", g, "flavors", f, "resources", r, "nominalQuota")
                    basis = platform.basis(platform.pools[0], f"all pools and caps together have {most} GPUs")
                    yield Hit(at, f"lends {lent:g} GPUs", basis)


@rule(
    "HF308", "queued-annotation-deprecated", Severity.ERROR, on=Pod,
    what="A ProvisioningRequest annotation with the old prefix.",
    why="cluster-autoscaler.kubernetes.io/ is deprecated for these; the autoscaler reads autoscaling.x-k8s.io/.",
    source="https://github.com/kubernetes/autoscaler", fix="use the prefix autoscaling.x-k8s.io/", base="job-template",
    bad="metadata: {annotations: {cluster-autoscaler.kubernetes.io/consume-provisioning-request: request}}",
    good="metadata: {annotations: {autoscaling.x-k8s.io/consume-provisioning-request: request}}",
)  # fmt: skip
def queued_annotation_deprecated(pod: Pod, context: Context) -> Iterator[Hit]:
    for word in ("consume-provisioning-request", "provisioning-class-name"):
        key = f"cluster-autoscaler.kubernetes.io/{word}"
        if key in pod.annotations:
            yield Hit((*pod.path, "metadata", "annotations", key), f"write autoscaling.x-k8s.io/{word}")
