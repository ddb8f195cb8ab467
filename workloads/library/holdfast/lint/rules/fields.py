"""HF5xx: fields that do not exist, by the schema that `schema.py` holds, and HF9xx: the linter itself."""

from collections.abc import Iterator
from typing import Any

from holdfast.lint.document import Path
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.objects import Object, Pod, as_map, as_text, near
from holdfast.lint.registry import Context, rule
from holdfast.lint.schema import ROOTS, TYPES

API = "https://kubernetes.io/docs/reference/kubernetes-api/"
_HINTS = {
    "maxParallelism": "a Job has parallelism; caps are set by auto-provisioning and Kueue",
    "important": "a toleration has key, operator, value, effect, tolerationSeconds",
}


@rule(
    "HF501", "field-unknown", Severity.ERROR, on=Object,
    what="A field that the kind does not have.",
    why="The API server drops it with a warning that nobody reads, and the intention with it.",
    source=API, fix="correct or remove the field", base="job",
    bad="spec: {maxParallelism: 4}", good="spec: {parallelism: 4}",
)  # fmt: skip
def field_unknown(obj: Object, context: Context) -> Iterator[Hit]:
    for path, name, type_name in _walk(obj):
        fields = TYPES[type_name]
        if name not in fields and not name.startswith("$"):  # $patch and the like are kustomize's
            meant = near(name, fields, cutoff=0.75)
            hint = _HINTS.get(name) or (f"did you mean {meant}?" if meant else "")
            yield Hit(path, f"{type_name.removeprefix('V1')} has no field {name}", None, hint, on_key=True)


def _walk(obj: Object) -> Iterator[tuple[Path, str, str]]:
    """Every field of an object with the type it stands in, as far as types are known; pods of unknown kinds too."""
    root = ROOTS.get((obj.api_version, obj.kind))
    starts: list[tuple[Path, Any, str]] = [((), obj.body, root)] if root else []
    if not root:
        starts = [(pod.at, pod.spec, "V1PodSpec") for pod in obj.pods]
        starts += [(job.path, job.spec, "V1JobSpec") for job in obj.jobs]
    while starts:
        path, value, type_name = starts.pop()
        if not isinstance(value, dict):
            continue
        fields = TYPES[type_name]
        for name, child in value.items():
            yield (*path, name), name, type_name
            inner, many = fields.get(name, ("", ""))
            if inner in TYPES:
                starts += _children((*path, name), child, inner, many)


def _children(path: Path, child: Any, inner: str, many: str) -> list[tuple[Path, Any, str]]:
    if many == "list":
        return [((*path, i), item, inner) for i, item in enumerate(child)] if isinstance(child, list) else []
    if many == "map":
        return [((*path, key), item, inner) for key, item in as_map(child).items()]
    return [(path, child, inner)]


@rule(
    "HF502", "label-not-text", Severity.ERROR, on=Object,
    what="A label, annotation or nodeSelector value that YAML does not read as text.",
    why="The API server refuses the object: true and 1 are no strings.",
    source=API, fix="put the value in quotes", base="job-pod",
    bad="nodeSelector: {cloud.google.com/gke-spot: true}", good='nodeSelector: {cloud.google.com/gke-spot: "true"}',
)  # fmt: skip
def label_not_text(obj: Object, context: Context) -> Iterator[Hit]:
    places: list[tuple[Path, Any]] = [(("metadata", f), obj.metadata.get(f)) for f in ("labels", "annotations")]
    for pod in obj.pods:
        places.append(((*pod.at, "nodeSelector"), pod.spec.get("nodeSelector")))
        if pod.path:
            places += [
                ((*pod.path, "metadata", "labels"), pod.labels),
                ((*pod.path, "metadata", "annotations"), pod.annotations),
            ]
    for path, values in places:
        for key, value in as_map(values).items():
            if not isinstance(value, str) and value is not None:
                yield Hit((*path, key), f"{key} is {value!r}, not text")


@rule(
    "HF504", "api-removed", Severity.ERROR, on=Object,
    what="An API version that current clusters no longer serve.",
    why="The API server answers that it does not know the kind.",
    source="https://kubernetes.io/docs/reference/using-api/deprecation-guide/", fix="use the current version",
    bad="apiVersion: policy/v1beta1\nkind: PodDisruptionBudget\nmetadata: {name: a, namespace: serving}\n"
        "spec: {maxUnavailable: 1, unhealthyPodEvictionPolicy: AlwaysAllow, selector: {matchLabels: {a: b}}}\n",
    good="apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: a, namespace: serving}\n"
         "spec: {maxUnavailable: 1, unhealthyPodEvictionPolicy: AlwaysAllow, selector: {matchLabels: {a: b}}}\n",
)  # fmt: skip
def api_removed(obj: Object, context: Context) -> Iterator[Hit]:
    gone = {
        ("policy/v1beta1", "PodDisruptionBudget"): "policy/v1",
        ("batch/v1beta1", "CronJob"): "batch/v1",
        ("extensions/v1beta1", "Deployment"): "apps/v1",
        ("apps/v1beta1", "Deployment"): "apps/v1",
        ("apps/v1beta2", "Deployment"): "apps/v1",
        ("autoscaling/v2beta2", "HorizontalPodAutoscaler"): "autoscaling/v2",
        ("networking.k8s.io/v1beta1", "Ingress"): "networking.k8s.io/v1",
        ("jobset.x-k8s.io/v1alpha1", "JobSet"): "jobset.x-k8s.io/v1alpha2",
    }
    now = gone.get((obj.api_version, obj.kind))
    if now:
        yield Hit(("apiVersion",), f"{obj.api_version} {obj.kind} is gone", None, f"write {now}")


@rule(
    "HF505", "pod-field-misplaced", Severity.ERROR, on=Pod,
    what="restartPolicy in a container, or containers' resources on the pod's top level by mistake.",
    why="The field is dropped there, and the default takes its place.",
    source=API, fix="move it to the pod's spec", base="container",
    bad="restartPolicy: Never", good="imagePullPolicy: IfNotPresent",
)  # fmt: skip
def pod_field_misplaced(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers:
        if "containers" in container.path and "restartPolicy" in container.body:
            yield Hit(
                (*container.path, "restartPolicy"), "restartPolicy stands in a container, not in the pod", on_key=True
            )


@rule(
    "HF506", "sidecar-without-restart-policy", Severity.ERROR, on=Pod,
    what="An init container that serves, by its probes or its name, without restartPolicy: Always.",
    why="An init container has to end before the next starts: the pod waits for a proxy that never ends.",
    source="https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/",
    fix="set restartPolicy: Always on it", base="serving-pod",
    bad="initContainers: [{name: proxy, image: cloud-sql-proxy, args: [--port=5432]}]",
    good="enableServiceLinks: false",
)  # fmt: skip
def sidecar_without_restart_policy(pod: Pod, context: Context) -> Iterator[Hit]:
    probes = {"startupProbe", "readinessProbe", "livenessProbe"}
    for container in pod.containers:
        image = as_text(container.body.get("image")).partition("@")[0].rpartition("/")[2]
        serves = bool(probes & container.body.keys()) or "-proxy" in image
        if "initContainers" in container.path and serves and container.body.get("restartPolicy") != "Always":
            yield Hit(container.path, f"{container.name} never ends, so the pod never starts")
