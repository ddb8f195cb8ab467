"""HF754 to HF759 and HF749: the order of priority classes, terms and machines."""

import re
from collections.abc import Iterator
from typing import Any

from holdfast.lint.finding import Hit, Severity
from holdfast.lint.known_values import load_table
from holdfast.lint.objects import Object, Pod, as_int, as_list, as_map, as_maps, as_text, dig
from holdfast.lint.platform import find_gpu_counts
from holdfast.lint.registry import Context, rule
from holdfast.lint.spelling import count_differences, find_near
from holdfast.vocabulary.machines import ACCELERATORS

DOC_PRIORITY = "https://kubernetes.io/docs/concepts/scheduling-eviction/pod-priority-preemption/"
DOC_AFFINITY = "https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/"
DOC_CLASSES = (
    "https://cloud.google.com/kubernetes-engine/docs/concepts/about-custom-compute-classes"
)
_LOW = re.compile(
    r"(^|-)(batch|low|lowest|offline|background|best-effort|besteffort|spot|preemptible|opportunistic"
    r"|dev|experiments?|backfill|training|balloon|scavenger)(-|$)"
)
_HIGH = re.compile(
    r"(^|-)(high|highest|critical|online|serving|inference|prod|production|interactive|realtime"
    r"|real-time|user-facing)(-|$)"
)
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_CLASS_LABEL = "cloud.google.com/compute-class"
_BUILT_IN = (
    *("Accelerator", "Balanced", "Performance", "Scale-Out", "general-purpose"),
    *("autopilot", "autopilot-arm", "autopilot-spot", "autopilot-arm-spot", "gpu-performance"),
)
_MODES = ("ScaleUpAnyway", "DoNotScaleUp")
_LABEL_DOMAINS = ("cloud.google.com", "topology.kubernetes.io", "kubernetes.io", "topology.gke.io")
_PAUSE_IMAGE = re.compile(r"(^|/)pause(:|@|$)")
_CHEAP = re.compile(r"(^|-)(spot|cheap|batch|preemptible|low-cost)(-|$)")


def _classes(batch: int) -> str:
    return f"""\
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata:
  name: online-serving
value: 1000
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata:
  name: ml-batch
value: {batch}
"""


@rule(
    "HF755",
    "priorities-inverted",
    Severity.ERROR,
    on=Object,
    kinds=("PriorityClass", "WorkloadPriorityClass"),
    what="The class of batch work has a higher priority than that of what answers users.",
    why="When machines are short, batch pods evict the servers.",
    source=DOC_PRIORITY,
    fix="give the class of batch work the lower value",
    bad=_classes(1_000_000),
    good=_classes(100),
)
def priorities_inverted(obj: Object, context: Context) -> Iterator[Hit]:
    value = as_int(obj.body.get("value"))
    if value is None or not _LOW.search(obj.name) or _HIGH.search(obj.name):
        return
    for other in context.index.by_kind.get(obj.kind, []):
        other_value = as_int(other.body.get("value"))
        is_high = _HIGH.search(other.name) and not _LOW.search(other.name)
        if other.file == obj.file and is_high and other_value is not None and value > other_value:
            yield Hit(("value",), f"{value} is above {other.name}, which has {other_value}")
            return


def _terms(second: str) -> str:
    return f"""\
nodeSelector: {{cloud.google.com/gke-spot: null}}
affinity:
  nodeAffinity:
    {_REQUIRED}:
      nodeSelectorTerms:
      - matchExpressions:
        - {{key: cloud.google.com/gke-spot, operator: In, values: ["true"]}}
      {second}
"""


_ACCELERATOR = "- {key: cloud.google.com/gke-accelerator, operator: In, values: [nvidia-l4]}"


@rule(
    "HF756",
    "terms-joined-by-or",
    Severity.WARNING,
    on=Pod,
    what="Two node selector terms ask for different labels; a node needs only one of the terms.",
    why="Terms are joined by or: the pod may land on nodes that lack the other label.",
    source=DOC_AFFINITY,
    fix="put both expressions into one term",
    base="job-pod",
    bad=_terms(f"- matchExpressions:\n        {_ACCELERATOR}"),
    good=_terms(f"  {_ACCELERATOR}"),
)
def terms_joined_by_or(pod: Pod, context: Context) -> Iterator[Hit]:
    path = (*pod.spec_path, "affinity", "nodeAffinity", _REQUIRED, "nodeSelectorTerms")
    terms = as_list(dig(pod.owner.body, *path))
    keys: list[set[str]] = []
    for term in terms:
        expressions = as_maps(dig(term, "matchExpressions"))
        if any(item.get("operator") not in ("In", "Exists") for item in expressions):
            return
        keys.append({as_text(item.get("key")) for item in expressions})
    if len(keys) != 2 or not all(keys) or keys[0] & keys[1]:
        return
    names = [", ".join(sorted(group)) for group in keys]
    yield Hit(path, f"{names[0]} or {names[1]}: a node needs one of the two terms")


def _order(first: str, second: str) -> str:
    return f"""\
apiVersion: cloud.google.com/v1
kind: ComputeClass
metadata:
  name: batch-l4
spec:
  priorities:
    - machineFamily: g2
      spot: {first}
      gpu:
        type: nvidia-l4
        count: 1
        driverVersion: latest
    - machineFamily: g2
      spot: {second}
      gpu:
        type: nvidia-l4
        count: 1
        driverVersion: latest
  nodePoolAutoCreation:
    enabled: true
"""


@rule(
    "HF757",
    "spot-after-on-demand",
    Severity.WARNING,
    on=Object,
    kinds=("ComputeClass",),
    what="A ComputeClass for batch work or Spot tries on-demand machines before Spot.",
    why="Priorities are tried in order: nearly all nodes are bought at the full price.",
    source=DOC_CLASSES,
    fix="put the Spot priority first",
    bad=_order("false", "true"),
    good=_order("true", "false"),
)
def spot_after_on_demand(obj: Object, context: Context) -> Iterator[Hit]:
    if not _CHEAP.search(obj.name) and not _has_only_jobs(obj, context):
        return
    priorities = as_maps(obj.spec.get("priorities"))
    for index, priority in enumerate(priorities):
        earlier = [item for item in priorities[:index] if _is_on_demand(item)]
        if priority.get("spot") is True and any(_is_same(item, priority) for item in earlier):
            yield Hit(("spec", "priorities", index), "comes after the same machine on demand")
            return


def _is_on_demand(priority: dict[str, Any]) -> bool:
    is_reserved = bool(priority.get("reservations")) or bool(priority.get("flexStart"))
    return priority.get("spot") is not True and not is_reserved


def _is_same(priority: dict[str, Any], other: dict[str, Any]) -> bool:
    for field in ("machineFamily", "machineType"):
        if priority.get(field) != other.get(field):
            return False
    return as_map(priority.get("gpu")).get("type") == as_map(other.get("gpu")).get("type")


def _has_only_jobs(obj: Object, context: Context) -> bool:
    """Returns whether all pods that select a class are those of Jobs."""
    jobs = 0
    for pod in context.index.pods:
        if dig(pod.spec, "nodeSelector", _CLASS_LABEL) == obj.name:
            if pod.job is None:
                return False
            jobs += 1
    return jobs > 0


def _selecting(name: str) -> str:
    return (
        _order("true", "false")
        + f"""\
---
apiVersion: v1
kind: Pod
metadata: {{name: a, namespace: research}}
spec:
  nodeSelector: {{cloud.google.com/compute-class: {name}}}
  containers: [{{name: main, image: 'a:1', resources: {{limits: {{nvidia.com/gpu: 1}}}}}}]
"""
    )


@rule(
    "HF758",
    "compute-class-unknown",
    Severity.ERROR,
    on=Pod,
    what="A pod selects a ComputeClass that its files have under another name, or one of no class.",
    why="No node has the label: the pod stays Pending, and no node is made for it.",
    source=DOC_CLASSES,
    fix="write the name of the ComputeClass",
    bad=_selecting("l4-batch"),
    good=_selecting("batch-l4"),
)
def compute_class_unknown(pod: Pod, context: Context) -> Iterator[Hit]:
    for demand in context.place(pod).find_demands(_CLASS_LABEL):
        for name in map(str, demand.values):
            classes = context.index.by_kind.get("ComputeClass", [])
            names = [item.name for item in classes]
            if name in names or name in _BUILT_IN or demand.operator not in ("In", ""):
                continue
            neighbors = [item.name for item in classes if item.file == pod.owner.file]
            near_name = find_near(name, [*neighbors, *_BUILT_IN], 0.75)
            if len(neighbors) == 1 and not near_name:
                near_name = neighbors[0]
            if near_name:
                yield Hit(demand.path, f"no ComputeClass {name}; did you mean {near_name}?")


def _write_gpu_priority(gpu: str) -> str:
    return f"""\
apiVersion: cloud.google.com/v1
kind: ComputeClass
metadata: {{name: l4}}
spec:
  priorities:
  - {{machineFamily: g2, gpu: {{{gpu}, driverVersion: latest}}}}
  nodePoolAutoCreation: {{enabled: true}}
"""


@rule(
    "HF759",
    "class-asks-for-no-machine",
    Severity.ERROR,
    on=Object,
    kinds=("ComputeClass",),
    what="A ComputeClass names a GPU or a number of GPUs that no machine has, or an unknown rule.",
    why="The priority makes no node; an unknown value is refused.",
    source=DOC_CLASSES,
    fix="nvidia-l4 in 1, 2, 4 or 8; ScaleUpAnyway or DoNotScaleUp",
    bad=_write_gpu_priority("type: nvidia-l4, count: 3"),
    good=_write_gpu_priority("type: nvidia-l4, count: 2"),
)
def class_asks_for_no_machine(obj: Object, context: Context) -> Iterator[Hit]:
    for index, priority in enumerate(as_maps(obj.spec.get("priorities"))):
        path = ("spec", "priorities", index, "gpu")
        kind = as_text(dig(priority, "gpu", "type"))
        count = as_int(dig(priority, "gpu", "count"))
        known_kinds = set(ACCELERATORS) | set(load_table("machines")["accelerators"])
        if kind and kind not in known_kinds:
            hint = find_near(kind, known_kinds)
            suffix = f"; did you mean {hint}?" if hint else ""
            yield Hit((*path, "type"), f"no GPU {kind}{suffix}")
        elif kind and count and count not in find_gpu_counts(kind):
            counts = ", ".join(map(str, find_gpu_counts(kind)))
            if counts:
                yield Hit((*path, "count"), f"no machine has {count} of {kind}; they have {counts}")
    mode = obj.spec.get("whenUnsatisfiable")
    if mode not in (None, *_MODES):
        yield Hit(("spec", "whenUnsatisfiable"), f"no {mode}; there are {', '.join(_MODES)}")


def _write_labeled_pod(key: str) -> str:
    return f"""\
apiVersion: v1
kind: Pod
metadata:
  name: a
  namespace: research
spec:
  nodeSelector:
    {key}: 'true'
  containers:
    - name: main
      image: a:1
"""


@rule(
    "HF754",
    "node-label-misspelt",
    Severity.ERROR,
    on=Pod,
    what="A selected label of nodes is nearly one that GKE sets.",
    why="No node has it: the pod stays Pending.",
    source="https://cloud.google.com/kubernetes-engine/docs/concepts/node-labels",
    fix="correct the key",
    bad=_write_labeled_pod("cloud.google.com/gke-ephemeral-storage-local-sdd"),
    good=_write_labeled_pod("cloud.google.com/gke-ephemeral-storage-local-ssd"),
)
def node_label_misspelt(pod: Pod, context: Context) -> Iterator[Hit]:
    known_labels = load_table("selected_labels")["names"]
    for key in as_map(pod.spec.get("nodeSelector")):
        prefix, _, name = as_text(key).partition("/")
        if key in known_labels or not name or prefix not in _LABEL_DOMAINS:
            continue
        names = [label for label in known_labels if label.startswith(f"{prefix}/")]
        near_key = find_near(key, names, 0.9)
        if near_key and count_differences(key, near_key) <= 2:
            path = (*pod.spec_path, "nodeSelector", key)
            yield Hit(path, f"no node has a label {key}; did you mean {near_key}?", on_key=True)


def _write_placeholder(value: int) -> str:
    return f"""\
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata:
  name: headroom
value: {value}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: headroom
  namespace: research
spec:
  selector:
    matchLabels:
      app: headroom
  template:
    metadata:
      labels:
        app: headroom
    spec:
      priorityClassName: headroom
      containers:
        - name: pause
          image: registry.k8s.io/pause:3.10
"""


@rule(
    "HF749",
    "placeholder-stays",
    Severity.ERROR,
    on=Pod,
    what="The PriorityClass of a pod that only keeps room for others is not below theirs.",
    why=(
        "Pods without a class have priority 0 and evict only what is below: the nodes stay taken,"
        " and are paid for nothing."
    ),
    source="https://cloud.google.com/kubernetes-engine/docs/how-to/capacity-provisioning",
    fix="a PriorityClass with a value below 0, and above -10, below which no node is added",
    bad=_write_placeholder(1000),
    good=_write_placeholder(-5),
)
def placeholder_stays(pod: Pod, context: Context) -> Iterator[Hit]:
    images = [as_text(container.body.get("image")) for container in pod.containers]
    if not images or not all(map(_PAUSE_IMAGE.search, images)):
        return
    name = as_text(pod.spec.get("priorityClassName"))
    priority_class = context.index.find("PriorityClass", name)
    if priority_class is None:
        return
    value = as_int(priority_class.body.get("value"))
    if value is not None and value >= 0:
        yield Hit((*pod.spec_path, "priorityClassName"), f"{name} is {value}: it never gives way")
