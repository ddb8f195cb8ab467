"""HF419 and HF507: names that objects of one run use for each other."""

from collections.abc import Iterator

from holdfast.lint.document import Path
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.objects import Object, as_list, as_map, as_text, dig, near
from holdfast.lint.registry import Context, rule

Reference = tuple[Path, str, str]
"""Place, kind and name of an object in the same namespace."""
NEAR = 0.75
_CLAIM = """\
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: corpus, namespace: training}
spec: {accessModes: [ReadOnlyMany], resources: {requests: {storage: 10Gi}}}
"""
_POD = """\
---
apiVersion: v1
kind: Pod
metadata: {name: train, namespace: training}
spec: {containers: [{name: main, image: train}], volumes: [{name: data, persistentVolumeClaim: {claimName: corups}}]}
"""


@rule(
    "HF419", "name-misspelt", Severity.ERROR, on=Object,
    what="An object names another that is not among the files, where one of nearly that name is.",
    why="A claim or an account that does not exist keeps the pod from starting; a role that does not exist grants"
        " nothing; a Service that selects no pod answers nobody.",
    source="https://kubernetes.io/docs/concepts/overview/working-with-objects/names/", fix="correct the name",
    bad=_CLAIM + _POD, good=_CLAIM,
)  # fmt: skip
def name_misspelt(obj: Object, context: Context) -> Iterator[Hit]:
    for path, kind, name in _references(obj):
        if not name or not obj.namespace or context.world.named(kind, name, obj.namespace):
            continue
        here = [each.name for each in context.world.within(kind, obj.namespace)]
        if meant := near(name, here, cutoff=NEAR):
            yield Hit(path, f"there is no {kind} {name} in {obj.namespace}; did you mean {meant}?")
    yield from _selects_a_misspelling(obj, context)


def _references(obj: Object) -> Iterator[Reference]:
    if obj.kind == "RoleBinding" and dig(obj.body, "roleRef", "kind") == "Role":
        yield ("roleRef", "name"), "Role", as_text(dig(obj.body, "roleRef", "name"))
    for pod in obj.pods:
        yield (*pod.at, "serviceAccountName"), "ServiceAccount", as_text(pod.spec.get("serviceAccountName"))
        for index, volume in enumerate(as_list(pod.spec.get("volumes"))):
            at = (*pod.at, "volumes", index)
            claim, file = dig(volume, "persistentVolumeClaim", "claimName"), dig(volume, "configMap", "name")
            yield (*at, "persistentVolumeClaim", "claimName"), "PersistentVolumeClaim", as_text(claim)
            yield (*at, "configMap", "name"), "ConfigMap", as_text(file)


def _selects_a_misspelling(obj: Object, context: Context) -> Iterator[Hit]:
    """A Service whose pods may stand in other files is judged only where a label of a pod here is nearly the same."""
    chosen = as_map(obj.spec.get("selector")) if obj.kind == "Service" and obj.namespace else {}
    if not chosen or context.world.selected(obj.namespace, {"matchLabels": chosen}):
        return
    for key, value in chosen.items():
        known = context.world.label_values(obj.namespace, key)
        meant = near(as_text(value), known, cutoff=NEAR) if value not in known else ""
        if meant and context.world.selected(obj.namespace, {"matchLabels": chosen | {key: meant}}):
            yield Hit(("spec", "selector", key), f"no pod has {key}={value}; did you mean {meant}?")


def _deployment(label: str) -> str:
    return f"""\
apiVersion: apps/v1
kind: Deployment
metadata: {{name: server, namespace: serving}}
spec:
  selector: {{matchLabels: {{app: server}}}}
  template: {{metadata: {{labels: {{app: {label}}}}}, spec: {{containers: [{{name: main, image: server}}]}}}}
"""


@rule(
    "HF507", "selector-misses-template", Severity.ERROR, on=Object,
    what="The selector of a Deployment or StatefulSet does not match the labels of its own pods.",
    why="The API server refuses the object.",
    source="https://kubernetes.io/docs/concepts/workloads/controllers/deployment/#selector",
    fix="use the labels of the template", bad=_deployment("sever"), good="metadata: {labels: {app: server}}", base="serving",
)  # fmt: skip
def selector_misses_template(obj: Object, context: Context) -> Iterator[Hit]:
    for pod in obj.pods if obj.kind in ("Deployment", "StatefulSet", "ReplicaSet", "DaemonSet") else []:
        for key, value in as_map(dig(obj.spec, "selector", "matchLabels")).items():
            if pod.path == ("spec", "template") and pod.labels.get(key) != value:
                yield Hit(("spec", "selector", "matchLabels", key), f"its pods have {key}={pod.labels.get(key)}")
