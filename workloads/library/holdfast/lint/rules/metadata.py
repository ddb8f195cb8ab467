"""HF47x: labels and annotations that nothing reads where they are."""

import re
from collections.abc import Iterator
from typing import Any

from holdfast.lint.document import Path
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.known_values import load_table
from holdfast.lint.objects import Object, Pod, as_map, as_text
from holdfast.lint.registry import Context, rule
from holdfast.lint.spelling import find_near, misspells
from holdfast.vocabulary.kubernetes import LABEL_QUEUE

DOC_EVICT = "https://cloud.google.com/kubernetes-engine/docs/concepts/cluster-autoscaler"
DOC_KUEUE = "https://kueue.sigs.k8s.io/docs/reference/labels-and-annotations/"
# Kinds that Kueue starts by a label of their own.
_QUEUED_KINDS = ("Job", "JobSet", "CronJob", "RayJob", "RayCluster", "PyTorchJob", "TrainJob")
_LONGEST = 2_000
_NEAR = 0.6


@rule(
    "HF470",
    "annotation-not-on-the-pod",
    Severity.WARNING,
    on=Object,
    what="An annotation that is read on pods is on the object that owns them.",
    why="Nothing copies it to the pods, so it has no effect.",
    source=DOC_EVICT,
    fix="move it to metadata.annotations of the pod template",
    base="serving",
    bad="""\
metadata:
  annotations:
    cluster-autoscaler.kubernetes.io/safe-to-evict: 'false'
""",
    good="""\
spec:
  template:
    metadata:
      annotations:
        cluster-autoscaler.kubernetes.io/safe-to-evict: 'false'
""",
)
def annotation_not_on_the_pod(obj: Object, context: Context) -> Iterator[Hit]:
    if obj.kind in ("Pod", "PodTemplate") or not obj.pods:
        return
    for key in obj.annotations:
        if key in load_table("annotations")["of_pods"] and not all(
            key in pod.annotations for pod in obj.pods
        ):
            yield Hit(("metadata", "annotations", key), f"{key} is read on pods", on_key=True)


@rule(
    "HF471",
    "queue-label-elsewhere",
    Severity.ERROR,
    on=Object,
    kinds=_QUEUED_KINDS,
    what="The queue of a job is named in an annotation, or on its pods.",
    why="Kueue reads the label of the job. It does not manage the job: it runs past the queue.",
    source=DOC_KUEUE,
    fix=f"label the job itself: metadata.labels.{LABEL_QUEUE}",
    base="job",
    bad=f"spec: {{template: {{metadata: {{labels: {{{LABEL_QUEUE}: spot}}}}}}}}",
    good=f"metadata: {{labels: {{{LABEL_QUEUE}: spot}}}}",
)
def queue_label_elsewhere(obj: Object, context: Context) -> Iterator[Hit]:
    if obj.kind == "CronJob":
        if LABEL_QUEUE in obj.labels and not obj.queue:
            path = ("metadata", "labels", LABEL_QUEUE)
            yield Hit(path, "the label of the CronJob is not on its Jobs", on_key=True)
        if obj.queue:
            return
    if LABEL_QUEUE in obj.labels:
        return
    if LABEL_QUEUE in obj.annotations:
        path = ("metadata", "annotations", LABEL_QUEUE)
        yield Hit(path, "an annotation names the queue", on_key=True)
    for pod in obj.pods:
        for field, values in (("labels", pod.labels), ("annotations", pod.annotations)):
            if LABEL_QUEUE in values:
                path = (*pod.path, "metadata", field, LABEL_QUEUE)
                yield Hit(path, f"the {field} of the pods name the queue", on_key=True)


@rule(
    "HF472",
    "key-misspelt",
    Severity.ERROR,
    on=Object,
    what="A label or an annotation is nearly one that Kueue, JobSet, GKE or the platform reads.",
    why="Nothing reads it: the job has no queue, the pod no sidecar, and no message says so.",
    source=DOC_KUEUE,
    fix="correct the key",
    base="job",
    bad="""\
metadata:
  labels:
    kueue.x-k8s.io/queue: spot
""",
    good=f"metadata: {{labels: {{{LABEL_QUEUE}: spot}}}}",
)
def key_misspelt(obj: Object, context: Context) -> Iterator[Hit]:
    places: list[tuple[Path, Any]] = [
        (("metadata", "labels"), obj.labels),
        (("metadata", "annotations"), obj.annotations),
    ]
    for pod in obj.pods:
        places += _list_places(pod)
    for path, values in dict(places).items():
        for key in as_map(values):
            near_key = _find_misspelt(as_text(key))
            if near_key:
                message = f"nothing reads {key}; did you mean {near_key}?"
                yield Hit((*path, key), message, on_key=True)


def _list_places(pod: Pod) -> list[tuple[Path, Any]]:
    path = (*pod.path, "metadata")
    return [((*path, "labels"), pod.labels), ((*path, "annotations"), pod.annotations)]


def _find_misspelt(key: str) -> str:
    """Returns the key that is read, if this one is nearly it; empty otherwise."""
    domain, slash, name = key.partition("/")
    keys = load_table("keys")
    known_names = keys.get(f"{domain}/")
    if known_names is None:
        for known_domain, names in keys.items():
            plain = known_domain.rstrip("/")
            if slash and name in names and misspells(domain, plain):
                return known_domain + name
        return ""
    if name in known_names:
        return ""
    # A key that begins with the name is more likely meant than one that looks similar.
    begun = [known_name for known_name in known_names if known_name.startswith(f"{name}-")]
    near_name = min(begun, key=len, default="") or find_near(name, known_names, _NEAR)
    return f"{domain}/{near_name}" if near_name else ""


@rule(
    "HF473",
    "key-with-wrong-value",
    Severity.ERROR,
    on=Object,
    what="A label or an annotation has a value that the program which reads it does not know.",
    why="It is read as unset, or the webhook that reads it refuses the pod.",
    source=DOC_EVICT,
    fix="write the value in the form that is read",
    base="job-template",
    bad="""\
metadata:
  annotations:
    gke-gcsfuse/memory-limit: 2GB
""",
    good="""\
metadata:
  annotations:
    gke-gcsfuse/memory-limit: 2Gi
""",
)
def check_values(obj: Object, context: Context) -> Iterator[Hit]:
    places: list[tuple[Path, Any]] = [
        (("metadata", "labels"), obj.labels),
        (("metadata", "annotations"), obj.annotations),
    ]
    for pod in obj.pods:
        places += _list_places(pod)
    for path, values in dict(places).items():
        for key, value in as_map(values).items():
            pattern, words = load_table("forms").get(key, ("", ""))
            text = as_text(value)[:_LONGEST]
            if pattern and text and "$" not in text and not re.fullmatch(pattern, text, re.DOTALL):
                yield Hit((*path, key), f"{text[:80]} is not {words}")
