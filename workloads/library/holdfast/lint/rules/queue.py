"""HF306 to HF315: Kueue's queues, quotas and flavors."""

from collections.abc import Iterator
from typing import Any

from holdfast.lint.document import Path
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.objects import Job, Object, as_list, as_map, as_text, dig, near
from holdfast.lint.platform import tolerates
from holdfast.lint.registry import Context, rule
from holdfast.lint.world import QUEUED_RESOURCES
from holdfast.support.values import quantity
from holdfast.vocabulary.kubernetes import ANNOTATION_CONSUMES, LABEL_QUEUE, PROVISIONING_CLASS
from holdfast.vocabulary.pools import GPU_RESOURCE, LABEL_POOL_CLASS, LABEL_ROLE, QUEUED_TAINT

DOC_KUEUE = "https://kueue.sigs.k8s.io/docs/"
_AT = ("metadata", "labels", LABEL_QUEUE)
_SHOWN = {
    GPU_RESOURCE: "{:g} GPUs",
    "cpu": "{:g} CPUs",
    "memory": "{:g} GiB of memory",
}


def _kueue(kind: str, name: str, spec: str) -> str:
    return (
        f"apiVersion: kueue.x-k8s.io/v1beta2\nkind: {kind}\nmetadata: {{name: {name}}}\nspec:"
        f" {{{spec}}}\n---\n"
    )


def _local(cluster_queue: str = "gpus") -> str:
    return _kueue("LocalQueue", "spot, namespace: training", f"clusterQueue: {cluster_queue}")


def _flavor(pool_class: str = "spot-l4") -> str:
    return _kueue(
        "ResourceFlavor", "spot", f"nodeLabels: {{holdfast.dev/pool-class: {pool_class}}}"
    )


def _cluster(flavor: str = "spot", gpus: int = 4) -> str:
    lent = f"{{name: {flavor}, resources: [{{name: nvidia.com/gpu, nominalQuota: {gpus}}}]}}"
    return _kueue(
        "ClusterQueue",
        "gpus",
        f"resourceGroups: [{{coveredResources: [nvidia.com/gpu], flavors: [{lent}]}}]",
    )


def _job(queue: str = "spot") -> str:
    main = "{name: main, image: train, resources: {limits: {nvidia.com/gpu: 1}}}"
    return (
        "apiVersion: batch/v1\nkind: Job\nmetadata: {name: train, namespace: training, labels:"
        f" {{{LABEL_QUEUE}: {queue}}}}}\nspec: {{parallelism: 4, completions: 4, template: {{spec:"
        f" {{containers: [{main}]}}}}}}\n"
    )


_SOUND = _cluster() + _flavor() + _local()


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
    good=_SOUND,
)
def queue_unknown(obj: Object, context: Context) -> Iterator[Hit]:
    name = as_text(as_map(obj.metadata.get("labels")).get(LABEL_QUEUE))
    queues = context.world.within("LocalQueue", obj.namespace)
    if name and queues and name not in [queue.name for queue in queues]:
        there = ", ".join(sorted(queue.name for queue in queues))
        yield Hit(_AT, f"no LocalQueue {name} in {obj.namespace}; there are {there}")
    elsewhere = [q.namespace for q in context.world.all_named("LocalQueue", name) if q.namespace]
    if name and not queues and obj.namespace and elsewhere:
        yield Hit(_AT, f"LocalQueue {name} is in {elsewhere[0]}, not in {obj.namespace}")


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
    good=_SOUND,
)
def cluster_queue_unknown(obj: Object, context: Context) -> Iterator[Hit]:
    name = as_text(obj.spec.get("clusterQueue"))
    known = context.world.by_kind.get("ClusterQueue", [])
    if known and not context.world.named("ClusterQueue", name):
        there = ", ".join(sorted(queue.name for queue in known)[:5])
        yield Hit(("spec", "clusterQueue"), f"no ClusterQueue {name}; there are {there}")


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
    good=_SOUND,
)
def flavor_unknown(obj: Object, context: Context) -> Iterator[Hit]:
    for path, flavor in _flavors(obj) if context.world.by_kind.get("ResourceFlavor") else ():
        name = as_text(flavor.get("name"))
        if not context.world.named("ResourceFlavor", name):
            yield Hit((*path, "name"), f"no ResourceFlavor {name}")


def _flavors(queue: Object) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Each flavor of a ClusterQueue, with its place."""
    for g, group in enumerate(
        as_list(queue.spec.get("resourceGroups")) if queue.kind == "ClusterQueue" else []
    ):
        for f, flavor in enumerate(as_list(dig(group, "flavors"))):
            yield ("spec", "resourceGroups", g, "flavors", f), as_map(flavor)


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
    good=_SOUND,
)
def quota_below_the_gang(obj: Object, context: Context) -> Iterator[Hit]:
    name = as_text(as_map(obj.metadata.get("labels")).get(LABEL_QUEUE))
    local = context.world.named("LocalQueue", name, obj.namespace) if name and obj.jobs else None
    if local:
        queues = context.world.all_named("ClusterQueue", as_text(local.spec.get("clusterQueue")))
    else:
        queues = []
    for resource in QUEUED_RESOURCES if queues else ():
        asked = max((_asked(job, resource) for job in obj.jobs), default=0.0)
        most = context.world.most_lent(queues, resource)
        # A queue without a quota on CPU or memory does not count them.
        most = 0.0 if most is None and resource == GPU_RESOURCE else most
        if asked and most is not None and most < asked:
            unit = 2**30 if resource == "memory" else 1
            wants, lends = (_SHOWN[resource].format(amount / unit) for amount in (asked, most))
            yield Hit(_AT, f"asks for {wants}, its queue lends at most {lends}")


def _asked(job: Job, resource: str) -> float:
    """By all pods that have to start together."""
    least = quantity(
        as_map(job.owner.metadata.get("annotations")).get("kueue.x-k8s.io/job-min-parallelism")
    )
    containers = [c for c in job.pod.containers if "containers" in c.path] if job.pod else []
    each = sum(quantity(c.request(resource)) or 0.0 for c in containers)
    return max(0.0, each) * (min(least, job.parallelism) if least is not None else job.parallelism)


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
    good=_SOUND,
)
def quota_over_capacity(obj: Object, context: Context) -> Iterator[Hit]:
    platform = context.platform
    most = sum(p.max_nodes * p.gpus_per_node for p in platform.pools) + sum(platform.caps.values())
    for path, flavor in _flavors(obj):
        for r, resource in enumerate(as_list(flavor.get("resources"))):
            lent = quantity(dig(resource, "nominalQuota")) or 0
            if dig(resource, "name") == GPU_RESOURCE and lent > most:
                basis = platform.basis(
                    platform.pools[0], f"all pools and caps together have {most} GPUs"
                )
                yield Hit((*path, "resources", r, "nominalQuota"), f"lends {lent:g} GPUs", basis)


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
def flavor_of_no_pool(obj: Object, context: Context) -> Iterator[Hit]:
    """By the platform's own labels only: nodes of other pools have labels that are not known here."""
    for key in (LABEL_POOL_CLASS, LABEL_ROLE) if obj.kind == "ResourceFlavor" else ():
        value = as_text(as_map(obj.spec.get("nodeLabels")).get(key))
        known = sorted(context.platform.label_values.get(key, ()))
        if value and value not in known:
            meant = near(value, known)
            hint = f"; did you mean {meant}?" if meant else ""
            yield Hit(("spec", "nodeLabels", key), f"no pool has {key}={value}{hint}")


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
    bad=_SOUND + _job().replace(f", labels: {{{LABEL_QUEUE}: spot}}", ""),
    good=_SOUND,
)
def work_without_queue(obj: Object, context: Context) -> Iterator[Hit]:
    named = as_map(obj.metadata.get("labels")) | as_map(obj.metadata.get("annotations"))
    queues = [queue.name for queue in context.world.within("LocalQueue", obj.namespace)]
    # Kueue takes work without a label into a queue of the name `default`.
    if LABEL_QUEUE in named or not queues or "default" in queues:
        return
    if obj.spec.get("suspend") is True:
        yield Hit(("spec", "suspend"), f"no queue starts it; there are {', '.join(sorted(queues))}")
    elif any(pod.gpus for pod in obj.pods):
        yield Hit(("metadata",), f"takes GPUs past the queues {', '.join(sorted(queues))}")


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
        yield Hit(
            ("spec", "provisioningClassName"), f"{name or 'none'} is no class of an autoscaler"
        )
    for pod in obj.pods:
        if ANNOTATION_CONSUMES in pod.annotations and _CLASS_ANNOTATION not in pod.annotations:
            yield Hit((*pod.path, "metadata", "annotations"), f"has no {_CLASS_ANNOTATION}")
    local = context.world.named(
        "LocalQueue", as_text(dig(obj.metadata, "labels", LABEL_QUEUE)), obj.namespace
    )
    named = [
        t
        for pod in obj.pods
        for _, t in pod.tolerations
        if t.get("key") and tolerates(t, QUEUED_TAINT)
    ]
    if local and named:
        queues = context.world.all_named("ClusterQueue", as_text(local.spec.get("clusterQueue")))
    else:
        queues = []
    if queues and not any(
        q.spec.get("admissionChecks") or q.spec.get("admissionChecksStrategy") for q in queues
    ):
        yield Hit(_AT, f"ClusterQueue {queues[0].name} has no admission check that requests nodes")
