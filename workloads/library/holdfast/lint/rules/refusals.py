"""HF51x: values that the API server refuses, or takes for another object."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.lint import api_fields
from holdfast.lint.document import Path
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.known_values import load_table
from holdfast.lint.objects import Object, as_int, as_list, as_map, as_text, dig
from holdfast.lint.registry import Context, rule
from holdfast.lint.spelling import count_differences, suggest

DOC_NAMES = "https://kubernetes.io/docs/concepts/overview/working-with-objects/names/"
DOC_LABELS = "https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/"
DOC_API = "https://kubernetes.io/docs/reference/kubernetes-api/"
_SUBDOMAIN = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")
_PORT_NAME = re.compile(r"(?=.*[a-z])[a-z0-9]([a-z0-9-]{0,13}[a-z0-9])?")
# Placeholders of templates, and names that a reader of a sample replaces, as PROJECT_ID.
_PLACEHOLDER = re.compile(r"[$<{]|^[A-Z][A-Z0-9_]+$")
_RBAC_KINDS = ("Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding")
_SHORT_NAMED = {"CronJob": 52, "Job": 63, "Service": 63, "JobSet": 52}
_STABLE = re.compile(r"(^|/)v\d+$")
_FIELD_PATHS = re.compile(
    r"metadata\.(name|namespace|uid)|metadata\.(labels|annotations)(\['[^']{1,300}'\])?"
    r"|spec\.(nodeName|serviceAccountName)|status\.(hostIPs?|podIPs?)"
)


@rule(
    "HF510",
    "value-unknown",
    Severity.ERROR,
    on=Object,
    what="A field has a value that Kubernetes does not know.",
    why="The API server refuses the object.",
    source=DOC_API,
    fix="use one of the values",
    base="container",
    bad="""\
imagePullPolicy: IfNotFound
""",
    good="""\
imagePullPolicy: IfNotPresent
""",
)
def value_unknown(obj: Object, context: Context) -> Iterator[Hit]:
    for path, type_name, value in api_fields.walk_object(obj):
        known_values = load_table("values").get(type_name, {}) | api_fields.get_enums(type_name)
        for field, values in known_values.items():
            yield from _check_value((*path, field), value.get(field), values)
        for field, values in load_table("items").get(type_name, {}).items():
            for index, item in enumerate(as_list(value.get(field))):
                yield from _check_value((*path, field, index), item, values)
        for field, (low, high) in load_table("ranges").get(type_name, {}).items():
            number = as_int(value.get(field))
            if number is not None and not low <= number <= high:
                yield Hit((*path, field), f"{number} is not between {low} and {high}")
        if type_name == "V1ObjectFieldSelector":
            yield from _check_field_path(path, value)


def _check_value(path: Path, value: Any, values: Sequence[str]) -> Iterator[Hit]:
    if value is None or value in values or _PLACEHOLDER.search(str(value)[:200]):
        return
    hint = suggest(str(value), values, otherwise=f"; there are {', '.join(values)}")
    yield Hit(path, f"there is no value {value}{hint}")


def _check_field_path(path: Path, value: dict[str, Any]) -> Iterator[Hit]:
    field_path = as_text(value.get("fieldPath"))
    if field_path and not _FIELD_PATHS.fullmatch(field_path[:500]):
        yield Hit((*path, "fieldPath"), f"{field_path} is no field of a pod for variables or files")


@rule(
    "HF511",
    "value-not-a-text",
    Severity.ERROR,
    on=Object,
    what="A label, an annotation, a variable or a word of a command is a number or true.",
    why="The API server refuses the object: these values are texts, in YAML with quotes.",
    source=DOC_LABELS,
    fix='put it in quotes: "true"',
    base="job-pod",
    bad="""\
nodeSelector:
  cloud.google.com/gke-spot: true
""",
    good="""\
nodeSelector:
  cloud.google.com/gke-spot: 'true'
""",
)
def value_not_a_text(obj: Object, context: Context) -> Iterator[Hit]:
    for path, type_name, value in api_fields.walk_object(obj):
        for field, shape in api_fields.get_shapes(type_name).items():
            item = value.get(field)
            if shape == "s":
                yield from _check_text((*path, field), item)
            elif shape == "{s":
                for key, text in as_map(item).items():
                    yield from _check_text((*path, field, key), text)
            elif shape == "[s":
                for index, text in enumerate(as_list(item)):
                    yield from _check_text((*path, field, index), text)


def _check_text(path: Path, value: Any) -> Iterator[Hit]:
    if isinstance(value, bool | int | float):
        shown = str(value).lower() if isinstance(value, bool) else str(value)
        yield Hit(path, f"{shown} is no text", fix=f'write "{shown}"')


@rule(
    "HF512",
    "name-invalid",
    Severity.ERROR,
    on=Object,
    what="A name, a label's value or the name of a port has a form that Kubernetes refuses.",
    why="Names are lower case without underscores; a label's value has no slash or space.",
    source=DOC_NAMES,
    fix="use letters, digits and hyphens; put other text into an annotation",
    base="job",
    bad="""\
metadata:
  name: train_model
""",
    good="""\
metadata:
  name: train
""",
)
def name_invalid(obj: Object, context: Context) -> Iterator[Hit]:
    name = as_text(obj.metadata.get("name"))
    if name and obj.kind not in _RBAC_KINDS and not _PLACEHOLDER.search(name[:300]):
        pattern = _LABEL if obj.kind in ("Namespace", "Service", "JobSet") else _SUBDOMAIN
        longest = _SHORT_NAMED.get(obj.kind, 253)
        is_known = api_fields.find_type(as_text(obj.body.get("apiVersion")), obj.kind)
        if is_known and (not pattern.fullmatch(name) or len(name) > longest):
            yield Hit(("metadata", "name"), f"{name} is no name of a {obj.kind}")
    bodies: list[tuple[Path, Any]] = [(("metadata", "labels"), obj.labels)]
    for pod in obj.pods:
        bodies.append(((*pod.path, "metadata", "labels"), pod.labels))
        for container in pod.containers:
            yield from _check_port_names((*container.path, "ports"), container.body.get("ports"))
    for path, labels in dict(bodies).items():
        for key, value in as_map(labels).items():
            text = as_text(value)
            if not _PLACEHOLDER.search(text[:300]) and not _VALUE.fullmatch(text):
                yield Hit((*path, key), f"{text} is no value of a label")


def _check_port_names(path: Path, ports: Any) -> Iterator[Hit]:
    for index, port in enumerate(as_list(ports)):
        name = as_text(dig(port, "name"))
        if name and not _PLACEHOLDER.search(name) and not _PORT_NAME.fullmatch(name):
            yield Hit(
                (*path, index, "name"), f"{name} is no port name: at most 15 of a-z, 0-9 and -"
            )


@rule(
    "HF513",
    "version-unknown",
    Severity.ERROR,
    on=Object,
    what="The API group or version of an object does not have its kind, or has it no more.",
    why="The API server has no such resource and takes nothing of the file.",
    source="https://kubernetes.io/docs/reference/using-api/deprecation-guide/",
    fix="write the apiVersion that has the kind",
    bad="""\
apiVersion: batch/v1beta1
kind: CronJob
metadata:
  name: a
""",
    good="""\
apiVersion: v1
kind: Namespace
metadata:
  name: a
""",
)
def version_unknown(obj: Object, context: Context) -> Iterator[Hit]:
    version = as_text(obj.body.get("apiVersion"))
    known_versions = load_table("versions")
    operator_versions = known_versions["of_kinds"].get(obj.kind, [])
    versions = api_fields.find_versions(obj.kind) or operator_versions
    if not versions and version in api_fields.list_versions():
        for kind in api_fields.list_kinds(version):
            if kind.lower() == obj.kind.lower() or _is_one_off(obj.kind, kind):
                yield Hit(("kind",), f"{version} has no {obj.kind}; did you mean {kind}?")
                return
    if not versions or version in versions:
        return
    is_still_served = obj.kind in known_versions["kinds_still_served"]
    is_removed = version in known_versions["removed"] and not is_still_served
    # The table has this version without the kind. Betas that it lacks may still be served.
    is_other = _STABLE.search(version[:100]) and version in api_fields.list_versions()
    # A version that the table lacks, of a stable API or of an operator's kind.
    group = version.rpartition("/")[0]
    is_future = _STABLE.search(version[:100]) and group in _list_groups(versions)
    is_unknown = bool(operator_versions) and group in _list_groups(versions)
    if is_removed or is_other or is_future or is_unknown:
        yield Hit(("apiVersion",), f"{version} has no {obj.kind}; it is in {', '.join(versions)}")


def _is_one_off(kind: str, known_kind: str) -> bool:
    """Returns whether a kind is a typing error of a known one."""
    is_long = min(len(kind), len(known_kind)) > 5 and abs(len(kind) - len(known_kind)) < 2
    return is_long and count_differences(kind[:60], known_kind) <= 2


def _list_groups(versions: list[str]) -> set[str]:
    return {version.rpartition("/")[0] for version in versions}


def _service(ports: str) -> str:
    return f"""\
apiVersion: v1
kind: Service
metadata: {{name: server, namespace: serving}}
spec: {{selector: {{app: server}}, ports: [{ports}]}}
"""


@rule(
    "HF514",
    "service-refused",
    Severity.ERROR,
    on=Object,
    kinds=("Service",),
    what="A Service has ports without names, the same port twice, or no address.",
    why="The API server refuses it.",
    source="https://kubernetes.io/docs/concepts/services-networking/service/",
    fix="name each of several ports; clusterIP is None or left out",
    bad=_service("{port: 80}, {port: 81}"),
    good=_service("{name: http, port: 80}, {name: metrics, port: 81}"),
)
def service_refused(obj: Object, context: Context) -> Iterator[Hit]:
    ports = as_list(obj.spec.get("ports"))
    names = [as_text(dig(port, "name")) for port in ports]
    if len(ports) > 1 and not all(names):
        yield Hit(("spec", "ports"), f"{len(ports)} ports, and not each has a name")
    if len(set(filter(None, names))) < len(list(filter(None, names))):
        yield Hit(("spec", "ports"), "two ports have the same name")
    pairs = [(dig(port, "port"), dig(port, "protocol") or "TCP") for port in ports]
    if len(set(map(str, pairs))) < len(pairs):
        yield Hit(("spec", "ports"), "two ports have the same number")
    address = as_text(obj.spec.get("clusterIP"))
    if address and address != "None" and not re.fullmatch(r"[0-9a-f.:]{2,45}", address):
        yield Hit(("spec", "clusterIP"), f"{address} is no address; write None for a headless one")
