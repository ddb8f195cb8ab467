"""HF59x: quotas and limits of a namespace against its pods, and names at its edge."""

import json
from collections.abc import Iterator

from holdfast.lint.document import Path
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.known_values import load_table
from holdfast.lint.objects import Object, Pod, as_list, as_map, as_maps, as_text, dig
from holdfast.lint.registry import Context, rule
from holdfast.lint.spelling import find_near
from holdfast.support.values import quantity

DOC_QUOTA = "https://kubernetes.io/docs/concepts/policy/resource-quotas/"
DOC_RANGE = "https://kubernetes.io/docs/concepts/policy/limit-range/"
DOC_INGRESS = "https://cloud.google.com/kubernetes-engine/docs/how-to/ingress-configuration"
_BACKEND = "cloud.google.com/backend-config"
_CERTIFICATES = "networking.gke.io/managed-certificates"


def _quota(hard: str) -> str:
    return f"""\
spec: {{replicas: 2}}
---
apiVersion: v1
kind: ResourceQuota
metadata: {{name: serving, namespace: serving}}
spec: {{hard: {hard}}}
"""


@rule(
    "HF590",
    "quota-below-the-pods",
    Severity.ERROR,
    on=Object,
    kinds=("ResourceQuota",),
    what="The pods of a namespace ask for more than its quota, or lack what the quota counts.",
    why="The API server refuses the pods beyond it: the workload stays short of replicas.",
    source=DOC_QUOTA,
    fix="raise the quota, or ask for less; state each amount that the quota counts",
    base="serving",
    bad=_quota('{pods: "1"}'),
    good=_quota('{pods: "9"}'),
)
def compare_quota(obj: Object, context: Context) -> Iterator[Hit]:
    pods = context.index.select_pods(obj.namespace, {})
    defaults: set[str] = set()
    for limit_range in context.index.list_namespace("LimitRange", obj.namespace):
        for entry in as_maps(limit_range.spec.get("limits")):
            defaults |= as_map(entry.get("default")).keys()
    for key, amount in as_map(obj.spec.get("hard")).items():
        path = ("spec", "hard", key)
        known_keys = load_table("quotas")["keys"]
        near_key = find_near(key, known_keys, 0.8)
        if key not in known_keys and near_key and "/" not in key:
            yield Hit(path, f"no quota of {key}; did you mean {near_key}?")
        if "/" in key and not key.startswith(("requests.", "count/")) and "storageclass" not in key:
            yield Hit(path, f"a quota of {key} is written requests.{key}")
        bound = quantity(amount)
        if bound is None or obj.spec.get("scopes") or obj.spec.get("scopeSelector"):
            continue
        total = _sum_pods(pods, key)
        if total > bound:
            yield Hit(path, f"its pods ask for {total:g}, and the quota is {amount}")
        is_limit = key in ("limits.cpu", "limits.memory")
        if is_limit and key.partition(".")[2] not in defaults:
            yield from _check_limits(path, key, pods)


def _sum_pods(pods: list[Pod], key: str) -> float:
    """Adds up what pods ask for at once. Jobs may run one after the other."""
    total = 0.0
    largest_job = 0.0
    for pod in pods:
        amount = pod.replicas * (1.0 if key == "pods" else _sum_pod(pod, key))
        if pod.job:
            largest_job = max(largest_job, amount)
        else:
            total += amount
    return total + largest_job


def _sum_pod(pod: Pod, key: str) -> float:
    """Adds up what the containers of a pod ask for of the resource that a quota counts."""
    field, _, resource = key.partition(".")
    if field not in ("requests", "limits"):
        field = "requests"
        resource = key
    total = 0.0
    for container in pod.main_containers:
        amount = container.request(resource) if field == "requests" else container.limit(resource)
        total += quantity(amount) or 0.0
    return total


def _check_limits(path: Path, key: str, pods: list[Pod]) -> Iterator[Hit]:
    """Yields pods that state no limit where a quota counts limits."""
    resource = key.partition(".")[2]
    for pod in pods:
        for container in pod.containers:
            if container.limit(resource) is None:
                yield Hit(path, f"{pod.owner.name} states no limit of {resource}: it is refused")
                return


def _limit_range(fields: str) -> str:
    return f"""\
apiVersion: v1
kind: LimitRange
metadata: {{name: serving, namespace: serving}}
spec: {{limits: [{{type: Container, {fields}}}]}}
"""


@rule(
    "HF591",
    "outside-the-range",
    Severity.ERROR,
    on=Object,
    kinds=("LimitRange",),
    what="A LimitRange contradicts itself, or the containers of its namespace.",
    why="The API server refuses the LimitRange, or the pods outside it.",
    source=DOC_RANGE,
    fix="min <= defaultRequest <= default <= max, and containers inside",
    bad=_limit_range("default: {memory: 8Gi}, max: {memory: 4Gi}"),
    good=_limit_range("default: {memory: 2Gi}, max: {memory: 4Gi}"),
)
def compare_ranges(obj: Object, context: Context) -> Iterator[Hit]:
    for index, entry in enumerate(as_maps(obj.spec.get("limits"))):
        path: Path = ("spec", "limits", index)
        order = ("min", "defaultRequest", "default", "max")
        for resource, amount in as_map(entry.get("max")).items():
            bound = quantity(amount)
            for name in order:
                size = quantity(dig(entry, name, resource))
                if size is not None and bound is not None and size > bound:
                    yield Hit((*path, name), f"{name} of {resource} is above max {amount}")
            if entry.get("type") == "Container":
                yield from _check_containers((*path, "max"), resource, amount, obj, context)


def _check_containers(
    path: Path, resource: str, amount: object, obj: Object, context: Context
) -> Iterator[Hit]:
    bound = quantity(amount)
    for pod in context.index.select_pods(obj.namespace, {}):
        for container in pod.containers:
            size = quantity(container.limit(resource)) or quantity(container.request(resource))
            if bound is not None and size is not None and size > bound:
                message = f"{pod.owner.name} asks for {size:g} of {resource}, and max is {amount}"
                yield Hit(path, message)
                return


def _service(annotation: str) -> str:
    return f"""\
apiVersion: v1
kind: Service
metadata:
  name: server
  namespace: serving
  annotations:
    cloud.google.com/backend-config: '{annotation}'
spec: {{selector: {{app: server}}, ports: [{{port: 80}}]}}
---
apiVersion: cloud.google.com/v1
kind: BackendConfig
metadata: {{name: server, namespace: serving}}
spec: {{timeoutSec: 60}}
"""


@rule(
    "HF592",
    "edge-names-nothing",
    Severity.ERROR,
    on=Object,
    kinds=("Service", "Ingress", "Gateway"),
    what="A Service, an Ingress or a Gateway names an object that its files do not have.",
    why="The load balancer is not made, or goes on with its default timeout and no certificate.",
    source=DOC_INGRESS,
    fix="write the object's own name, in the same namespace",
    bad=_service('{"default": "servers"}'),
    good=_service('{"default": "server"}'),
)
def check_edge_names(obj: Object, context: Context) -> Iterator[Hit]:
    yield from _check_certificates(obj, context)
    names: list[tuple[str, str, str]] = []
    for name in _list_backends(as_text(obj.annotations.get(_BACKEND))):
        names.append((_BACKEND, "BackendConfig", name))
    for name in as_text(obj.annotations.get(_CERTIFICATES)).split(","):
        names.append((_CERTIFICATES, "ManagedCertificate", name.strip()))
    for key, kind, name in names:
        neighbors: list[Object] = []
        for item in context.index.by_kind.get(kind, []):
            if item.file == obj.file:
                neighbors.append(item)
        if name and neighbors and not context.index.find(kind, name, obj.namespace):
            listed = ", ".join(item.title for item in neighbors)
            yield Hit(("metadata", "annotations", key), f"no {kind} {name}; its file has {listed}")


def _check_certificates(obj: Object, context: Context) -> Iterator[Hit]:
    """Yields a missing TLS Secret of an Ingress or a Gateway whose file has TLS Secrets."""
    places: list[tuple[Path, str]] = []
    for index, entry in enumerate(as_list(obj.spec.get("tls"))):
        path: Path = ("spec", "tls", index, "secretName")
        places.append((path, as_text(dig(entry, "secretName"))))
    for number, listener in enumerate(as_list(obj.spec.get("listeners"))):
        for index, entry in enumerate(as_list(dig(listener, "tls", "certificateRefs"))):
            path = ("spec", "listeners", number, "tls", "certificateRefs", index, "name")
            places.append((path, as_text(dig(entry, "name"))))
    secrets: list[str] = []
    for secret in context.index.list_namespace("Secret", obj.namespace):
        if secret.file == obj.file and secret.body.get("type") == "kubernetes.io/tls":
            secrets.append(secret.name)
    for path, name in places if secrets else ():
        if name and not context.index.find("Secret", name, obj.namespace):
            yield Hit(path, f"no Secret {name}; its file has {', '.join(secrets[:3])}")


def _list_backends(text: str) -> list[str]:
    """Returns the BackendConfigs that an annotation names; none where it is no JSON."""
    try:
        body = as_map(json.loads(text[:2_000] or "{}"))
    except (ValueError, RecursionError):
        return []
    names = [body.get("default")]
    ports = as_map(body.get("ports"))
    names.extend(ports.values())
    return [as_text(name) for name in names if as_text(name)]
