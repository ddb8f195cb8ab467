"""HF13x and HF30x: disruption budgets and priorities of jobs on Spot."""

import re
from collections.abc import Iterator

from holdfast.lint.finding import Hit, Severity
from holdfast.lint.objects import Object, Pod, as_int, as_map, as_text, dig
from holdfast.lint.registry import Context, rule
from holdfast.vocabulary.kubernetes import PRIORITIES

DOC_PDB = "https://kubernetes.io/docs/tasks/run-application/configure-pdb/"
DOC_PRIORITY = "https://kubernetes.io/docs/concepts/scheduling-eviction/pod-priority-preemption/"
_PERCENT = re.compile(r"\d{1,3}%")
_PLACEHOLDER = re.compile(r"[$<{]")
MAX_USER_PRIORITY = 1_000_000
# The platform's own manifests make these; a repository that uses them need not repeat them.
PLATFORM_PRIORITIES = {name: priority.value for name, priority in PRIORITIES.items()}


def _budget(limit: str, reason: str = "") -> str:
    """Writes a budget over the pods of a Job on Spot."""
    annotations = f", annotations: {{holdfast.dev/reason: {reason}}}" if reason else ""
    return f"""\
spec: {{template: {{metadata: {{labels: {{app: train}}}}}}}}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {{name: train, namespace: training{annotations}}}
spec:
  {limit}
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector: {{matchLabels: {{app: train}}}}
"""


@rule(
    "HF133",
    "pdb-believed-to-stop-preemption",
    Severity.INFO,
    on=Object,
    kinds=("PodDisruptionBudget",),
    what="All pods of a PodDisruptionBudget run on Spot.",
    why="Preemption ignores budgets. On Spot a budget only slows voluntary drains.",
    source=DOC_PDB,
    fix="name the eviction that it is for in the annotation holdfast.dev/reason",
    base="job",
    bad=_budget("minAvailable: 1"),
    good=_budget("minAvailable: 1", "drains of a gang"),
)
def pdb_on_spot(obj: Object, context: Context) -> Iterator[Hit]:
    pods = context.index.select_pods(obj.namespace, obj.spec.get("selector"))
    is_explained = "holdfast.dev/reason" in obj.annotations
    if pods and not is_explained and all(context.place(pod).on_spot for pod in pods):
        yield Hit(("spec", "selector"), "its pods run on Spot, where preemption ignores budgets")


@rule(
    "HF134",
    "pdb-needs-count-for-jobs",
    Severity.ERROR,
    on=Object,
    kinds=("PodDisruptionBudget",),
    what="A PodDisruptionBudget over pods of a Job has maxUnavailable or a percentage.",
    why=(
        "Both need the controller's total, and a Job has none: the budget does not sync and blocks"
        " every eviction."
    ),
    source=DOC_PDB + "#arbitrary-controllers-and-selectors",
    fix="write minAvailable as a number",
    base="job",
    bad=_budget("maxUnavailable: 1", "gang"),
    good=_budget("minAvailable: 1", "gang"),
)
def pdb_needs_count(obj: Object, context: Context) -> Iterator[Hit]:
    field = "minAvailable" if as_text(obj.spec.get("minAvailable")) else "maxUnavailable"
    pods = context.index.select_pods(obj.namespace, obj.spec.get("selector"))
    if dig(obj.spec, field) is not None and any(pod.job for pod in pods):
        yield Hit(("spec", field), "has no total to count from: its pods belong to a Job")


@rule(
    "HF137",
    "budget-stops-drains",
    Severity.ERROR,
    on=Object,
    kinds=("PodDisruptionBudget",),
    what="A PodDisruptionBudget allows no eviction.",
    why=(
        "Each drain of a node waits for its timeout, an hour on an upgrade of GKE, and then"
        " evicts the pods anyway."
    ),
    source=DOC_PDB,
    fix="allow one eviction: maxUnavailable: 1, for a Job minAvailable below its pods",
    base="job",
    bad=_budget("minAvailable: 100%", "gang"),
    good=_budget("minAvailable: 0", "gang"),
)
def budget_stops_drains(obj: Object, context: Context) -> Iterator[Hit]:
    min_available = obj.spec.get("minAvailable")
    pods = context.index.select_pods(obj.namespace, obj.spec.get("selector"))
    total = _count_pods(pods, context)
    # Autoscaled pods are at most as many as their scalers allow.
    total = total or sum(_count_scaled(pod, context) for pod in pods)
    if min_available == "100%" or (total and (as_int(min_available) or 0) >= total):
        yield Hit(("spec", "minAvailable"), f"keeps {min_available} of {total or 'all'} pods")
    elif (as_int(min_available) or 0) > 0 and _is_least(as_int(min_available), pods, context):
        message = f"keeps {min_available} pods, which is all when the autoscaler is at its least"
        yield Hit(("spec", "minAvailable"), message)
    elif obj.spec.get("maxUnavailable") in (0, "0", "0%"):
        yield Hit(("spec", "maxUnavailable"), "keeps all pods")


def _count_pods(pods: list[Pod], context: Context) -> int:
    """Counts the pods that run at once, at least; 0 where the files do not say how many."""
    total = 0
    for pod in pods:
        if pod.job:
            total += pod.replicas
            continue
        replicas = as_int(pod.owner.spec.get("replicas"))
        if replicas is None or context.index.find_scalers(pod.owner):
            return 0
        total += replicas
    return total


def _count_largest(pods: list[Pod], context: Context) -> int:
    """Returns the most replicas of the autoscaler of a single workload; 0 where it has none."""
    scalers = context.index.find_scalers(pods[0].owner) if len(pods) == 1 else []
    return as_int(scalers[0].spec.get("maxReplicas")) or 0 if len(scalers) == 1 else 0


def _is_least(min_available: int | None, pods: list[Pod], context: Context) -> bool:
    """Returns whether a budget keeps all pods that a workload has at its autoscaler's minimum."""
    if len(pods) != 1 or min_available is None:
        return False
    for scaler in context.index.find_scalers(pods[0].owner):
        if min_available >= (as_int(scaler.spec.get("minReplicas")) or 1):
            return True
    return False


def _count_scaled(pod: Pod, context: Context) -> int:
    """Counts the pods of a workload at the most; 0 where no autoscaler of the files says so."""
    replicas = 0
    for scaler in context.index.find_scalers(pod.owner):
        replicas = max(replicas, as_int(scaler.spec.get("maxReplicas")) or 0)
    return replicas


@rule(
    "HF138",
    "budget-protects-nothing",
    Severity.ERROR,
    on=Object,
    kinds=("PodDisruptionBudget",),
    what=(
        "A PodDisruptionBudget has no bound, lets all pods go at once, or is over every pod of its"
        " namespace."
    ),
    why="A drain ends all replicas together; over every pod it stops drains of others.",
    source=DOC_PDB,
    fix="maxUnavailable: 1, and the labels of one workload",
    base="job",
    bad=_budget("maxUnavailable: 100%", "gang"),
    good=_budget("minAvailable: 0", "gang"),
)
def check_budget(obj: Object, context: Context) -> Iterator[Hit]:
    min_available = obj.spec.get("minAvailable")
    max_unavailable = obj.spec.get("maxUnavailable")
    if min_available is None and max_unavailable is None:
        yield Hit(("spec",), "has neither minAvailable nor maxUnavailable")
    bounds = {"minAvailable": min_available, "maxUnavailable": max_unavailable}
    for name, bound in bounds.items():
        text = as_text(bound)
        if text and not _PLACEHOLDER.search(text) and not _PERCENT.fullmatch(text):
            yield Hit(("spec", name), f"{text} is no number and no percentage, as 50%")
    selector = as_map(obj.spec.get("selector"))
    if not any(selector.values()):
        yield Hit(("spec", "selector"), "selects every pod of its namespace")
    pods = context.index.select_pods(obj.namespace, selector)
    total = _count_pods(pods, context)
    max_unavailable = bounds["maxUnavailable"]
    total = total or _count_largest(pods, context)
    is_all = total > 1 and (as_int(max_unavailable) or 0) >= total
    if max_unavailable == "100%" or is_all:
        yield Hit(("spec", "maxUnavailable"), f"lets {total or 'all'} pods go at once")


def _class(name: str, value: int) -> str:
    return (
        f"apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {{name: {name}}}\nvalue:"
        f" {value}\n"
    )


@rule(
    "HF301",
    "priority-class-unknown",
    Severity.ERROR,
    on=Pod,
    what="The pod names a PriorityClass that neither the files nor the platform have.",
    why="The API server refuses every pod of it, and the Job waits without an error.",
    source=DOC_PRIORITY,
    fix=f"use one of {', '.join(PLATFORM_PRIORITIES)}, or add the class",
    base="job-pod",
    bad="""\
priorityClassName: spot-low
""",
)
def priority_class_unknown(pod: Pod, context: Context) -> Iterator[Hit]:
    name = as_text(pod.spec.get("priorityClassName"))
    if name and name not in PLATFORM_PRIORITIES | context.index.priorities:
        yield Hit((*pod.spec_path, "priorityClassName"), f"no PriorityClass is named {name}")


@rule(
    "HF302",
    "priority-positive-on-spot",
    Severity.ERROR,
    on=Pod,
    what="A Spot pod has a priority above zero.",
    why="When Spot capacity shrinks, the pod evicts other pods instead of waiting.",
    source=DOC_PRIORITY,
    fix="use spot-workload-low",
    base="job-pod",
    bad="""\
priorityClassName: serving
""",
)
def priority_positive_on_spot(pod: Pod, context: Context) -> Iterator[Hit]:
    name = as_text(pod.spec.get("priorityClassName"))
    value = (PLATFORM_PRIORITIES | context.index.priorities).get(name, 0)
    ties = pod.job is not None or context.place(pod).ties_to_spot
    if value > 0 and ties and context.place(pod).on_spot:
        yield Hit((*pod.spec_path, "priorityClassName"), f"{name} is {value}, on Spot")


@rule(
    "HF303",
    "priority-missing-on-spot",
    Severity.WARNING,
    on=Pod,
    what="A Job on Spot or flex-start has no PriorityClass.",
    why=(
        "Its priority is then 0 with preemption: it does not yield to pods without a class, and"
        " evicts those below."
    ),
    source=DOC_PRIORITY,
    fix="set priorityClassName: spot-workload-low, on flex-start flex-workload",
    base="job-pod",
    bad="""\
priorityClassName: null
""",
)
def priority_missing_on_spot(pod: Pod, context: Context) -> Iterator[Hit]:
    if pod.job and not pod.spec.get("priorityClassName") and context.place(pod).interruptible:
        yield Hit(pod.spec_path, "has no priority class, and so does not yield")


@rule(
    "HF304",
    "priority-too-high",
    Severity.ERROR,
    on=Object,
    kinds=("PriorityClass",),
    what="A PriorityClass can evict the platform's own pods, or is the default for all pods.",
    why=(
        "Controllers that were evicted by work cannot restart it. A global default changes"
        " pods without a review."
    ),
    source=DOC_PRIORITY,
    fix=f"use at most {MAX_USER_PRIORITY}, without globalDefault",
    bad=_class("urgent", 900_000_000),
    good=_class("urgent", 100),
)
def priority_too_high(obj: Object, context: Context) -> Iterator[Hit]:
    value = as_int(obj.body.get("value"))
    if value is not None and value > MAX_USER_PRIORITY:
        yield Hit(("value",), f"{value} is above every class of the platform")
    if obj.name.startswith("system-"):
        yield Hit(("metadata", "name"), "names that begin with system- are of Kubernetes itself")
    if obj.body.get("globalDefault") is True:
        yield Hit(("globalDefault",), "applies to every pod that names no class")


@rule(
    "HF305",
    "priority-of-spot-class-positive",
    Severity.ERROR,
    on=Object,
    kinds=("PriorityClass",),
    what="A PriorityClass has Spot in its name and a value that is not negative.",
    why="Pods without a class have 0. Spot work has to yield to them.",
    source=DOC_PRIORITY,
    fix="give it a value below 0",
    bad=_class("spot-jobs", 50),
    good=_class("spot-jobs", -10),
)
def positive_priority_on_spot_class(obj: Object, context: Context) -> Iterator[Hit]:
    value = as_int(obj.body.get("value"))
    if "spot" in obj.name and value is not None and value >= 0:
        yield Hit(("value",), f"{obj.name} has the value {value}")
