"""HF54x: fields that exclude each other by their type, and forms that the API server refuses."""

import re
from collections.abc import Iterator
from typing import Any

from holdfast.lint import api_fields
from holdfast.lint.document import Path
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.known_values import load_table
from holdfast.lint.objects import Object, Pod, as_int, as_list, as_map, as_maps, as_text, dig
from holdfast.lint.registry import Context, rule

DOC_API = "https://kubernetes.io/docs/reference/kubernetes-api/"
DOC_SERVICE = "https://kubernetes.io/docs/concepts/services-networking/service/"
# Placeholders of templates, and names that a reader of a sample replaces, as PROJECT_ID.
_PLACEHOLDER = re.compile(r"[$<{]|^(?!CAP_|ALL$)[A-Z][A-Z0-9_]+$")
_DURATION = re.compile(r"(\d+(ms|s|m|h))+")
_LONGEST = 1_000
_OPEN_TYPES = ("NodePort", "LoadBalancer")
_GRACE = "terminationGracePeriodSeconds"
_WITHOUT_VALUES = ("Exists", "DoesNotExist")
_REQUIREMENTS = ("V1NodeSelectorRequirement", "V1LabelSelectorRequirement")


@rule(
    "HF540",
    "one-of-several",
    Severity.ERROR,
    on=Object,
    what="Of fields that exclude each other two are given, or none of those of which one must be.",
    why="The API server refuses the object.",
    source=DOC_API,
    fix="leave one of the fields",
    base="container",
    bad="""\
env:
- name: A
  value: b
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
""",
    good="""\
env:
- name: A
  value: b
""",
)
def choose_one_field(obj: Object, context: Context) -> Iterator[Hit]:
    unions = load_table("unions")
    for path, type_name, value in api_fields.walk_object(obj):
        union = unions.get(type_name)
        if union is None or (type_name == "V1Probe" and not value):
            continue
        names = [name for name in union["fields"] if value.get(name) is not None]
        if len(names) > 1:
            yield Hit(path, f"has {' and '.join(names)}, and takes one of them")
        elif len(names) < union["at_least"]:
            yield Hit(path, f"needs one of {', '.join(union['fields'])}")
    for pod in obj.pods:
        yield from _check_volumes(pod)


def _check_volumes(pod: Pod) -> Iterator[Hit]:
    for path, volume in pod.volumes:
        names = [name for name, source in volume.items() if name != "name" and source is not None]
        if len(names) > 1:
            yield Hit(path, f"has {' and '.join(names)}, and takes one of them")
        elif not volume.keys() - {"name"}:
            yield Hit(path, "has no source: it is an empty folder of the pod")


@rule(
    "HF541",
    "form-refused",
    Severity.ERROR,
    on=Object,
    what="A path, a name or an address has a form that the API server or the kubelet refuses.",
    why="The object is refused, or its containers do not start.",
    source=DOC_API,
    fix="write the value in the form that the field takes",
    base="job-pod",
    bad="""\
subdomain: Gang
""",
    good="""\
subdomain: gang
""",
)
def check_forms(obj: Object, context: Context) -> Iterator[Hit]:
    formats = load_table("formats")
    if obj.kind in ("PodMonitoring", "ClusterPodMonitoring"):
        for index, endpoint in enumerate(as_maps(obj.spec.get("endpoints"))):
            interval = endpoint.get("interval")
            if interval is not None and not _DURATION.fullmatch(str(interval)[:99]):
                place = ("spec", "endpoints", index, "interval")
                yield Hit(place, f"{interval} is not a duration, as 30s")
    for path, type_name, value in api_fields.walk_object(obj):
        for field, (pattern, words) in formats.get(type_name, {}).items():
            for place, text in _list_texts((*path, field), value.get(field)):
                is_template = _PLACEHOLDER.search(text)
                if not is_template and not re.fullmatch(pattern, text[:_LONGEST]):
                    yield Hit(place, f"{text or 'an empty text'} is not {words}")


def _list_texts(path: Path, value: Any) -> Iterator[tuple[Path, str]]:
    """Yields a text, or those of a list, each with its path."""
    if isinstance(value, str):
        yield path, value
    for index, item in enumerate(as_list(value)):
        if isinstance(item, str):
            yield (*path, index), item


def _service(fields: str) -> str:
    return f"""\
apiVersion: v1
kind: Service
metadata: {{name: server, namespace: serving}}
spec: {{selector: {{app: server}}, {fields}}}
"""


@rule(
    "HF542",
    "not-for-this-type",
    Severity.ERROR,
    on=Object,
    what="A field is given that the object's own type, operator or class does not take.",
    why="The API server refuses the object.",
    source=DOC_SERVICE,
    fix="remove the field, or choose the type that takes it",
    bad=_service("ports: [{port: 80, nodePort: 30080}]"),
    good=_service("type: NodePort, ports: [{port: 80, nodePort: 30080}]"),
)
def check_dependent_fields(obj: Object, context: Context) -> Iterator[Hit]:
    if obj.kind == "Service":
        yield from _check_service(obj)
    for path, type_name, value in api_fields.walk_object(obj):
        if type_name in _REQUIREMENTS:
            yield from _check_requirement(path, value)
        if type_name == "V1PodSpec" and value.get("priorityClassName") and "priority" in value:
            yield Hit((*path, "priority"), "the class gives the priority")
        if type_name == "V1Container" and dig(value, "readinessProbe", _GRACE) is not None:
            yield Hit((*path, "readinessProbe", _GRACE), "a readiness probe ends no container")
        if type_name == "V1ResourceFieldSelector" and value.get("containerName"):
            names: list[str] = []
            for pod in obj.pods:
                for container in pod.containers:
                    names.append(container.name)
            if value["containerName"] not in names:
                message = f"no container {value['containerName']}; there are {', '.join(names)}"
                yield Hit((*path, "containerName"), message)
        has_servers = bool(dig(value, "dnsConfig", "nameservers"))
        if type_name == "V1PodSpec" and value.get("dnsPolicy") == "None" and not has_servers:
            yield Hit((*path, "dnsPolicy"), "None needs dnsConfig with nameservers")
        if type_name == "V1JobSpec":
            yield from _check_job(path, value)


def _check_service(obj: Object) -> Iterator[Hit]:
    kind = as_text(obj.spec.get("type")) or "ClusterIP"
    is_open = kind in _OPEN_TYPES
    for index, port in enumerate(as_maps(obj.spec.get("ports"))):
        if as_int(port.get("nodePort")) and not is_open:
            yield Hit(("spec", "ports", index, "nodePort"), f"a {kind} Service has no node ports")
    if obj.spec.get("externalTrafficPolicy") and not is_open:
        yield Hit(("spec", "externalTrafficPolicy"), f"a {kind} Service has no external traffic")
    for field in ("loadBalancerIP", "loadBalancerSourceRanges", "loadBalancerClass"):
        if obj.spec.get(field) and kind != "LoadBalancer":
            yield Hit(("spec", field), f"a {kind} Service has no load balancer")
    if kind == "ExternalName" and not obj.spec.get("externalName"):
        yield Hit(("spec", "type"), "ExternalName needs externalName")
    if is_open and obj.spec.get("clusterIP") == "None":
        yield Hit(("spec", "clusterIP"), f"a {kind} Service needs an address")


def _check_requirement(path: Path, requirement: dict[str, Any]) -> Iterator[Hit]:
    operator = requirement.get("operator")
    values = as_list(requirement.get("values"))
    if operator in _WITHOUT_VALUES and values:
        yield Hit((*path, "values"), f"{operator} takes no values")
    elif operator in ("In", "NotIn") and not values:
        yield Hit(path, f"{operator} needs values")
    elif operator in ("Gt", "Lt") and (len(values) != 1 or not str(values[0]).isdecimal()):
        yield Hit((*path, "values"), f"{operator} takes one whole number")


def _check_job(path: Path, spec: dict[str, Any]) -> Iterator[Hit]:
    if as_map(spec.get("selector")) and spec.get("manualSelector") is not True:
        yield Hit(
            (*path, "selector"), "a Job selects its pods by itself: manualSelector is not set"
        )
    failures = as_int(spec.get("maxFailedIndexes"))
    completions = as_int(spec.get("completions"))
    if failures is not None and completions is not None and failures > completions:
        yield Hit((*path, "maxFailedIndexes"), f"{failures} of {completions} indices")
    parallelism = as_int(spec.get("parallelism"))
    if completions and parallelism and parallelism > completions:
        message = f"{parallelism} pods at once, {completions} completions"
        fix = "lower it; for a queue of work, no completions"
        yield Hit((*path, "parallelism"), message, fix=fix)
