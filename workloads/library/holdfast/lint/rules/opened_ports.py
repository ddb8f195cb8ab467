"""HF845: policies that open the port of a Service in place of that of its pods.

Why it is so: infra/decisions/0200.
"""

from collections.abc import Iterator
from typing import Any

from holdfast.lint.finding import Hit, Severity
from holdfast.lint.object_index import get_selector, selects
from holdfast.lint.objects import Object, Pod, as_int, as_list, as_map, as_maps, dig
from holdfast.lint.registry import Context, rule

DOC_POLICY = "https://kubernetes.io/docs/concepts/services-networking/network-policies/"


def _write_policy(port: int) -> str:
    return f"""\
metadata:
  name: server
spec:
  template:
    spec:
      containers:
      - name: main
        image: registry.example/server:1.4
        resources:
          limits:
            nvidia.com/gpu: 1
        ports:
        - containerPort: 8080
---
apiVersion: v1
kind: Service
metadata:
  name: server
  namespace: serving
spec:
  selector:
    app: server
  ports:
  - port: 80
    targetPort: 8080
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: server
  namespace: serving
spec:
  podSelector:
    matchLabels:
      app: server
  policyTypes:
  - Ingress
  ingress:
  - ports:
    - port: 8080
  - from:
    - namespaceSelector:
        matchLabels:
          kubernetes.io/metadata.name: web
    ports:
    - port: {port}
"""


@rule(
    "HF845",
    "opens-the-port-of-the-service",
    Severity.ERROR,
    on=Object,
    kinds=("NetworkPolicy",),
    what="A NetworkPolicy opens a port that the pods do not have, and their Service does.",
    why="Policies see the port of the pod: clients of the Service are shut out.",
    source=DOC_POLICY,
    fix="write the targetPort of the Service",
    base="serving",
    bad=_write_policy(80),
    good=_write_policy(8080),
)
def check_opened_ports(obj: Object, context: Context) -> Iterator[Hit]:
    selector = obj.spec.get("podSelector")
    if any(as_map(selector).values()):
        pods = context.index.select_pods(obj.namespace, selector)
        for index, entry in enumerate(as_maps(obj.spec.get("ingress"))):
            path = ("spec", "ingress", index, "ports")
            for number, port in _list_mistaken(entry, pods, context):
                yield Hit((*path, number, "port"), f"{port} is the port of a Service")
    for index, entry in enumerate(as_maps(obj.spec.get("egress"))):
        path = ("spec", "egress", index, "ports")
        for peer in as_maps(entry.get("to")):
            # Peers of other namespaces may be other pods of the same labels.
            peer_selector = peer.get("podSelector")
            if peer.keys() != {"podSelector"} or not any(as_map(peer_selector).values()):
                continue
            pods = context.index.select_pods(obj.namespace, peer_selector)
            for number, port in _list_mistaken(entry, pods, context):
                yield Hit((*path, number, "port"), f"{port} is the port of a Service")


def _list_mistaken(
    entry: dict[str, Any], pods: list[Pod], context: Context
) -> Iterator[tuple[int, int]]:
    """Yields ports, with their number in the list, that only the Services of pods have."""
    pod_ports: set[int] = set()
    for pod in pods:
        numbers: set[int] = set()
        for container in pod.containers:
            numbers |= container.ports.keys()
        if not numbers:
            return
        pod_ports |= numbers
    for number, item in enumerate(as_list(entry.get("ports")) if pods else ()):
        port = as_int(dig(item, "port"))
        is_open = port is None or port in pod_ports or dig(item, "endPort") is not None
        if not is_open and port in _list_service_ports(pods, context):
            yield number, port


def _list_service_ports(pods: list[Pod], context: Context) -> set[int]:
    """Lists the ports of Services over pods that lead to another port of the pods."""
    ports: set[int] = set()
    for service in context.index.list_namespace("Service", pods[0].owner.namespace):
        selector = get_selector(service)
        if any(selector.values()) and any(selects(selector, pod) for pod in pods):
            for item in as_maps(service.spec.get("ports")):
                port = as_int(item.get("port"))
                if port and item.get("targetPort") not in (None, port):
                    ports.add(port)
    return ports
