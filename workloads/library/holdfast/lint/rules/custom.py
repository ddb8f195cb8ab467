"""HF790 to HF793: fields of operators' objects, whose schemas no package has.

Why it is so: infra/decisions/0200.
"""

import re
from collections.abc import Iterator
from typing import Any

from holdfast.lint.document import Path
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.known_values import load_table
from holdfast.lint.objects import Object, as_map, as_maps, as_text
from holdfast.lint.registry import Context, rule
from holdfast.lint.spelling import find_near

DOC_CLASSES = "https://cloud.google.com/kubernetes-engine/docs/reference/crds/computeclass"
DOC_ROUTES = "https://gateway-api.sigs.k8s.io/reference/spec/"
DOC_KEDA = "https://keda.sh/docs/latest/reference/scaledobject-spec/"
# Placeholders of templates, such as $NAME, <name> or {name}.
_PLACEHOLDER = re.compile(r"[$<{]")
_LONGEST = 500
_NEAR = 0.77
_SCALED = ("ScaledObject", "ScaledJob")


def find_values(value: Any, path: str) -> Iterator[tuple[Path, Any]]:
    """Yields what is at a dotted path, each with its place; `*` is each item of a list."""
    places: list[tuple[Path, Any]] = [((), value)]
    for step in path.split("."):
        deeper: list[tuple[Path, Any]] = []
        for place, item in places:
            deeper += _list_children(place, item, step)
        places = deeper
    yield from places


def _list_children(place: Path, value: Any, step: str) -> list[tuple[Path, Any]]:
    """Lists the child of a mapping by its name; for `*` all children of a mapping or a list."""
    if isinstance(value, dict):
        names = list(value) if step == "*" else [step]
        return [((*place, name), value[name]) for name in names if name in value]
    if isinstance(value, list) and step == "*":
        return [((*place, index), item) for index, item in enumerate(value)]
    return []


def _write_class(whenever: str, spot: str = "true") -> str:
    return f"""\
apiVersion: cloud.google.com/v1
kind: ComputeClass
metadata:
  name: l4
spec:
  priorities:
  - machineFamily: n2
    spot: {spot}
  - machineFamily: n2
  nodePoolAutoCreation:
    enabled: true
  whenUnsatisfiable: {whenever}
"""


def _write_route(path: str, field: str = "weight") -> str:
    return f"""\
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata:
  name: chat
  namespace: serving
spec:
  rules:
  - matches:
    - path:
        type: PathPrefix
        value: {path}
    backendRefs:
    - name: chat
      port: 80
      {field}: 1
"""


@rule(
    "HF790",
    "custom-value-unknown",
    Severity.ERROR,
    on=Object,
    what="A field of an operator's object has a value that the operator does not know.",
    why="The API server refuses the object, or the operator does nothing with it.",
    source=DOC_ROUTES,
    fix="use one of the values",
    bad=_write_route("v1"),
    good=_write_route("/v1"),
)
def check_values(obj: Object, context: Context) -> Iterator[Hit]:
    fields = load_table("custom_values").get(obj.kind, {})
    for path, (pattern, words) in fields.items():
        for place, value in find_values(obj.body, path):
            text = as_text(value)[:_LONGEST]
            is_given = not text or _PLACEHOLDER.search(text)
            if not is_given and not re.fullmatch(pattern, text):
                yield Hit(place, f"{text[:80]} is not {words}")


_TYPES: dict[str, tuple[type, ...]] = {
    "boolean": (bool,),
    "integer": (int,),
    "text": (str,),
}


@rule(
    "HF791",
    "custom-value-of-wrong-type",
    Severity.ERROR,
    on=Object,
    what="A field of an operator's object has a value of another type: a text for a number.",
    why="The API server refuses the object.",
    source=DOC_CLASSES,
    fix="write true and numbers without quotes, and texts with them",
    bad=_write_class("DoNotScaleUp", '"true"'),
    good=_write_class("DoNotScaleUp"),
)
def check_types(obj: Object, context: Context) -> Iterator[Hit]:
    for path, name in load_table("custom_types").get(obj.kind, {}).items():
        for place, value in find_values(obj.body, path):
            is_number = isinstance(value, bool) and name == "integer"
            is_right = isinstance(value, _TYPES[name]) and not is_number
            is_given = value is None or _PLACEHOLDER.search(as_text(value)[:_LONGEST])
            is_plain = isinstance(value, str | int | float)
            if is_plain and not is_right and not is_given:
                shown = str(value).lower() if isinstance(value, bool) else value
                yield Hit(place, f"takes a value of type {name}, and is {shown!r}")


@rule(
    "HF792",
    "custom-field-misspelt",
    Severity.ERROR,
    on=Object,
    what="A field of an operator's object is nearly one that the operator has.",
    why="The API server drops it or refuses the object; what it says has no effect.",
    source=DOC_ROUTES,
    fix="correct the name",
    bad=_write_route("/v1", "weights"),
    good=_write_route("/v1"),
)
def check_fields(obj: Object, context: Context) -> Iterator[Hit]:
    for path, names in load_table("custom_fields").get(obj.kind, {}).items():
        for place, value in find_values(obj.body, path):
            for field in map(str, as_map(value)):
                is_known = field in names
                near_name = "" if is_known else find_near(field.replace("_", "-"), names, _NEAR)
                if near_name:
                    message = f"no such field: {field}; did you mean {near_name}?"
                    yield Hit((*place, field), message, on_key=True)


def _write_trigger(field: str) -> str:
    return f"""\
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata:
  name: worker
  namespace: batch
spec:
  scaleTargetRef:
    name: worker
  triggers:
  - type: gcp-pubsub
    metadata:
      subscriptionName: work
      {field}: "20"
"""


@rule(
    "HF793",
    "trigger-setting-unknown",
    Severity.ERROR,
    on=Object,
    kinds=_SCALED,
    what="A trigger of KEDA has a setting that its scaler does not read, or lacks its source.",
    why="The scaler fails, or takes a default: the pods stay as many as they are.",
    source=DOC_KEDA,
    fix="use the settings of the scaler's page",
    bad=_write_trigger("values"),
    good=_write_trigger("value"),
)
def check_triggers(obj: Object, context: Context) -> Iterator[Hit]:
    for index, trigger in enumerate(as_maps(obj.spec.get("triggers"))):
        table = load_table("triggers").get(as_text(trigger.get("type")))
        settings = as_map(trigger.get("metadata"))
        path = ("spec", "triggers", index, "metadata")
        if table is None or not settings:
            continue
        for name in settings:
            near_name = find_near(str(name), table["fields"], _NEAR)
            if near_name and name not in table["fields"]:
                message = f"nothing reads {name}; did you mean {near_name}?"
                yield Hit((*path, name), message, on_key=True)
        if not set(table["needed"]) & settings.keys():
            yield Hit(path, f"needs {table['needed'][0]}")
        address = as_text(settings.get("serverAddress"))
        if address and "://" not in address and not _PLACEHOLDER.search(address[:_LONGEST]):
            yield Hit((*path, "serverAddress"), f"{address[:80]} is no URL: http://HOST:PORT")
