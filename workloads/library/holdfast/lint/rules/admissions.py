"""HF710 to HF713: what queues of Kueue wait for before they admit a job."""

from collections.abc import Iterator
from typing import Any

from holdfast.lint.document import Path
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.objects import Object, as_list, as_map, as_maps, as_text, dig
from holdfast.lint.registry import Context, rule
from holdfast.lint.rules.references import is_near_file
from holdfast.lint.spelling import find_near

DOC_CHECKS = "https://kueue.sigs.k8s.io/docs/concepts/admission_check/"
DOC_PRIORITY = "https://kueue.sigs.k8s.io/docs/concepts/workload_priority_class/"
DOC_QUEUES = "https://kueue.sigs.k8s.io/docs/concepts/cluster_queue/"
_PRIORITY = "kueue.x-k8s.io/priority-class"
_CONTROLLER = "kueue.x-k8s.io/provisioning-request"
_STOPPING = ("Hold", "HoldAndDrain")


def _write_check(check: str, config: str = "dws") -> str:
    return f"""\
apiVersion: kueue.x-k8s.io/v1beta1
kind: AdmissionCheck
metadata: {{name: dws}}
spec:
  controllerName: {_CONTROLLER}
  parameters: {{apiGroup: kueue.x-k8s.io, kind: ProvisioningRequestConfig, name: {config}}}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: ProvisioningRequestConfig
metadata: {{name: dws}}
spec: {{provisioningClassName: queued-provisioning.gke.io, managedResources: [nvidia.com/gpu]}}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: ClusterQueue
metadata: {{name: gpus}}
spec:
  namespaceSelector: {{}}
  admissionChecks: [{check}]
"""


@rule(
    "HF710",
    "admission-check-unknown",
    Severity.ERROR,
    on=Object,
    kinds=("ClusterQueue", "AdmissionCheck"),
    what="A queue names an admission check, or a check its parameters, that the files lack.",
    why="The queue is inactive until it is there: no job of it is admitted.",
    source=DOC_CHECKS,
    fix="name the AdmissionCheck, and in it the ProvisioningRequestConfig",
    bad=_write_check("dws-check"),
    good=_write_check("dws"),
)
def admission_check_unknown(obj: Object, context: Context) -> Iterator[Hit]:
    for path, kind, name in _list_references(obj):
        objects = context.index.by_kind.get(kind, [])
        neighbors = [item.name for item in objects if is_near_file(item, obj)]
        if name and neighbors and name not in neighbors:
            names = ", ".join(sorted(neighbors)[:5])
            yield Hit(path, f"no {kind} {name}; there are {names}")
    if obj.kind == "AdmissionCheck":
        controller = as_text(obj.spec.get("controllerName"))
        kind = dig(obj.spec, "parameters", "kind")
        is_near = bool(find_near(controller, [_CONTROLLER]))
        if kind == "ProvisioningRequestConfig" and is_near and controller != _CONTROLLER:
            message = f"no controller {controller}; did you mean {_CONTROLLER}?"
            yield Hit(("spec", "controllerName"), message)


def _list_references(obj: Object) -> Iterator[tuple[Path, str, str]]:
    """Yields path, kind and name of what a queue or a check names."""
    if obj.kind == "AdmissionCheck":
        path = ("spec", "parameters", "name")
        kind = as_text(dig(obj.spec, "parameters", "kind"))
        yield path, kind, as_text(dig(obj.body, *path))
        return
    for index, name in enumerate(as_list(obj.spec.get("admissionChecks"))):
        yield ("spec", "admissionChecks", index), "AdmissionCheck", as_text(name)
    path = ("spec", "admissionChecksStrategy", "admissionChecks")
    for index, entry in enumerate(as_maps(dig(obj.body, *path))):
        yield (*path, index, "name"), "AdmissionCheck", as_text(entry.get("name"))
        for number, flavor in enumerate(as_list(entry.get("onFlavors"))):
            place = (*path, index, "onFlavors", number)
            yield place, "ResourceFlavor", as_text(flavor)


def _priority(name: str) -> str:
    return f"""\
metadata: {{labels: {{{_PRIORITY}: {name}}}}}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: WorkloadPriorityClass
metadata: {{name: high}}
value: 100
"""


@rule(
    "HF711",
    "workload-priority-unknown",
    Severity.ERROR,
    on=Object,
    what="A job's label names a WorkloadPriorityClass that the files lack.",
    why="Kueue creates no Workload for the job: it stays suspended.",
    source=DOC_PRIORITY,
    fix="name a WorkloadPriorityClass; a PriorityClass belongs into priorityClassName",
    base="job",
    bad=_priority("urgent"),
    good=_priority("high"),
)
def workload_priority_unknown(obj: Object, context: Context) -> Iterator[Hit]:
    classes = context.index.list_names("WorkloadPriorityClass")
    for path, labels in _list_labels(obj):
        name = as_text(labels.get(_PRIORITY))
        if not name or name in classes:
            continue
        if classes:
            names = ", ".join(sorted(classes)[:5])
            message = f"no WorkloadPriorityClass {name}; there are {names}"
            yield Hit((*path, _PRIORITY), message)
        elif context.index.find("PriorityClass", name):
            yield Hit((*path, _PRIORITY), f"{name} is a PriorityClass, not of Kueue")


def _list_labels(obj: Object) -> Iterator[tuple[Path, dict[str, Any]]]:
    yield ("metadata", "labels"), obj.labels
    path = ("spec", "jobTemplate", "metadata", "labels")
    yield path, as_map(dig(obj.body, *path))


def _write_stop_policy(policy: str) -> str:
    return f"""\
apiVersion: kueue.x-k8s.io/v1beta1
kind: ClusterQueue
metadata: {{name: gpus}}
spec: {{namespaceSelector: {{}}, stopPolicy: {policy}}}
"""


@rule(
    "HF712",
    "queue-is-stopped",
    Severity.WARNING,
    on=Object,
    kinds=("ClusterQueue", "LocalQueue"),
    what="A queue is stopped by its own spec.",
    why="It admits no job; with HoldAndDrain those that run are evicted.",
    source=DOC_QUEUES,
    fix="stopPolicy: None, or leave it out",
    bad=_write_stop_policy("HoldAndDrain"),
    good=_write_stop_policy("None"),
)
def queue_is_stopped(obj: Object, context: Context) -> Iterator[Hit]:
    policy = obj.spec.get("stopPolicy")
    if policy in _STOPPING:
        yield Hit(("spec", "stopPolicy"), f"{policy}: admits nothing")


def _write_tainted_flavor(tolerations: str) -> str:
    return f"""\
apiVersion: kueue.x-k8s.io/v1beta1
kind: ResourceFlavor
metadata: {{name: batch}}
spec:
  nodeTaints: [{{key: dedicated, value: batch, effect: NoSchedule}}]{tolerations}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: ClusterQueue
metadata: {{name: batch}}
spec:
  namespaceSelector: {{}}
  resourceGroups:
  - coveredResources: [cpu]
    flavors: [{{name: batch, resources: [{{name: cpu, nominalQuota: 100}}]}}]
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: LocalQueue
metadata: {{name: batch, namespace: research}}
spec: {{clusterQueue: batch}}
---
apiVersion: batch/v1
kind: Job
metadata: {{name: a, namespace: research, labels: {{kueue.x-k8s.io/queue-name: batch}}}}
spec:
  backoffLimit: 2
  activeDeadlineSeconds: 3600
  ttlSecondsAfterFinished: 3600
  template:
    spec:
      restartPolicy: Never
      containers: [{{name: main, image: 'a:1', resources: {{requests: {{cpu: 1}}}}}}]
"""


@rule(
    "HF713",
    "flavor-not-tolerated",
    Severity.ERROR,
    on=Object,
    kinds=("Job", "JobSet", "CronJob"),
    what="No flavor of a job's queue has only taints that the job tolerates.",
    why="Kueue assigns no flavor: the job stays suspended, and says so in its Workload only.",
    source="https://kueue.sigs.k8s.io/docs/concepts/resource_flavor/",
    fix="tolerate nodeTaints in the pods, or put the toleration into the flavor",
    bad=_write_tainted_flavor(""),
    good=_write_tainted_flavor(
        "\n  tolerations: [{key: dedicated, operator: Exists, effect: NoSchedule}]"
    ),
)
def flavor_not_tolerated(obj: Object, context: Context) -> Iterator[Hit]:
    flavors = context.index.list_flavors(obj, obj.queue) if obj.queue else None
    if not flavors:
        return
    for pod in obj.pods:
        tolerations = [toleration for _, toleration in pod.tolerations]
        missing = ""
        for flavor in flavors:
            all_tolerations = tolerations + as_maps(flavor.spec.get("tolerations"))
            taint = _find_missing(as_maps(flavor.spec.get("nodeTaints")), all_tolerations)
            if not taint:
                return
            missing = missing or f"{flavor.name} has the taint {taint}"
        yield Hit((*pod.spec_path, "tolerations"), missing)
        return


def _find_missing(taints: list[dict[str, Any]], tolerations: list[dict[str, Any]]) -> str:
    """Returns the key of a taint that no toleration covers; empty where all are covered."""
    for taint in taints:
        if taint.get("effect") == "PreferNoSchedule":
            continue
        if not any(_covers(toleration, taint) for toleration in tolerations):
            return as_text(taint.get("key"))
    return ""


def _covers(toleration: dict[str, Any], taint: dict[str, Any]) -> bool:
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", taint.get("key"))
    is_same_key = toleration.get("key") == taint.get("key")
    return is_same_key and (toleration.get("value") or "") == (taint.get("value") or "")
