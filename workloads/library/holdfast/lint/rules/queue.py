"""HF306 to HF315: Kueue's queues, quotas and flavors."""

from collections.abc import Iterable, Iterator
from typing import Any

from holdfast.lint.accessors import list_names
from holdfast.lint.document import Path
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.object_index import QUEUED_RESOURCES
from holdfast.lint.objects import (
    DEFAULT_NAMESPACE,
    Job,
    Object,
    Pod,
    as_list,
    as_map,
    as_text,
    as_texts,
    dig,
)
from holdfast.lint.registry import Context, rule
from holdfast.lint.spelling import suggest
from holdfast.support.values import GIB, quantity
from holdfast.vocabulary.kubernetes import ANNOTATION_CONSUMES, LABEL_QUEUE, PROVISIONING_CLASS
from holdfast.vocabulary.pools import (
    GPU_RESOURCE,
    LABEL_POOL_CLASS,
    LABEL_ROLE,
    QUEUED_TAINT,
    tolerates,
)

DOC_KUEUE = "https://kueue.sigs.k8s.io/docs/"
_FORMATS = {
    GPU_RESOURCE: "{:g} GPUs",
    "cpu": "{:g} CPUs",
    "memory": "{:g} GiB of memory",
}


def _kueue(kind: str, name: str, spec: str) -> str:
    return f"""\
apiVersion: kueue.x-k8s.io/v1beta2
kind: {kind}
metadata: {{name: {name}}}
spec: {{{spec}}}
---
"""


def _local(cluster_queue: str = "gpus") -> str:
    return _kueue("LocalQueue", "spot, namespace: training", f"clusterQueue: {cluster_queue}")


def _flavor(pool_class: str = "spot-l4") -> str:
    return _kueue(
        "ResourceFlavor", "spot", f"nodeLabels: {{holdfast.dev/pool-class: {pool_class}}}"
    )


def _cluster(flavor: str = "spot", gpus: int = 4) -> str:
    quota = f"{{name: {flavor}, resources: [{{name: nvidia.com/gpu, nominalQuota: {gpus}}}]}}"
    group = f"{{coveredResources: [nvidia.com/gpu], flavors: [{quota}]}}"
    spec = f"namespaceSelector: {{}}, resourceGroups: [{group}]"
    return _kueue("ClusterQueue", "gpus", spec)


def _job(queue: str = "spot") -> str:
    container = "{name: main, image: train, resources: {limits: {nvidia.com/gpu: 1}}}"
    return f"""\
apiVersion: batch/v1
kind: Job
metadata: {{name: train, namespace: training, labels: {{{LABEL_QUEUE}: {queue}}}}}
spec:
  parallelism: 4
  completions: 4
  template: {{spec: {{containers: [{container}]}}}}
"""


_GOOD = _cluster() + _flavor() + _local()


@rule(
    "HF306",
    "queue-unknown",
    Severity.ERROR,
    on=Object,
    what="A job names a Kueue LocalQueue that its namespace does not have.",
    why="Kueue never admits it. It stays suspended, without an event on the pod.",
    source=DOC_KUEUE,
    fix="name a LocalQueue of the namespace",
    bad=_local() + _job("spto"),
    good=_GOOD,
)
def queue_unknown(obj: Object, context: Context) -> Iterator[Hit]:
    name = obj.queue
    if not name:
        return
    namesakes = context.index.find_all("LocalQueue", name)
    if namesakes and not obj.namespace:
        return  # `kubectl apply --namespace` may create it next to any of them
    queues = _list_queues(obj, context)
    if queues:
        if name not in queues:
            namespace = obj.namespace or DEFAULT_NAMESPACE
            message = f"no LocalQueue {name} in {namespace}; there are {', '.join(queues)}"
            yield Hit(obj.queue_path, message)
        return
    for queue in namesakes:
        if queue.namespace:
            message = f"LocalQueue {name} is in {queue.namespace}, not in {obj.namespace}"
            yield Hit(obj.queue_path, message)
            return


def _list_queues(obj: Object, context: Context) -> list[str]:
    """Lists the names of the LocalQueues in the object's namespace."""
    return _list_names(context.index.list_namespace("LocalQueue", obj.namespace))


def _list_names(queues: Iterable[Object]) -> list[str]:
    return sorted(queue.name for queue in queues)


@rule(
    "HF309",
    "cluster-queue-unknown",
    Severity.ERROR,
    on=Object,
    kinds=("LocalQueue",),
    what="A LocalQueue points to a ClusterQueue that does not exist.",
    why="Kueue holds every job of the queue, and says so in a condition of the queue only.",
    source=DOC_KUEUE,
    fix="name a ClusterQueue",
    bad=_cluster() + _local("gpu"),
    good=_GOOD,
)
def cluster_queue_unknown(obj: Object, context: Context) -> Iterator[Hit]:
    name = as_text(obj.spec.get("clusterQueue"))
    queues = context.index.by_kind.get("ClusterQueue", [])
    if queues and not context.index.find("ClusterQueue", name):
        names = ", ".join(_list_names(queues)[:5])
        yield Hit(("spec", "clusterQueue"), f"no ClusterQueue {name}; there are {names}")


@rule(
    "HF310",
    "flavor-unknown",
    Severity.ERROR,
    on=Object,
    what="A ClusterQueue lends from a ResourceFlavor that does not exist.",
    why="The queue is inactive until the flavor exists: it admits nothing, of any flavor.",
    source=DOC_KUEUE,
    fix="name a ResourceFlavor",
    bad=_cluster("spto") + _flavor(),
    good=_GOOD,
)
def flavor_unknown(obj: Object, context: Context) -> Iterator[Hit]:
    if not context.index.by_kind.get("ResourceFlavor"):
        return
    for path, flavor in _list_flavors(obj):
        name = as_text(flavor.get("name"))
        if not context.index.find("ResourceFlavor", name):
            yield Hit((*path, "name"), f"no ResourceFlavor {name}")


def _list_flavors(queue: Object) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yields each flavor of a ClusterQueue with its path."""
    if queue.kind != "ClusterQueue":
        return
    for group_index, group in enumerate(as_list(queue.spec.get("resourceGroups"))):
        for index, flavor in enumerate(as_list(dig(group, "flavors"))):
            path = ("spec", "resourceGroups", group_index, "flavors", index)
            yield path, as_map(flavor)


@rule(
    "HF311",
    "quota-below-the-gang",
    Severity.ERROR,
    on=Object,
    what="A job asks for more GPUs, CPU or memory than any flavor of its queue lends.",
    why=(
        "Kueue admits a job whole, on one flavor. This one stays suspended for ever, without an"
        " error."
    ),
    source=DOC_KUEUE,
    fix="raise nominalQuota, or ask for less",
    bad=_cluster(gpus=2) + _local() + _job(),
    good=_GOOD,
)
def quota_below_the_gang(obj: Object, context: Context) -> Iterator[Hit]:
    name = obj.queue
    if not name or not obj.jobs:
        return
    queues = context.index.find_cluster_queues(obj, name)
    for resource in QUEUED_RESOURCES if queues else ():
        request = max(_sum_requests(job, resource) for job in obj.jobs)
        quota = context.index.largest_quota(queues, resource)
        if quota is None:
            if resource != GPU_RESOURCE:
                continue  # a queue without a quota on CPU or memory does not count them
            quota = 0.0
        if request and quota < request:
            request_text = _format_amount(resource, request)
            quota_text = _format_amount(resource, quota)
            yield Hit(
                obj.queue_path, f"asks for {request_text}, its queue lends at most {quota_text}"
            )


def _sum_requests(job: Job, resource: str) -> float:
    """Adds up the requests of all pods that have to start together."""
    pods = float(job.parallelism)
    min_parallelism = quantity(job.owner.annotations.get("kueue.x-k8s.io/job-min-parallelism"))
    if min_parallelism is not None:
        pods = min(min_parallelism, pods)
    request = job.pod.request(resource) if job.pod else 0.0
    return max(0.0, request) * pods


def _format_amount(resource: str, amount: float) -> str:
    unit = GIB if resource == "memory" else 1
    return _FORMATS[resource].format(amount / unit)


@rule(
    "HF307",
    "quota-over-capacity",
    Severity.WARNING,
    on=Object,
    what="A ClusterQueue lends more GPUs than the environment can have.",
    why="Kueue then admits jobs whose pods stay Pending, and those hold quota.",
    source=DOC_KUEUE,
    fix="lower nominalQuota, or raise the pools and caps",
    bad=_cluster(gpus=5000),
    good=_GOOD,
)
def quota_over_capacity(obj: Object, context: Context) -> Iterator[Hit]:
    platform = context.platform
    capacity = sum(platform.caps.values())
    for pool in platform.pools:
        capacity += pool.max_nodes * pool.gpus_per_node
    for flavor_path, flavor in _list_flavors(obj):
        for index, resource in enumerate(as_list(flavor.get("resources"))):
            quota = quantity(dig(resource, "nominalQuota")) or 0
            if dig(resource, "name") == GPU_RESOURCE and quota > capacity:
                fact = f"all pools and caps together have {capacity} GPUs"
                basis = platform.basis(platform.pools[0], fact)
                path = (*flavor_path, "resources", index, "nominalQuota")
                yield Hit(path, f"lends {quota:g} GPUs", basis)


@rule(
    "HF312",
    "flavor-of-no-pool",
    Severity.ERROR,
    on=Object,
    what="A ResourceFlavor selects nodes that no pool makes.",
    why=(
        "Kueue admits jobs on it and adds its labels to their pods. Those stay Pending and hold the"
        " quota."
    ),
    source="https://kueue.sigs.k8s.io/docs/concepts/resource_flavor/",
    fix="use a pool class of the environment",
    bad=_flavor("spot-l44"),
    good=_flavor(),
)
def flavor_without_pool(obj: Object, context: Context) -> Iterator[Hit]:
    """Compares the platform's own labels only: nodes of other pools may have any others."""
    if obj.kind != "ResourceFlavor":
        return
    for key in (LABEL_POOL_CLASS, LABEL_ROLE):
        value = as_text(dig(obj.spec, "nodeLabels", key))
        values = sorted(context.platform.label_values.get(key, ()))
        if value and value not in values:
            message = f"no pool has {key}={value}{suggest(value, values)}"
            yield Hit(("spec", "nodeLabels", key), message)


@rule(
    "HF314",
    "work-without-queue",
    Severity.WARNING,
    on=Object,
    kinds=("Job", "JobSet"),
    what=(
        "A Job or JobSet in a namespace with queues asks for GPUs, or is suspended, and names no"
        " LocalQueue."
    ),
    why=(
        "Suspended, it is never started. Else it takes GPUs that the queues have promised to"
        " others."
    ),
    source=DOC_KUEUE + "tasks/run/jobs/",
    fix=f"label it {LABEL_QUEUE}",
    bad=_GOOD + _job().replace(f", labels: {{{LABEL_QUEUE}: spot}}", ""),
    good=_GOOD,
)
def work_without_queue(obj: Object, context: Context) -> Iterator[Hit]:
    if LABEL_QUEUE in obj.labels:
        return
    queues = _list_queues(obj, context)
    if not queues and obj.namespace in context.platform.job_namespaces:
        if obj.spec.get("suspend") is True:
            listed = ", ".join(context.platform.queues)
            yield Hit(("spec", "suspend"), f"no queue starts it; the platform has {listed}")
        return
    # Kueue takes work without a label into a queue of the name `default`.
    if not queues or "default" in queues:
        return
    if obj.spec.get("suspend") is True:
        yield Hit(("spec", "suspend"), f"no queue starts it; there are {', '.join(queues)}")
    elif any(pod.gpus for pod in obj.pods):
        yield Hit(("metadata",), f"takes GPUs past the queues {', '.join(queues)}")


_CLASSES = (
    PROVISIONING_CLASS,
    "check-capacity.autoscaling.x-k8s.io",
    "best-effort-atomic-scale-up.autoscaling.x-k8s.io",
    "best-effort-atomic.autoscaling.x-k8s.io",
)
_CLASS_ANNOTATION = ANNOTATION_CONSUMES.replace(
    "consume-provisioning-request", "provisioning-class-name"
)


@rule(
    "HF315",
    "queued-without-class",
    Severity.ERROR,
    on=Object,
    what=(
        "Work for queued nodes has no provisioning class, or its queue makes no request for nodes."
    ),
    why=(
        "No autoscaler reads such a request, and queued nodes exist only by request: the pods wait"
        " for ever."
    ),
    source=DOC_KUEUE + "concepts/admission_check/provisioning_request/",
    fix=f"provisioningClassName: {PROVISIONING_CLASS}",
    bad=_kueue("ProvisioningRequestConfig", "queued", "provisioningClassName: queued"),
    good=_kueue(
        "ProvisioningRequestConfig", "queued", f"provisioningClassName: {PROVISIONING_CLASS}"
    ),
)
def queued_without_class(obj: Object, context: Context) -> Iterator[Hit]:
    name = as_text(obj.spec.get("provisioningClassName"))
    if obj.kind == "ProvisioningRequestConfig" and name not in _CLASSES:
        message = f"{name or 'none'} is no class of an autoscaler"
        yield Hit(("spec", "provisioningClassName"), message)
    for pod in obj.pods:
        if ANNOTATION_CONSUMES in pod.annotations and _CLASS_ANNOTATION not in pod.annotations:
            yield Hit((*pod.path, "metadata", "annotations"), f"has no {_CLASS_ANNOTATION}")
    if not any(_tolerates_queued(pod) for pod in obj.pods):
        return
    queues = context.index.find_cluster_queues(obj, obj.queue)
    if queues and not any(_has_admission_check(queue) for queue in queues):
        message = f"ClusterQueue {queues[0].name} has no admission check that requests nodes"
        yield Hit(obj.queue_path, message)


def _tolerates_queued(pod: Pod) -> bool:
    """Returns whether a pod names the taint of queued nodes in a toleration."""
    for _, toleration in pod.tolerations:
        if toleration.get("key") and tolerates(toleration, QUEUED_TAINT):
            return True
    return False


def _has_admission_check(queue: Object) -> bool:
    spec = queue.spec
    return bool(spec.get("admissionChecks") or spec.get("admissionChecksStrategy"))


@rule(
    "HF316",
    "queue-admits-nothing",
    Severity.ERROR,
    on=Object,
    kinds=("ClusterQueue",),
    what="A ClusterQueue has no namespaceSelector, or flavors without the resources it covers.",
    why="Without a selector no namespace may use it; its webhook refuses the second.",
    source=DOC_KUEUE + "concepts/cluster_queue/",
    fix="namespaceSelector: {} for all namespaces; the same resources in each flavor",
    bad=_cluster().replace("namespaceSelector: {}, ", ""),
    good=_GOOD,
)
def queue_admits_nothing(obj: Object, context: Context) -> Iterator[Hit]:
    if obj.spec.get("namespaceSelector") is None:
        yield Hit(("spec",), "has no namespaceSelector: no namespace may use it")
    for index, group in enumerate(as_list(obj.spec.get("resourceGroups"))):
        covered = sorted(as_texts(dig(group, "coveredResources")))
        names = list_names(dig(group, "flavors"))
        for number, name in enumerate(names):
            if name and name in names[:number]:
                path = ("spec", "resourceGroups", index, "flavors", number, "name")
                yield Hit(path, f"flavor {name} is listed twice")
        for number, flavor in enumerate(as_list(dig(group, "flavors"))):
            lent = sorted(list_names(dig(flavor, "resources")))
            if covered and lent and lent != covered:
                path = ("spec", "resourceGroups", index, "flavors", number, "resources")
                yield Hit(path, f"has {', '.join(lent)}; covered are {', '.join(covered)}")
