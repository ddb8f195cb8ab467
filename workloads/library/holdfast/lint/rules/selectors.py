"""HF148: Services, budgets, monitors and NetworkPolicies select pods, and ports of these pods."""

import re
from collections.abc import Iterator
from typing import Any

from holdfast.lint.document import Path
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.object_index import get_selector, match_labels, selects
from holdfast.lint.objects import KNOWN_KINDS, Object, Pod, as_int, as_list, as_maps, as_text, dig
from holdfast.lint.registry import Context, rule

DOC_SERVICE = "https://kubernetes.io/docs/concepts/services-networking/service/"
_CONTROLLER_LABELS = (
    "apps.kubernetes.io/",
    "batch.kubernetes.io/",
    "controller-revision-hash",
    "controller-uid",
    "job-name",
    "jobset.sigs.k8s.io/",
    "kueue.x-k8s.io/",
    "pod-template-hash",
    "statefulset.kubernetes.io/",
)
_SELECTING = ("Service", "PodDisruptionBudget", "PodMonitoring", "NetworkPolicy")
_SERVED = """\
ports: [{containerPort: 8080}]
---
apiVersion: v1
kind: Service
metadata: {name: server, namespace: serving}
spec: {selector: {app: SELECTED}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: answer, namespace: serving}
spec:
  podSelector: {matchLabels: {app: server}}
  ingress: [{from: [{podSelector: {matchLabels: {app: proxy}}}], ports: [{port: OPENED}]}]
"""


def serve(selected: str = "server", opened: int = 8080) -> str:
    """Returns an example of a server whose clients come through a Service and a policy."""
    return _SERVED.replace("SELECTED", selected).replace("OPENED", str(opened))


@rule(
    "HF148",
    "reaches-no-pod",
    Severity.ERROR,
    on=Object,
    what=(
        "A Service, budget, monitor or NetworkPolicy selects none of the pods in its file, or a"
        " port that they do not have."
    ),
    why=(
        "Requests get no answer, a budget protects nothing, a policy opens nothing; and no event"
        " says so."
    ),
    source=DOC_SERVICE,
    fix="select by the labels of the pod template, and a port of its containers",
    base="serving-container",
    bad=serve("servers"),
    good=serve(),
)
def reaches_no_pod(obj: Object, context: Context) -> Iterator[Hit]:
    selector = get_selector(obj) if obj.kind in _SELECTING else {}
    if not any(selector.values()):
        return
    pods = context.index.select_pods(obj.namespace, selector)
    if not pods and _misses_all(selector, context.index.list_pods_near(obj)):
        field = "podSelector" if obj.kind == "NetworkPolicy" else "selector"
        yield Hit(("spec", field), "selects none of the pods in its file")
    elif not pods and obj.namespace:
        spaces = _find_spaces(obj, selector, context)
        if spaces:
            message = f"its pods are in {', '.join(spaces)}, not in {obj.namespace}"
            yield Hit(("metadata", "namespace"), message)
    if not pods or not all(_declares_ports(pod) for pod in pods):
        return
    for path, port in list_ports(obj):
        if not any(find_port(port, pod) for pod in pods):
            if not any(_names_port(port, pod) for pod in pods):
                yield Hit(path, f"no container of its pods has the port {port}")
        elif obj.kind == "Service":
            protocol = as_text(dig(obj.body, *path[:-1], "protocol")) or "TCP"
            protocols: set[str] = set()
            for pod in pods:
                protocols.update(_list_protocols(port, pod))
            if protocols and protocol not in protocols:
                message = f"is {protocol}, and the port of its pods is {', '.join(protocols)}"
                yield Hit(path[:-1], message)


def _names_port(port: int | str, pod: Pod) -> bool:
    """Returns whether an argument in the pod names a port, which need not be declared."""
    pattern = re.compile(rf"(?<!\d){re.escape(str(port))}(?!\d)")
    for container in pod.containers:
        if any(pattern.search(word[:500]) for word in container.arguments):
            return True
    return False


def _find_spaces(obj: Object, selector: dict[str, Any], context: Context) -> list[str]:
    """Lists the other namespaces in which a selector matches pods of the object's file."""
    namespaces: set[str] = set()
    if not match_labels(selector):
        return []
    for objects in list(context.index.by_kind.values()):
        for owner in objects:
            is_near = owner.file == obj.file and owner.namespace
            if is_near and any(selects(selector, pod) for pod in owner.pods):
                namespaces.add(owner.namespace)
    return sorted(namespaces)


def _misses_all(selector: dict[str, Any], pods: list[Pod]) -> bool:
    """Returns whether pods can be judged and a selector matches none of them.

    Labels that a controller adds with values unknown here are left out.
    """
    labels = match_labels(selector)
    if pods and all(pod.owner.kind == "LeaderWorkerSet" for pod in pods):
        return _misses_groups(labels, pods)
    if not pods or any(pod.owner.kind not in KNOWN_KINDS for pod in pods):
        return False
    for key in tuple(labels):
        is_known = any(key in pod.all_labels for pod in pods)
        if key.startswith(_CONTROLLER_LABELS) and not is_known:
            del labels[key]
    return not any(selects(selector | {"matchLabels": labels}, pod) for pod in pods)


def _misses_groups(labels: dict[str, str], pods: list[Pod]) -> bool:
    """Returns whether all group templates with a label of the selector have another value of it."""
    for key, value in labels.items():
        values = [str(pod.all_labels[key]) for pod in pods if key in pod.all_labels]
        if values and value not in values:
            return True
    return False


def _declares_ports(pod: Pod) -> bool:
    return any(container.ports for container in pod.containers)


def list_ports(obj: Object | None) -> list[tuple[Path, int | str]]:
    """Lists the ports of pods that a Service or a monitor names, each with its path."""
    if obj is None or obj.kind not in ("Service", "PodMonitoring"):
        return []
    field = "endpoints" if obj.kind == "PodMonitoring" else "ports"
    ports: list[tuple[Path, int | str]] = []
    for index, entry in enumerate(as_list(obj.spec.get(field))):
        is_target = obj.kind == "Service" and dig(entry, "targetPort")
        key = "targetPort" if is_target else "port"
        port = dig(entry, key)
        if as_int(port) or as_text(port):
            ports.append((("spec", field, index, key), port))
    return ports


def _list_protocols(port: int | str, pod: Pod) -> list[str]:
    """Lists the protocols of a port of a pod's containers."""
    protocols: list[str] = []
    for container in pod.containers:
        for entry in as_maps(container.body.get("ports")):
            if port in (entry.get("containerPort"), entry.get("name")):
                protocols.append(as_text(entry.get("protocol")) or "TCP")
    return protocols


def find_port(port: int | str, pod: Pod) -> int:
    """Returns the number of a port; 0 where no container declares it."""
    for container in pod.containers:
        for number, name in container.ports.items():
            if port in (number, name):
                return number
    return 0
