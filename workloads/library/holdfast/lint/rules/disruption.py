"""HF13x: PodDisruptionBudgets, and what they can and cannot stop."""

from collections.abc import Iterator
from typing import Any

from holdfast.lint.finding import Hit, Severity
from holdfast.lint.objects import Object, Pod, as_int, as_map, as_text, dig
from holdfast.lint.registry import Context, rule

DOC_PDB = "https://kubernetes.io/docs/tasks/run-application/configure-pdb/"
_PDB = """\
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {{name: server, namespace: serving, annotations: {{holdfast.dev/reason: keep answering}}}}
spec: {{{spec}}}
"""
_GOOD = "maxUnavailable: 1, unhealthyPodEvictionPolicy: AlwaysAllow, selector: {matchLabels: {app: server}}"


def _example(spec: str) -> str:
    return _PDB.format(spec=spec)


@rule(
    "HF130", "pdb-blocks-every-drain", Severity.ERROR, on=Object,
    what="A PodDisruptionBudget that never allows an eviction.",
    why="Node upgrades and scale-down wait for it until they give up; Spot preemption does not ask it.",
    source=DOC_PDB, fix="allow at least one: maxUnavailable: 1",
    bad=_example(_GOOD.replace("maxUnavailable: 1", "maxUnavailable: 0")), good=_example(_GOOD),
)  # fmt: skip
def pdb_blocks_every_drain(obj: Object, context: Context) -> Iterator[Hit]:
    if obj.kind != "PodDisruptionBudget" or "holdfast.dev/reason-blocking" in as_map(obj.metadata.get("annotations")):
        return
    if _share(obj.spec.get("maxUnavailable")) == 0:
        yield Hit(("spec", "maxUnavailable"), "no pod may ever be evicted")
    least = obj.spec.get("minAvailable")
    pods = context.world.selected(obj.namespace, obj.spec.get("selector"))
    most = sum(_replicas(pod, context) for pod in pods)
    if least is not None and (_share(least) == 1.0 or (pods and (as_int(least) or 0) >= most)):
        yield Hit(("spec", "minAvailable"), f"no pod may ever be evicted: {least} of {most or 'all'} must stay")


def _replicas(pod: Pod, context: Context) -> int:
    """How many there may be: under an autoscaler as many as that allows."""
    scaler = context.world.scaler_of(pod.owner)
    return as_int(scaler.spec.get("maxReplicas")) or pod.replicas if scaler else pod.replicas


def _share(value: Any) -> float | None:
    """`0` and `0%` are 0.0, `100%` is 1.0; a count says nothing without the replicas."""
    text = as_text(value)
    if text.endswith("%") and text[:-1].isdecimal():
        return int(text[:-1]) / 100
    return 0.0 if as_int(value) == 0 else None


@rule(
    "HF131", "pdb-matches-nothing", Severity.WARNING, on=Object,
    what="A PodDisruptionBudget that selects no pod among the files examined.",
    why="It protects nothing, most often because a label was renamed.",
    source=DOC_PDB, fix="use the labels of the pod template",
    bad="""\
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: server, namespace: serving}
spec: {maxUnavailable: 1, unhealthyPodEvictionPolicy: AlwaysAllow, selector: {matchLabels: {app: sever}}}
---
apiVersion: v1
kind: Pod
metadata: {name: server, namespace: serving, labels: {app: server}}
spec: {containers: [{name: main, image: server}]}
""",
    good=_example(_GOOD),
)  # fmt: skip
def pdb_matches_nothing(obj: Object, context: Context) -> Iterator[Hit]:
    if obj.kind != "PodDisruptionBudget" or dig(obj.spec, "selector", "matchExpressions"):
        return
    here = context.world.pods_of(obj.namespace)
    if here and not context.world.selected(obj.namespace, obj.spec.get("selector")):
        yield Hit(
            ("spec", "selector"),
            f"selects none of the {len(here)} pod templates of namespace {obj.namespace or 'default'}",
        )


@rule(
    "HF132", "pdb-keeps-broken-pods", Severity.WARNING, on=Object,
    what="A PodDisruptionBudget without unhealthyPodEvictionPolicy: AlwaysAllow.",
    why="By default a pod that is not ready cannot be evicted while too few are healthy: a crash blocks every drain.",
    source=DOC_PDB, fix="set unhealthyPodEvictionPolicy: AlwaysAllow",
    bad=_example("maxUnavailable: 1, selector: {matchLabels: {app: server}}"), good=_example(_GOOD),
)  # fmt: skip
def pdb_keeps_broken_pods(obj: Object, context: Context) -> Iterator[Hit]:
    if obj.kind == "PodDisruptionBudget" and obj.spec.get("unhealthyPodEvictionPolicy") != "AlwaysAllow":
        yield Hit(("spec",), "pods that are not ready block a drain")


@rule(
    "HF133", "pdb-believed-to-stop-preemption", Severity.INFO, on=Object,
    what="A PodDisruptionBudget whose pods all run on Spot.",
    why="Preemption goes around budgets. It only slows voluntary drains there.",
    source=DOC_PDB, fix="say in annotation holdfast.dev/reason which eviction it is for",
    bad="""\
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: train, namespace: training}
spec: {maxUnavailable: 1, unhealthyPodEvictionPolicy: AlwaysAllow, selector: {matchLabels: {app: train}}}
---
apiVersion: v1
kind: Pod
metadata: {name: train, namespace: training, labels: {app: train}}
spec:
  nodeSelector: {cloud.google.com/gke-spot: "true", holdfast.dev/pool-class: spot-l4}
  tolerations: [{key: provisioning-tier, operator: Equal, value: preemptible, effect: NoSchedule}]
  containers: [{name: main, image: train}]
""",
    good=_example(_GOOD),
)  # fmt: skip
def pdb_on_spot(obj: Object, context: Context) -> Iterator[Hit]:
    if obj.kind != "PodDisruptionBudget" or "holdfast.dev/reason" in as_map(obj.metadata.get("annotations")):
        return
    pods = context.world.selected(obj.namespace, obj.spec.get("selector"))
    if pods and all(context.place(pod).on_spot for pod in pods):
        yield Hit(("spec", "selector"), "its pods run on Spot, where preemption does not ask a budget")


@rule(
    "HF134", "pdb-needs-count-for-jobs", Severity.ERROR, on=Object,
    what="A PodDisruptionBudget over pods of a Job with maxUnavailable or a percentage.",
    why="Both need the controller's total, and a Job has no scale: the budget fails to sync and blocks every eviction.",
    source=DOC_PDB + "#arbitrary-controllers-and-selectors", fix="write minAvailable as a number",
    bad="""\
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: train, namespace: training, annotations: {holdfast.dev/reason: gang}}
spec: {maxUnavailable: 1, unhealthyPodEvictionPolicy: AlwaysAllow, selector: {matchLabels: {app: train}}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: train, namespace: training}
spec: {template: {metadata: {labels: {app: train}}, spec: {containers: [{name: main, image: train}]}}}
""",
    good=_example(_GOOD.replace("maxUnavailable: 1", "minAvailable: 1")),
)  # fmt: skip
def pdb_needs_count(obj: Object, context: Context) -> Iterator[Hit]:
    if obj.kind != "PodDisruptionBudget":
        return
    pods = context.world.selected(obj.namespace, obj.spec.get("selector"))
    field = "minAvailable" if as_text(obj.spec.get("minAvailable")) else "maxUnavailable"
    if any(pod.job for pod in pods) and obj.spec.get(field) is not None:
        yield Hit(("spec", field), "has no total to count from: its pods belong to a Job")


def _scaler(least: int) -> str:
    return (
        "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {name: a, namespace: serving}\n"
        f"spec: {{minReplicas: {least}, maxReplicas: 4, scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: a}}}}\n"
    )


@rule(
    "HF135", "autoscaler-to-zero", Severity.ERROR, on=Object,
    what="A HorizontalPodAutoscaler with minReplicas: 0.",
    why="Most clusters refuse the object; the feature is new, and scaling up from zero needs a metric that is not of pods.",
    source="infra/decisions/0062", fix="use a Job that ends with its queue, or minReplicas: 1",
    bad=_scaler(0), good=_scaler(1),
)  # fmt: skip
def autoscaler_to_zero(obj: Object, context: Context) -> Iterator[Hit]:
    if obj.kind == "HorizontalPodAutoscaler" and as_int(obj.spec.get("minReplicas")) == 0:
        yield Hit(("spec", "minReplicas"), "is refused where HPAScaleToZero is off")


_ON_DEPLOYMENT = """\
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: b, namespace: serving}
spec: {selector: {matchLabels: {app: b}}, template: {metadata: {labels: {app: b}}, spec: {containers: [{name: m, image: b}]}}}
"""


@rule(
    "HF136", "autoscaler-of-nothing", Severity.WARNING, on=Object,
    what="A HorizontalPodAutoscaler whose target is not among the files, though others of its kind are, or whose maximum"
        " lies below its minimum.",
    why="It scales nothing, most often because a Deployment was renamed.",
    source="https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/", fix="name a Deployment",
    bad=_scaler(1) + _ON_DEPLOYMENT, good=_scaler(1),
)  # fmt: skip
def autoscaler_of_nothing(obj: Object, context: Context) -> Iterator[Hit]:
    if obj.kind != "HorizontalPodAutoscaler":
        return
    least, most = as_int(obj.spec.get("minReplicas")), as_int(obj.spec.get("maxReplicas"))
    if most is not None and most < (1 if least is None else least):
        yield Hit(("spec", "maxReplicas"), f"at most {most}, at least {1 if least is None else least}")
    kind, name = (as_text(dig(obj.spec, "scaleTargetRef", key)) for key in ("kind", "name"))
    # In the same file: what stands elsewhere may be of another application.
    beside = [each for each in context.world.within(kind, obj.namespace) if each.file == obj.file]
    if beside and obj.namespace and not context.world.named(kind, name, obj.namespace):
        yield Hit(("spec", "scaleTargetRef", "name"), f"there is no {kind} {name} in {obj.namespace}")
