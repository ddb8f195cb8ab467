"""HF317 and HF318: queues and flavors of Kueue that do not meet their jobs."""

from collections.abc import Iterator

from holdfast.lint.document import Path
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.known_values import load_table
from holdfast.lint.objects import Object, Pod, as_list, as_map, as_text, as_texts, dig
from holdfast.lint.registry import Context, rule
from holdfast.lint.spelling import suggest
from holdfast.vocabulary.kubernetes import LABEL_JOB_PRIORITY, LABEL_NAMESPACE, LABEL_QUEUE
from holdfast.vocabulary.pools import GPU_RESOURCE, LABEL_ACCELERATOR

DOC_QUEUE = "https://kueue.sigs.k8s.io/docs/concepts/cluster_queue/"
DOC_FLAVOR = "https://kueue.sigs.k8s.io/docs/concepts/resource_flavor/"


def _write_queue(space: str) -> str:
    return f"""\
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata:
  name: research
  namespace: research
spec:
  clusterQueue: research
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata:
  name: research
spec:
  namespaceSelector:
    matchLabels:
      kubernetes.io/metadata.name: {space}
  resourceGroups:
  - coveredResources:
    - cpu
    flavors:
    - name: spot
      resources:
      - name: cpu
        nominalQuota: 8
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata:
  name: spot
"""


@rule(
    "HF317",
    "queue-shut-to-its-namespace",
    Severity.ERROR,
    on=Object,
    kinds=("ClusterQueue",),
    what="A ClusterQueue admits no namespace of its LocalQueues, or borrows without a cohort.",
    why="Kueue admits no job of the LocalQueue; its webhook refuses limits without a cohort.",
    source=DOC_QUEUE,
    fix="select the namespaces of the LocalQueues; name a cohort",
    bad=_write_queue("default"),
    good=_write_queue("research"),
)
def check_spaces(obj: Object, context: Context) -> Iterator[Hit]:
    labels = as_map(dig(obj.spec, "namespaceSelector", "matchLabels"))
    name = as_text(labels.get(LABEL_NAMESPACE))
    spaces: list[str] = []
    for local_queue in context.index.by_kind.get("LocalQueue", []):
        if local_queue.spec.get("clusterQueue") == obj.name:
            spaces.append(local_queue.namespace)
    if name and all(spaces) and spaces and name not in spaces:
        path = ("spec", "namespaceSelector", "matchLabels", LABEL_NAMESPACE)
        yield Hit(path, f"its LocalQueues are in {', '.join(spaces)}, not in {name}")
    if obj.spec.get("cohort") or obj.spec.get("cohortName"):
        return
    for index, group in enumerate(as_list(obj.spec.get("resourceGroups"))):
        for number, flavor in enumerate(as_list(dig(group, "flavors"))):
            for place, resource in enumerate(as_list(dig(flavor, "resources"))):
                for field in ("borrowingLimit", "lendingLimit"):
                    path = ("spec", "resourceGroups", index, "flavors", number)
                    if dig(resource, field) is not None:
                        yield Hit((*path, "resources", place, field), "there is no cohort")


def _write_flavor(accelerator: str) -> str:
    return f"""\
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {{name: gpus}}
spec: {{nodeLabels: {{cloud.google.com/gke-accelerator: {accelerator}}}}}
"""


@rule(
    "HF318",
    "flavor-without-nodes",
    Severity.ERROR,
    on=Object,
    kinds=("ResourceFlavor", "Job", "JobSet"),
    what="A ResourceFlavor has labels that no node has, or that its jobs do not select.",
    why="Kueue finds no flavor for the job, or its pods stay Pending and hold the quota.",
    source=DOC_FLAVOR,
    fix="write the labels of the nodes, as the jobs select them",
    bad=_write_flavor("nvidia-tesla-l4"),
    good=_write_flavor("nvidia-l4"),
)
def check_flavors(obj: Object, context: Context) -> Iterator[Hit]:
    if obj.kind == "ResourceFlavor":
        yield from _check_labels(obj)
        return
    yield from _check_priority(obj, context)
    queue = obj.queue
    yield from _check_cover(obj, queue, context)
    flavors = context.index.list_flavors(obj, queue) if queue else None
    if flavors is None:
        return
    for pod in obj.pods:
        if not any(_may_run(pod, flavor) for flavor in flavors):
            message = f"no flavor of queue {queue} has the nodes that the pods select"
            yield Hit(("metadata", "labels", LABEL_QUEUE), message)
            return


def _check_cover(obj: Object, queue: str, context: Context) -> Iterator[Hit]:
    """Yields a resource that a job requests and its queue does not cover."""
    cluster_queues = context.index.find_cluster_queues(obj, queue) if queue else []
    covered: set[str] = set()
    for cluster_queue in cluster_queues:
        for group in as_list(cluster_queue.spec.get("resourceGroups")):
            covered |= set(as_texts(dig(group, "coveredResources")))
    for pod in obj.pods if covered else ():
        for resource in ("cpu", "memory", GPU_RESOURCE):
            if pod.request(resource) and resource not in covered:
                message = f"queue {queue} covers {', '.join(sorted(covered))}, not {resource}"
                yield Hit(("metadata", "labels", LABEL_QUEUE), message)


def _check_labels(flavor: Object) -> Iterator[Hit]:
    accelerators = load_table("machines")["accelerators"]
    for key, value in as_map(flavor.spec.get("nodeLabels")).items():
        path: Path = ("spec", "nodeLabels", key)
        values = load_table("node_labels").get(key, [value])
        if value not in values:
            yield Hit(path, f"no node has {key}={value}; write true in quotes")
        text = as_text(value)
        is_gpu = key == LABEL_ACCELERATOR and text.startswith("nvidia") and "$" not in text
        if is_gpu and text not in accelerators:
            yield Hit(path, f"no node has {key}={text}{suggest(text, accelerators)}")


def _check_priority(obj: Object, context: Context) -> Iterator[Hit]:
    """Yields a priority that the files do not have, where they have others."""
    names = context.index.list_names("WorkloadPriorityClass")
    name = as_text(obj.labels.get(LABEL_JOB_PRIORITY))
    is_ours = obj.namespace in context.platform.job_namespaces
    if name and names and name not in names and not is_ours:
        message = f"no WorkloadPriorityClass {name}; there are {', '.join(names)}"
        yield Hit(("metadata", "labels", LABEL_JOB_PRIORITY), message)


def _may_run(pod: Pod, flavor: Object) -> bool:
    """Returns whether a flavor has no other value for any label that a pod selects."""
    selector = as_map(pod.spec.get("nodeSelector"))
    for key, value in as_map(flavor.spec.get("nodeLabels")).items():
        if key in selector and selector[key] != value:
            return False
    return True
