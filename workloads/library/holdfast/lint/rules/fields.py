"""HF501, HF502, HF504 and HF862: unknown, misplaced or missing fields, and wrong types."""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from holdfast.lint import api_fields
from holdfast.lint.api_fields import UnknownField
from holdfast.lint.document import Path
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.known_values import load_table
from holdfast.lint.objects import Object, as_int, as_text, dig
from holdfast.lint.registry import Context, rule
from holdfast.lint.spelling import find_near

DOC = "https://kubernetes.io/docs/reference/using-api/api-concepts/#field-validation"
_PLACEHOLDER = re.compile(r"[$<{]")
_NOUNS = {
    "[": "a list",
    "{": "a mapping",
    "s": "a text",
    "i": "a whole number",
    "b": "true or false",
    "n": "a number",
}


@rule(
    "HF501",
    "unknown-field",
    Severity.ERROR,
    on=Object,
    what="A field that Kubernetes does not know at this place: misspelt, or at the wrong depth.",
    why=(
        "The API server drops it, many clients without a word, and what it should have set keeps"
        " its default: no grace period, no limit, no affinity."
    ),
    source=DOC,
    fix="correct its name, or move it to where it belongs",
    base="job",
    bad="""\
spec: {template: {spec: {terminationGracePeriod: 15}}}
""",
)
def unknown_field(obj: Object, context: Context) -> Iterator[Hit]:
    unknown_fields: dict[object, UnknownField] = {}
    type_name = api_fields.find_type(as_text(obj.body.get("apiVersion")), obj.kind)
    if type_name:
        for field in api_fields.find_unknown_fields(obj.body, type_name):
            unknown_fields[field.path] = field
    else:
        # An object of another API has templates of Kubernetes' own types.
        for job in obj.jobs:
            for field in api_fields.find_unknown_fields(job.spec, api_fields.JOB_SPEC, job.path):
                unknown_fields[field.path] = field
        for pod in obj.pods:
            template = pod.template
            for field in api_fields.find_unknown_fields(
                template, api_fields.POD_TEMPLATE, pod.path
            ):
                unknown_fields[field.path] = field
    for field in unknown_fields.values():
        yield Hit(
            field.path,
            f"no such field: {field.name}",
            fix=_fix(field),
            on_key=True,
        )


def _fix(field: UnknownField) -> str:
    near_name = find_near(field.name, field.known_names, 0.75)
    if near_name:
        return f"did you mean {near_name}?"
    if field.home:
        return f"it belongs to {field.home}"
    return ""


@rule(
    "HF502",
    "value-of-wrong-type",
    Severity.ERROR,
    on=Object,
    what="A field has a value of another type than the API takes, as a text for a number.",
    why="The API server refuses the object.",
    source=DOC,
    fix="write the value in the form that the field takes",
    base="job",
    bad="""\
spec:
  activeDeadlineSeconds: 72h
""",
    good="""\
spec:
  activeDeadlineSeconds: 259200
""",
)
def check_types(obj: Object, context: Context) -> Iterator[Hit]:
    for path, type_name, value in api_fields.walk_object(obj):
        for field, shape in api_fields.get_shapes(type_name).items():
            yield from _check_shape((*path, field), value.get(field), shape)


def _check_shape(path: Path, value: Any, shape: str) -> Iterator[Hit]:
    if value is None or not shape or _PLACEHOLDER.search(as_text(value)[:200]):
        return
    if not _has_shape(value, shape):
        shown = str(value)[:60]
        if isinstance(value, list | dict):
            shown = "a list" if isinstance(value, list) else "a mapping"
        yield Hit(path, f"takes {_NOUNS.get(shape[0], 'a mapping')}, and is {shown}")
    elif shape[0] == "[":
        for index, item in enumerate(value):
            yield from _check_shape((*path, index), item, shape[1:])
    elif shape[0] == "{":
        for key, item in value.items():
            yield from _check_shape((*path, key), item, shape[1:])


def _has_shape(value: Any, shape: str) -> bool:
    """Returns whether a value may be of a shape. What lists and maps hold is not compared.

    A number where a text belongs is a finding of HF511.
    """
    if shape[0] == "[":
        return isinstance(value, list)
    if shape == "i":
        return as_int(value) is not None
    if shape == "b":
        return isinstance(value, bool)
    if shape == "n":
        return isinstance(value, int | float)
    if shape == "s":
        return not isinstance(value, list | dict)
    return isinstance(value, dict)


@rule(
    "HF504",
    "field-missing",
    Severity.ERROR,
    on=Object,
    what="A field is missing that the API requires.",
    why="The API server refuses the object.",
    source=DOC,
    fix="add the field",
    base="container",
    bad="""\
env:
- value: '1'
""",
    good="""\
env:
- name: RATE
  value: '1'
""",
)
def require_fields(obj: Object, context: Context) -> Iterator[Hit]:
    if not api_fields.find_type(as_text(obj.body.get("apiVersion")), obj.kind):
        return
    # A template without containers is a patch, whatever file it is in.
    if dig(obj.spec, "template", "spec") is not None and not obj.pods:
        return
    is_built = _is_built(obj, context)
    for path, type_name, value in api_fields.walk_object(obj):
        for field in api_fields.get_required(type_name):
            if value.get(field) is not None or "status" in path:
                continue
            # Kustomize adds selectors with its labels.
            if not (is_built and field == "selector"):
                yield Hit(path, f"has no {field}")


def _is_built(obj: Object, context: Context) -> bool:
    """Returns whether a kustomization is in the folder of an object."""
    folder = PurePosixPath(obj.file).parent
    for kustomization in context.index.by_kind.get("Kustomization", []):
        if PurePosixPath(kustomization.file).parent == folder:
            return True
    return False


def _write_training(fields: str) -> str:
    return f"""\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
  name: bert
  namespace: research
spec:
  {fields}
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      restartPolicy: OnFailure
      template:
        spec:
          containers:
          - name: pytorch
            image: registry.example/bert:1.4
"""


@rule(
    "HF862",
    "field-at-another-level",
    Severity.ERROR,
    on=Object,
    what="A field of an operator's object is at a level that does not have it.",
    why="The API server drops it or refuses the object; what it says has no effect.",
    source=DOC,
    fix="move it to where it belongs",
    bad=_write_training("cleanPodPolicy: Running"),
    good=_write_training("runPolicy: {cleanPodPolicy: Running}"),
)
def check_levels(obj: Object, context: Context) -> Iterator[Hit]:
    for place, home in load_table("misplaced").get(obj.kind, {}).items():
        path: Path = tuple(place.split("."))
        parent = dig(obj.body, *path[:-1])
        if isinstance(parent, dict) and path[-1] in parent:
            yield Hit(path, f"{place} belongs to {home}", on_key=True)
