"""HF61x: who reaches a model, and what a container may do to its node."""

from collections.abc import Iterator
from typing import Any

from holdfast.lint.finding import Hit, Severity
from holdfast.lint.object_index import get_selector, selects
from holdfast.lint.objects import Object, Pod, as_list, dig
from holdfast.lint.registry import Context, rule

DOC_INTERNAL = "https://cloud.google.com/kubernetes-engine/docs/how-to/internal-load-balancing"
DOC_POLICY = "https://kubernetes.io/docs/concepts/services-networking/network-policies/"
DOC_PRIVILEGED = "https://kubernetes.io/docs/concepts/security/pod-security-standards/"
_INTERNAL = ("networking.gke.io/load-balancer-type", "cloud.google.com/load-balancer-type")


def _balancer(annotations: str) -> str:
    return f"""\
ports: [{{containerPort: 8080}}]
---
apiVersion: v1
kind: Service
metadata: {{name: server, namespace: serving, annotations: {{{annotations}}}}}
spec:
  type: LoadBalancer
  selector: {{app: batch}}
  ports: [{{port: 80, targetPort: 8080}}]
---
apiVersion: v1
kind: Pod
metadata: {{name: batch, namespace: serving, labels: {{app: batch}}}}
spec:
  terminationGracePeriodSeconds: 30
  nodeSelector: {{cloud.google.com/gke-accelerator: nvidia-l4}}
  tolerations: [{{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}}]
  containers:
  - name: main
    image: registry.example/server:1.4
    ports: [{{containerPort: 8080}}]
    resources: {{limits: {{nvidia.com/gpu: 1}}}}
"""


@rule(
    "HF610",
    "model-on-a-public-address",
    Severity.WARNING,
    on=Object,
    kinds=("Service",),
    what="A Service of type LoadBalancer gives pods with GPUs a public address for everybody.",
    why="A server of models has no passwords: strangers use the GPU and read the model.",
    source=DOC_INTERNAL,
    fix=f"annotate {_INTERNAL[0]}: Internal, or state loadBalancerSourceRanges",
    base="serving-container",
    bad=_balancer(""),
    good=_balancer(f"{_INTERNAL[0]}: Internal").replace("type: LoadBalancer", "type: ClusterIP"),
)
def check_addresses(obj: Object, context: Context) -> Iterator[Hit]:
    is_internal = any(obj.annotations.get(key) == "Internal" for key in _INTERNAL)
    is_bounded = bool(obj.spec.get("loadBalancerSourceRanges")) or is_internal
    if obj.spec.get("type") != "LoadBalancer" or is_bounded:
        return
    for pod in context.index.select_pods(obj.namespace, get_selector(obj)):
        if pod.gpus and pod.labels:
            yield Hit(("spec", "type"), f"{pod.owner.name} gets a public address")
            return


@rule(
    "HF611",
    "privileged-with-a-gpu",
    Severity.WARNING,
    on=Pod,
    what="A container with GPUs is privileged.",
    why="GKE gives it its devices without that. Code that comes with a model then owns the node.",
    source=DOC_PRIVILEGED,
    fix="remove privileged: true",
    base="container",
    bad="""\
securityContext:
  privileged: true
""",
    good="""\
securityContext:
  allowPrivilegeEscalation: false
""",
)
def check_privileges(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.main_containers:
        if container.gpus and dig(container.body, "securityContext", "privileged") is True:
            path = (*container.path, "securityContext", "privileged")
            yield Hit(path, f"{container.name} owns its node")


def _admit(peers: str) -> str:
    return f"""\
metadata: {{name: server, namespace: web}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{name: server, namespace: web}}
spec:
  podSelector: {{matchLabels: {{app: server}}}}
  policyTypes: [Ingress]
  ingress:
  - from: [{peers}]
"""


_SPACE = "namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: edge}}"
_GATEWAY = "podSelector: {matchLabels: {app: gateway}}"


@rule(
    "HF612",
    "peers-by-or",
    Severity.WARNING,
    on=Object,
    kinds=("NetworkPolicy",),
    what="A NetworkPolicy lists a namespace and a selector of pods as two peers, joined by or.",
    why="Every pod of that namespace gets in, and pods with these labels are sought at home.",
    source=DOC_POLICY,
    fix="write both in one item: - namespaceSelector: ... and below it podSelector: ...",
    base="serving",
    bad=_admit(f"{{{_SPACE}}}, {{{_GATEWAY}}}"),
    good=_admit(f"{{{_SPACE}, {_GATEWAY}}}"),
)
def check_peers(obj: Object, context: Context) -> Iterator[Hit]:
    for direction, key in (("ingress", "from"), ("egress", "to")):
        for number, opening in enumerate(as_list(obj.spec.get(direction))):
            peers = as_list(dig(opening, key))
            spaces = [peer for peer in peers if _has_only(peer, "namespaceSelector")]
            for index, peer in enumerate(peers):
                if _has_only(peer, "podSelector") and len(spaces) == 1 and len(peers) == 2:
                    selector = dig(peer, "podSelector")
                    home_pods = context.index.select_pods(obj.namespace, {})
                    if not any(selects(selector, pod) for pod in home_pods):
                        path = ("spec", direction, number, key, index)
                        message = f"no pod of {obj.namespace or 'its namespace'} has these labels"
                        yield Hit(path, f"{message}: the item before it admits all pods")


def _has_only(peer: Any, field: str) -> bool:
    selector = dig(peer, field)
    is_only = isinstance(peer, dict) and set(peer) == {field}
    return is_only and bool(selector)
