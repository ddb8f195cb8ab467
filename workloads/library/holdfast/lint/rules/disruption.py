"""HF13x: PodDisruptionBudgets of jobs and of pods on Spot."""

from collections.abc import Iterator

from holdfast.lint.finding import Hit, Severity
from holdfast.lint.objects import Object, as_map, as_text, dig
from holdfast.lint.registry import Context, rule

DOC_PDB = "https://kubernetes.io/docs/tasks/run-application/configure-pdb/"


def _budget(least: str, reason: str = "") -> str:
    """A budget over the pods of a Job on Spot."""
    annotations = f", annotations: {{holdfast.dev/reason: {reason}}}" if reason else ""
    return f"""\
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {{name: train, namespace: training{annotations}}}
spec: {{{least}, unhealthyPodEvictionPolicy: AlwaysAllow, selector: {{matchLabels: {{app: train}}}}}}
---
apiVersion: batch/v1
kind: Job
metadata: {{name: train, namespace: training}}
spec:
  backoffLimitPerIndex: 1
  activeDeadlineSeconds: 60
  ttlSecondsAfterFinished: 60
  podFailurePolicy: {{rules: [{{action: Ignore, onPodConditions: [{{type: DisruptionTarget}}]}}]}}
  template:
    metadata: {{labels: {{app: train}}}}
    spec:
      priorityClassName: spot-workload-low
      restartPolicy: Never
      terminationGracePeriodSeconds: 15
      nodeSelector: {{cloud.google.com/gke-spot: "true", holdfast.dev/pool-class: spot-l4}}
      tolerations: [{{key: provisioning-tier, operator: Equal, value: preemptible, effect: NoSchedule}}]
      containers: [{{name: main, image: train, resources: {{limits: {{nvidia.com/gpu: 1}}}}}}]
"""


@rule(
    "HF133", "pdb-believed-to-stop-preemption", Severity.INFO, on=Object,
    what="All pods of a PodDisruptionBudget run on Spot.",
    why="Preemption does not ask a budget. There it only slows voluntary drains.",
    source=DOC_PDB, fix="say in annotation holdfast.dev/reason which eviction it is for",
    bad=_budget("minAvailable: 1"), good=_budget("minAvailable: 1", "drains of a gang"),
)  # fmt: skip
def pdb_on_spot(obj: Object, context: Context) -> Iterator[Hit]:
    if obj.kind != "PodDisruptionBudget" or "holdfast.dev/reason" in as_map(obj.metadata.get("annotations")):
        return
    pods = context.world.selected(obj.namespace, obj.spec.get("selector"))
    if pods and all(context.place(pod).on_spot for pod in pods):
        yield Hit(("spec", "selector"), "its pods run on Spot, where preemption does not ask a budget")


@rule(
    "HF134", "pdb-needs-count-for-jobs", Severity.ERROR, on=Object,
    what="A PodDisruptionBudget over pods of a Job has maxUnavailable or a percentage.",
    why="Both need the controller's total, and a Job has none: the budget does not sync and blocks every eviction.",
    source=DOC_PDB + "#arbitrary-controllers-and-selectors", fix="write minAvailable as a number",
    bad=_budget("maxUnavailable: 1", "gang"), good=_budget("minAvailable: 1", "gang"),
)  # fmt: skip
def pdb_needs_count(obj: Object, context: Context) -> Iterator[Hit]:
    if obj.kind != "PodDisruptionBudget":
        return
    field = "minAvailable" if as_text(obj.spec.get("minAvailable")) else "maxUnavailable"
    pods = context.world.selected(obj.namespace, obj.spec.get("selector"))
    if dig(obj.spec, field) is not None and any(pod.job for pod in pods):
        yield Hit(("spec", field), "has no total to count from: its pods belong to a Job")
