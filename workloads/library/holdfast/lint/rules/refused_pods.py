"""HF803 to HF807: pods and objects that are refused together with what is around them.

Why it is so: infra/decisions/0200.
"""

from collections.abc import Iterator
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any

from holdfast.lint.document import Path
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.objects import (
    DEFAULT_NAMESPACE,
    PROBES,
    Container,
    Object,
    Pod,
    as_int,
    as_list,
    as_map,
    as_maps,
    as_text,
    as_texts,
    dig,
)
from holdfast.lint.registry import Context, rule

DOC_POD = "https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/"
DOC_LEVELS = "https://kubernetes.io/docs/concepts/security/pod-security-standards/"
DOC_POLICIES = "https://kubernetes.io/docs/concepts/services-networking/network-policies/"
DOC_PRIORITY = "https://cloud.google.com/kubernetes-engine/docs/how-to/custom-priority"
_KEPT_ALIVE = ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet")
_ENFORCE = "pod-security.kubernetes.io/enforce"
# What a pod of the level `baseline` may not share with its node.
_SHARED = ("hostNetwork", "hostPID", "hostIPC")
_SYSTEM_CLASSES = ("system-cluster-critical", "system-node-critical")
_SYSTEM_NAMESPACES = ("kube-system", "gmp-system", "gke-managed-system", "gatekeeper-system")


@rule(
    "HF803",
    "field-of-another-owner",
    Severity.ERROR,
    on=Pod,
    what="A pod has a field that its owner, or another of its fields, does not allow.",
    why="The API server refuses the object.",
    source=DOC_POD,
    fix="remove the field; work that ends belongs into a Job",
    base="serving-pod",
    bad="""\
activeDeadlineSeconds: 3600
""",
    good="""\
terminationGracePeriodSeconds: 60
""",
)
def check_owners(pod: Pod, context: Context) -> Iterator[Hit]:
    kind = pod.owner.kind
    if kind in _KEPT_ALIVE and pod.spec.get("activeDeadlineSeconds") is not None:
        path = (*pod.spec_path, "activeDeadlineSeconds")
        yield Hit(path, f"pods of a {kind} have no deadline")
    if kind in _KEPT_ALIVE and pod.spec.get("restartPolicy") in ("Never", "OnFailure"):
        yield Hit((*pod.spec_path, "restartPolicy"), f"pods of a {kind} have Always")
    # An object that was read from a cluster has the number.
    if pod.spec.get("priority") is not None and "status" not in pod.owner.body:
        yield Hit((*pod.spec_path, "priority"), "the number comes from priorityClassName")
    for index, entry in enumerate(as_maps(pod.spec.get("topologySpreadConstraints"))):
        if entry.get("minDomains") and entry.get("whenUnsatisfiable") == "ScheduleAnyway":
            path = (*pod.spec_path, "topologySpreadConstraints", index, "minDomains")
            yield Hit(path, "minDomains needs DoNotSchedule")
    yield from _check_profile((*pod.spec_path, "securityContext"), pod.spec)
    for container in pod.containers:
        yield from _check_profile((*container.path, "securityContext"), container.body)
        yield from _check_container(container)


def _check_profile(path: Path, body: dict[str, Any]) -> Iterator[Hit]:
    profile = as_map(dig(body, "securityContext", "seccompProfile"))
    if profile.get("type") == "Localhost" and not profile.get("localhostProfile"):
        yield Hit((*path, "seccompProfile"), "Localhost needs localhostProfile")
    if profile.get("type") == "RuntimeDefault" and profile.get("localhostProfile"):
        yield Hit((*path, "seccompProfile"), "RuntimeDefault takes no localhostProfile")


def _check_container(container: Container) -> Iterator[Hit]:
    is_sidecar = container.body.get("restartPolicy") == "Always"
    for field in (*PROBES, "lifecycle"):
        if not container.is_main and not is_sidecar and field in container.body:
            message = f"an init container has no {field} without restartPolicy: Always"
            yield Hit((*container.path, field), message)
    requests = as_map(dig(container.body, "resources", "requests"))
    for resource in requests:
        is_huge = str(resource).startswith("hugepages-")
        if is_huge and container.limit(str(resource)) != requests[resource]:
            path = (*container.path, "resources", "requests", resource)
            yield Hit(path, f"{resource} needs a limit of the same amount")


def _write_twice(name: str) -> str:
    return f"""\
apiVersion: v1
kind: ConfigMap
metadata:
  name: settings
  namespace: batch
data:
  RATE: "1"
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: {name}
  namespace: batch
data:
  RATE: "2"
"""


@rule(
    "HF804",
    "object-given-twice",
    Severity.WARNING,
    on=Object,
    what="A file has two objects of the same kind and name, with different content.",
    why="The second one replaces the first one in the cluster.",
    source="https://kubernetes.io/docs/concepts/overview/working-with-objects/names/",
    fix="rename one, or join them",
    bad=_write_twice("settings"),
    good=_write_twice("others"),
)
def check_twins(obj: Object, context: Context) -> Iterator[Hit]:
    if not obj.metadata.get("name") or context.index.is_patch(obj):
        return
    group = as_text(obj.body.get("apiVersion")).rpartition("/")[0]
    for other in context.index.find_all(obj.kind, obj.name):
        if other is obj:
            return
        is_same_place = other.file == obj.file and other.namespace == obj.namespace
        other_group = as_text(other.body.get("apiVersion")).rpartition("/")[0]
        if is_same_place and other_group == group and other.body != obj.body:
            yield Hit(("metadata", "name"), f"{obj.kind} {obj.name} is there before")
            return


def _write_level(level: str) -> str:
    return f"""\
apiVersion: v1
kind: Namespace
metadata:
  name: batch
  labels:
    {_ENFORCE}: {level}
---
apiVersion: v1
kind: Pod
metadata:
  name: prepare
  namespace: batch
spec:
  containers:
  - name: main
    image: registry.example/prepare:1.4
"""


@rule(
    "HF805",
    "below-the-level-of-its-namespace",
    Severity.ERROR,
    on=Pod,
    what="A pod does what the level of pod security of its namespace does not allow.",
    why="The API server refuses the pod; its Job or Deployment stays without pods.",
    source=DOC_LEVELS,
    fix="state the fields of the level, or give the namespace another one",
    bad=_write_level("restricted"),
    good=_write_level("baseline"),
)
def check_levels(pod: Pod, context: Context) -> Iterator[Hit]:
    namespace = context.index.find("Namespace", pod.owner.namespace or DEFAULT_NAMESPACE)
    level = namespace.labels.get(_ENFORCE) if namespace else None
    if level not in ("baseline", "restricted"):
        return
    for field in _SHARED:
        if pod.spec.get(field) is True:
            yield Hit((*pod.spec_path, field), f"{field}, and {level} forbids it")
    for path, volume in pod.volumes:
        if "hostPath" in volume:
            yield Hit((*path, "hostPath"), f"a folder of the node, and {level} forbids it")
    for container in pod.containers:
        missing = _find_missing(container, str(level))
        if missing:
            yield Hit(container.path, f"{missing}, and the namespace is {level}")


def _find_missing(container: Container, level: str) -> str:
    """Returns what keeps a container out of a level; empty where nothing does."""
    settings = as_map(container.body.get("securityContext"))
    inherited = as_map(container.pod.spec.get("securityContext")) | settings
    if settings.get("privileged") is True:
        return "is privileged"
    if any(as_int(port.get("hostPort")) for port in as_maps(container.body.get("ports"))):
        return "has a hostPort"
    if level == "baseline":
        return ""
    drops = as_texts(dig(settings, "capabilities", "drop"))
    profile = dig(inherited, "seccompProfile", "type")
    needs = {
        "has no runAsNonRoot": inherited.get("runAsNonRoot") is True,
        "has no allowPrivilegeEscalation: false": settings.get("allowPrivilegeEscalation") is False,
        "does not drop ALL capabilities": "ALL" in drops,
        "has no seccompProfile": profile in ("RuntimeDefault", "Localhost"),
    }
    return next((need for need, is_met in needs.items() if not is_met), "")


def _write_block(cidr: str) -> str:
    return f"""\
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: out
  namespace: batch
spec:
  podSelector: {{}}
  policyTypes:
  - Egress
  egress:
  - to:
    - ipBlock:
        cidr: 10.0.0.0/8
        except:
        - {cidr}
  - ports:
    - port: 53
      protocol: UDP
    - port: 53
      protocol: TCP
"""


@rule(
    "HF806",
    "policy-range-wrong",
    Severity.ERROR,
    on=Object,
    kinds=("NetworkPolicy",),
    what="A policy leaves out addresses that it does not contain, or a range of ports ends early.",
    why="The API server refuses the policy.",
    source=DOC_POLICIES,
    fix="`except` lies within `cidr`; endPort is not below port",
    bad=_write_block("192.168.0.0/16"),
    good=_write_block("10.1.0.0/16"),
)
def check_ranges(obj: Object, context: Context) -> Iterator[Hit]:
    for direction, field in (("ingress", "from"), ("egress", "to")):
        for index, entry in enumerate(as_list(obj.spec.get(direction))):
            path = ("spec", direction, index)
            for number, peer in enumerate(as_list(dig(entry, field))):
                block = as_map(dig(peer, "ipBlock"))
                yield from _check_block((*path, field, number, "ipBlock"), block)
            for number, port in enumerate(as_maps(dig(entry, "ports"))):
                first = as_int(port.get("port"))
                last = as_int(port.get("endPort"))
                if last is not None and (first is None or last < first):
                    message = f"endPort {last} is below port {port.get('port')}"
                    yield Hit((*path, "ports", number, "endPort"), message)


def _check_block(path: Path, block: dict[str, Any]) -> Iterator[Hit]:
    whole = _parse_network(block.get("cidr"))
    for index, text in enumerate(as_list(block.get("except"))):
        part = _parse_network(text)
        is_comparable = whole is not None and part is not None and whole.version == part.version
        if is_comparable and not _contains(whole, part):
            yield Hit((*path, "except", index), f"{text} is not within {block['cidr']}")


def _parse_network(text: Any) -> IPv4Network | IPv6Network | None:
    try:
        return ip_network(as_text(text)[:100], strict=False)
    except ValueError:
        return None


def _contains(
    whole: IPv4Network | IPv6Network | None, part: IPv4Network | IPv6Network | None
) -> bool:
    if isinstance(whole, IPv4Network) and isinstance(part, IPv4Network):
        return part.subnet_of(whole)
    if isinstance(whole, IPv6Network) and isinstance(part, IPv6Network):
        return part.subnet_of(whole)
    return True


def _write_critical(namespace: str) -> str:
    return f"""\
apiVersion: v1
kind: Pod
metadata:
  name: prepare
  namespace: {namespace}
spec:
  priorityClassName: system-cluster-critical
  containers:
  - name: main
    image: registry.example/prepare:1.4
"""


@rule(
    "HF807",
    "class-of-the-system",
    Severity.WARNING,
    on=Pod,
    what="A pod outside the system's namespaces has a priority class of the system.",
    why="GKE refuses such pods without a quota for the class; admitted ones evict all others.",
    source=DOC_PRIORITY,
    fix="use a PriorityClass of your own",
    bad=_write_critical("batch"),
    good=_write_critical("kube-system"),
)
def check_system_classes(pod: Pod, context: Context) -> Iterator[Hit]:
    namespace = pod.owner.namespace
    name = pod.spec.get("priorityClassName")
    is_system = not namespace or namespace.endswith("-system") or namespace in _SYSTEM_NAMESPACES
    if name not in _SYSTEM_CLASSES or is_system:
        return
    if not context.index.list_namespace("ResourceQuota", namespace):
        yield Hit((*pod.spec_path, "priorityClassName"), f"{name} in {namespace}")
