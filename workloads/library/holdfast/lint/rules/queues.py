"""HF819: objects of Kueue that contradict each other.

Why it is so: infra/decisions/0200.
"""

from collections.abc import Iterator

from holdfast.lint.accessors import list_names
from holdfast.lint.document import Path
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.objects import Object, as_int, as_map, as_maps, as_text, as_texts, dig
from holdfast.lint.registry import Context, rule
from holdfast.support.values import quantity

DOC_QUEUE = "https://kueue.sigs.k8s.io/docs/concepts/cluster_queue/"
_MIN_PODS = "kueue.x-k8s.io/job-min-parallelism"


def _write_queue(lending: int) -> str:
    return f"""\
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata:
  name: any
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata:
  name: research
spec:
  cohortName: all
  namespaceSelector: {{}}
  resourceGroups:
  - coveredResources:
    - cpu
    flavors:
    - name: any
      resources:
      - name: cpu
        nominalQuota: 8
        lendingLimit: {lending}
"""


@rule(
    "HF819",
    "queue-contradicts",
    Severity.ERROR,
    on=Object,
    kinds=("ClusterQueue", "ResourceFlavor", "Job"),
    what="A queue, a flavor or a job of Kueue contradicts itself or the objects of its files.",
    why="Kueue refuses the object, or admits no job by it.",
    source=DOC_QUEUE,
    fix="lend no more than the quota; list resources in the order of coveredResources",
    bad=_write_queue(16),
    good=_write_queue(4),
)
def check_queues(obj: Object, context: Context) -> Iterator[Hit]:
    if obj.kind == "ResourceFlavor":
        name = as_text(obj.spec.get("topologyName"))
        names = context.index.list_names("Topology")
        if name and names and name not in names:
            yield Hit(("spec", "topologyName"), f"no Topology {name}; there are {', '.join(names)}")
    if obj.kind == "Job":
        yield from _check_least(obj)
    if obj.kind == "ClusterQueue":
        for index, group in enumerate(as_maps(obj.spec.get("resourceGroups"))):
            covered = as_texts(group.get("coveredResources"))
            for number, flavor in enumerate(as_maps(group.get("flavors"))):
                path = ("spec", "resourceGroups", index, "flavors", number, "resources")
                names = list_names(flavor.get("resources"))
                if names != covered and sorted(names) == sorted(covered):
                    yield Hit(path, f"is not in the order of {', '.join(covered)}")
                yield from _check_lending(path, as_maps(flavor.get("resources")))
        yield from _check_spaces(obj, context)


def _check_least(obj: Object) -> Iterator[Hit]:
    text = as_text(obj.annotations.get(_MIN_PODS))
    pods = as_int(obj.spec.get("parallelism")) or 1
    if text.isdecimal() and int(text[:9]) > pods:
        path = ("metadata", "annotations", _MIN_PODS)
        yield Hit(path, f"at least {text} pods, and parallelism is {pods}")


def _check_lending(path: Path, resources: list[dict[str, object]]) -> Iterator[Hit]:
    for index, resource in enumerate(resources):
        lent = quantity(resource.get("lendingLimit"))
        quota = quantity(resource.get("nominalQuota"))
        if lent is not None and quota is not None and lent > quota:
            message = f"lends {resource['lendingLimit']} of {resource['nominalQuota']}"
            yield Hit((*path, index, "lendingLimit"), message)


def _check_spaces(obj: Object, context: Context) -> Iterator[Hit]:
    """Yields LocalQueues whose namespace lacks the labels that the ClusterQueue selects."""
    selected = as_map(dig(obj.spec, "namespaceSelector", "matchLabels"))
    for queue in context.index.by_kind.get("LocalQueue", []):
        if queue.spec.get("clusterQueue") != obj.name or not queue.namespace:
            continue
        namespaces = context.index.find_all("Namespace", queue.namespace)
        for key, value in selected.items() if len(namespaces) == 1 else ():
            labels = namespaces[0].labels | {"kubernetes.io/metadata.name": queue.namespace}
            if labels.get(key) != value:
                path = ("spec", "namespaceSelector", "matchLabels", key)
                yield Hit(path, f"the namespace {queue.namespace} has no label {key}={value}")
