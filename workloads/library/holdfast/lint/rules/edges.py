"""HF820 to HF823: load balancers and autoscalers that do nothing with what they are given.

Why it is so: infra/decisions/0200.
"""

import json
from collections.abc import Iterator
from ipaddress import ip_network

from holdfast.lint.finding import Hit, Severity
from holdfast.lint.object_index import get_selector
from holdfast.lint.objects import (
    DEFAULT_NAMESPACE,
    Object,
    Pod,
    as_int,
    as_list,
    as_map,
    as_maps,
    as_text,
    dig,
)
from holdfast.lint.registry import Context, rule

DOC_HEALTH = "https://cloud.google.com/load-balancing/docs/health-check-concepts#ip-ranges"
DOC_INGRESS = "https://cloud.google.com/kubernetes-engine/docs/how-to/ingress-configuration"
DOC_KEDA = "https://keda.sh/docs/latest/concepts/scaling-deployments/"
_HEALTH_RANGES = ("35.191.0.0/16", "130.211.0.0/22")
_CLASS = "kubernetes.io/ingress.class"
_BACKENDS = "cloud.google.com/backend-config"


def _write_edge(peer: str) -> str:
    return f"""\
metadata:
  name: server
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
kind: Ingress
metadata:
  name: server
  namespace: serving
spec:
  defaultBackend:
    service:
      name: server
      port:
        number: 80
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
  - from:
    - ipBlock:
        cidr: {peer}
"""


@rule(
    "HF820",
    "load-balancer-closed-out",
    Severity.WARNING,
    on=Object,
    kinds=("Ingress", "HTTPRoute"),
    what="NetworkPolicies close pods behind a load balancer of Google to its health checks.",
    why="The load balancer counts all pods as ill and answers 502 or 503.",
    source=DOC_HEALTH,
    fix=f"admit {' and '.join(_HEALTH_RANGES)} at the port of the pods",
    base="serving",
    bad=_write_edge("10.0.0.0/8"),
    good=_write_edge("0.0.0.0/0"),
)
def check_health_ranges(obj: Object, context: Context) -> Iterator[Hit]:
    if not _uses_google_balancer(obj, context):
        return
    for name in sorted(_list_backends(obj)):
        service = context.index.find("Service", name, obj.namespace)
        selector = get_selector(service) if service else {}
        pods = []
        if service and any(selector.values()):
            pods = context.index.select_pods(service.namespace, selector)
        closing = _find_closing(pods, obj.file, context)
        if closing:
            message = f"{closing} closes the pods of {name} to health checks"
            yield Hit(("metadata", "name"), message)


def _uses_google_balancer(obj: Object, context: Context) -> bool:
    """Returns whether a load balancer of Google serves an Ingress or a route."""
    if obj.kind == "Ingress":
        name = as_text(obj.annotations.get(_CLASS)) or "gce"
        return name.startswith("gce") and not obj.spec.get("ingressClassName")
    for parent in as_maps(obj.spec.get("parentRefs")):
        namespace = as_text(parent.get("namespace")) or obj.namespace
        gateway = context.index.find("Gateway", as_text(parent.get("name")), namespace)
        if gateway and as_text(gateway.spec.get("gatewayClassName")).startswith("gke-l7"):
            return True
    return False


def _list_backends(obj: Object) -> set[str]:
    names = {as_text(dig(obj.spec, "defaultBackend", "service", "name"))}
    for entry in as_maps(obj.spec.get("rules")):
        for path in as_list(dig(entry, "http", "paths")):
            names.add(as_text(dig(path, "backend", "service", "name")))
        for backend in as_maps(entry.get("backendRefs")):
            if backend.get("kind") in (None, "Service") and not backend.get("namespace"):
                names.add(as_text(backend.get("name")))
    return names - {""}


def _find_closing(pods: list[Pod], file: str, context: Context) -> str:
    """Returns the name of a policy that closes pods to health checks; empty where none does.

    Only policies of the file count: others may be of another variant of the same samples.
    """
    for pod in pods:
        policies = context.index.find_selecting("NetworkPolicy", pod)
        near_policies = [policy for policy in policies if policy.file == file]
        closing = [policy for policy in near_policies if _is_for_ingress(policy)]
        if closing and not any(_admits_health_checks(policy) for policy in closing):
            return closing[0].name
    return ""


def _is_for_ingress(policy: Object) -> bool:
    types = as_list(policy.spec.get("policyTypes"))
    return "Ingress" in types or not types


def _admits_health_checks(policy: Object) -> bool:
    ranges = [ip_network(text) for text in _HEALTH_RANGES]
    for entry in as_list(policy.spec.get("ingress")):
        peers = as_maps(dig(entry, "from"))
        if not peers:
            return True
        for peer in peers:
            text = as_text(dig(peer, "ipBlock", "cidr"))[:100]
            try:
                block = ip_network(text, strict=False)
            except ValueError:
                continue
            if any(block.overlaps(part) for part in ranges):
                return True
    return False


def _write_ingress(fields: str) -> str:
    return f"""\
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: web
  namespace: serving
{fields}
  defaultBackend:
    service:
      name: web
      port:
        number: 80
"""


@rule(
    "HF821",
    "setting-of-no-load-balancer",
    Severity.ERROR,
    on=Object,
    kinds=("Ingress", "Service", "BackendConfig", "HTTPRoute"),
    what="GKE reads a setting of a load balancer elsewhere, or cannot follow it.",
    why="No load balancer is made, or it works without the setting.",
    source=DOC_INGRESS,
    fix=f"annotation {_CLASS}: gce; ports of backend-config are those of the Service",
    bad=_write_ingress("spec:\n  ingressClassName: gce"),
    good=_write_ingress(f"  annotations:\n    {_CLASS}: gce\nspec:"),
)
def check_settings(obj: Object, context: Context) -> Iterator[Hit]:
    if obj.kind == "Ingress":
        name = as_text(obj.spec.get("ingressClassName"))
        if name in ("gce", "gce-internal") and not context.index.by_kind.get("IngressClass"):
            yield Hit(("spec", "ingressClassName"), f"GKE reads {name} from the annotation only")
    if obj.kind == "Service":
        yield from _check_backends(obj)
    if obj.kind == "BackendConfig":
        check = as_map(obj.spec.get("healthCheck"))
        timeout_s = as_int(check.get("timeoutSec")) or 5
        interval_s = as_int(check.get("checkIntervalSec")) or 5
        if timeout_s > interval_s:
            path = ("spec", "healthCheck")
            yield Hit(path, f"waits {timeout_s} s, and asks each {interval_s} s: it is refused")
    if obj.kind == "HTTPRoute":
        for index, entry in enumerate(as_maps(obj.spec.get("rules"))):
            weights = [backend.get("weight") for backend in as_maps(entry.get("backendRefs"))]
            if weights and all(weight == 0 for weight in weights):
                path = ("spec", "rules", index, "backendRefs")
                yield Hit(path, "all weights are 0: each request gets 500")


def _check_backends(obj: Object) -> Iterator[Hit]:
    text = as_text(obj.annotations.get(_BACKENDS))[:2_000]
    try:
        settings = json.loads(text) if text else {}
    except ValueError:
        return
    ports = as_maps(obj.spec.get("ports"))
    known_ports = {str(port.get("port")) for port in ports}
    known_ports |= {as_text(port.get("name")) for port in ports}
    for port in as_map(as_map(settings).get("ports")):
        if port not in known_ports and known_ports:
            path = ("metadata", "annotations", _BACKENDS)
            yield Hit(path, f"the Service has no port {port}; it has {', '.join(known_ports)}")


def _write_scaled(authentication: str) -> str:
    return f"""\
apiVersion: keda.sh/v1alpha1
kind: TriggerAuthentication
metadata:
  name: google
  namespace: batch
spec:
  podIdentity:
    provider: gcp
---
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
    authenticationRef:
      name: {authentication}
    metadata:
      subscriptionName: work
      value: "20"
"""


@rule(
    "HF822",
    "trigger-without-identity",
    Severity.ERROR,
    on=Object,
    kinds=("ScaledObject", "ScaledJob"),
    what="A trigger of KEDA names an authentication that its files have under another name.",
    why="The scaler cannot ask its source: the pods stay as many as they are.",
    source=DOC_KEDA,
    fix="write the name of the TriggerAuthentication of the same namespace",
    bad=_write_scaled("gcp"),
    good=_write_scaled("google"),
)
def check_identities(obj: Object, context: Context) -> Iterator[Hit]:
    for index, trigger in enumerate(as_maps(obj.spec.get("triggers"))):
        reference = as_map(trigger.get("authenticationRef"))
        kind = as_text(reference.get("kind")) or "TriggerAuthentication"
        namespace = obj.namespace or DEFAULT_NAMESPACE
        identities = context.index.list_namespace(kind, namespace)
        names = [identity.name for identity in identities]
        name = as_text(reference.get("name"))
        if name and names and name not in names:
            path = ("spec", "triggers", index, "authenticationRef", "name")
            yield Hit(path, f"no {kind} {name}; there are {', '.join(names)}")


def _write_two(name: str) -> str:
    return f"""\
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata:
  name: worker
  namespace: batch
spec:
  scaleTargetRef:
    name: {name}
  minReplicaCount: 1
  triggers:
  - type: cpu
    metadata:
      value: "70"
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  name: worker
  namespace: batch
spec:
  scaleTargetRef:
    apiVersion: apps/v1
    kind: Deployment
    name: worker
  minReplicas: 1
  maxReplicas: 4
  metrics:
  - type: Resource
    resource:
      name: cpu
      target:
        type: Utilization
        averageUtilization: 70
"""


@rule(
    "HF823",
    "scaled-by-two",
    Severity.ERROR,
    on=Object,
    kinds=("ScaledObject",),
    what="An autoscaler and a ScaledObject of KEDA scale the same workload.",
    why="KEDA makes an autoscaler of its own: the two undo each other's work.",
    source=DOC_KEDA,
    fix="remove the autoscaler, and give KEDA its metric as a trigger",
    bad=_write_two("worker"),
    good=_write_two("sender"),
)
def check_scalers(obj: Object, context: Context) -> Iterator[Hit]:
    target = as_map(obj.spec.get("scaleTargetRef"))
    kind = as_text(target.get("kind")) or "Deployment"
    for scaler in context.index.list_namespace("HorizontalPodAutoscaler", obj.namespace):
        other = as_map(scaler.spec.get("scaleTargetRef"))
        if other.get("name") == target.get("name") and other.get("kind") == kind:
            path = ("spec", "scaleTargetRef", "name")
            yield Hit(path, f"the autoscaler {scaler.name} scales {target.get('name')} too")
