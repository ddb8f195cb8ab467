"""HF630, HF631, HF633, HF634, HF846: gateways, routes and policies name each other and Services."""

import re
from collections.abc import Iterator
from typing import Any

from holdfast.lint.accessors import list_names
from holdfast.lint.document import Path
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.known_values import load_table
from holdfast.lint.objects import Object, as_list, as_map, as_maps, as_text, dig
from holdfast.lint.registry import Context, rule
from holdfast.lint.rules.references import explain_absence, is_near_file
from holdfast.lint.spelling import count_differences, find_near
from holdfast.support.values import duration_s

DOC_GATEWAY = "https://gateway-api.sigs.k8s.io/reference/spec/"
_ROUTES = ("HTTPRoute", "GRPCRoute", "TCPRoute", "TLSRoute")
_POLICIES = ("HealthCheckPolicy", "GCPBackendPolicy")
_POLICY_TARGETS = ("Service", "ServiceImport", "InferencePool", "GCPInferencePoolImport")
_PATH_TYPES = ("Exact", "PathPrefix", "RegularExpression")
_TLS_PROTOCOLS = ("HTTPS", "TLS")


def _route(parent: str, listener: str = "http") -> str:
    return f"""\
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: edge, namespace: serving}}
spec:
  gatewayClassName: gke-l7-rilb
  listeners: [{{name: http, port: 80, protocol: HTTP}}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: chat, namespace: serving}}
spec:
  parentRefs: [{{name: {parent}, sectionName: {listener}}}]
  rules: [{{backendRefs: [{{name: chat, port: 80}}]}}]
"""


@rule(
    "HF630",
    "gateway-unknown",
    Severity.ERROR,
    on=Object,
    kinds=(*_ROUTES, *_POLICIES),
    what="A route names a Gateway or a listener, or a policy a Service, that the files lack.",
    why="The route is attached to nothing, and clients get 404; a policy has no effect.",
    source=DOC_GATEWAY,
    fix="name the Gateway and one of its listeners, or the Service, of the same namespace",
    bad=_route("edges"),
    good=_route("edge"),
)
def gateway_unknown(obj: Object, context: Context) -> Iterator[Hit]:
    for number, parent in enumerate(as_maps(obj.spec.get("parentRefs"))):
        path = ("spec", "parentRefs", number)
        if parent.get("kind") in (None, "Gateway"):
            yield from _check_parent(path, parent, obj, context)
    yield from _check_matches(obj)
    target = as_map(obj.spec.get("targetRef"))
    name = as_text(target.get("name"))
    kind = as_text(target.get("kind"))
    if obj.kind in _POLICIES and kind and kind not in _POLICY_TARGETS:
        yield Hit(("spec", "targetRef", "kind"), f"a {obj.kind} is for a Service, not a {kind}")
    if obj.kind in _POLICIES and target.get("kind") == "Service" and name:
        reason = _explain_absence("Service", name, obj, context)
        if reason:
            yield Hit(("spec", "targetRef", "name"), reason)


def _check_matches(obj: Object) -> Iterator[Hit]:
    """Yields a type of path that routes do not have."""
    for number, entry in enumerate(as_list(obj.spec.get("rules"))):
        for index, match in enumerate(as_list(dig(entry, "matches"))):
            kind = dig(match, "path", "type")
            if obj.kind == "HTTPRoute" and kind not in (None, *_PATH_TYPES):
                path = ("spec", "rules", number, "matches", index, "path", "type")
                yield Hit(path, f"no type {kind}; there are {', '.join(_PATH_TYPES)}")


def _check_parent(
    path: Path, parent: dict[str, Any], obj: Object, context: Context
) -> Iterator[Hit]:
    name = as_text(parent.get("name"))
    namespace = as_text(parent.get("namespace")) or obj.namespace
    if "$" in f"{name}{namespace}":
        return
    gateway = context.index.find("Gateway", name, namespace)
    if gateway is None:
        homes = context.index.find_all("Gateway", name)
        if homes and parent.get("namespace") and is_near_file(homes[0], obj):
            message = f"Gateway {name} is in {homes[0].namespace}, not in {namespace}"
            yield Hit((*path, "namespace"), message)
        elif not parent.get("namespace"):
            reason = _explain_absence("Gateway", name, obj, context)
            if reason:
                yield Hit((*path, "name"), reason)
        return
    listeners = list_names(gateway.spec.get("listeners"))
    section = as_text(parent.get("sectionName"))
    if section and listeners and section not in listeners:
        message = f"Gateway {name} has no listener {section}; it has {', '.join(listeners[:5])}"
        yield Hit((*path, "sectionName"), message)
    yield from _check_admission(path, gateway, section, obj, context)
    ports: list[object] = []
    for listener in as_list(gateway.spec.get("listeners")):
        ports.append(dig(listener, "port"))
    port = parent.get("port")
    if port is not None and ports and port not in ports:
        yield Hit((*path, "port"), f"Gateway {name} has no listener on port {port}")


_ADMIT = "allowedRoutes: {namespaces: {from: All}}, or Selector"


def _check_admission(
    path: Path, gateway: Object, section: str, obj: Object, context: Context
) -> Iterator[Hit]:
    """Yields a route that no listener of its Gateway takes, by its namespace or host names."""
    listeners = as_maps(gateway.spec.get("listeners"))
    listeners = [item for item in listeners if section in ("", as_text(item.get("name")))]
    if not listeners:
        return
    if gateway.namespace and obj.namespace and gateway.namespace != obj.namespace:
        sources = [dig(item, "allowedRoutes", "namespaces", "from") for item in listeners]
        if all(source in (None, "Same") for source in sources):
            message = f"Gateway {gateway.name} takes no routes of {obj.namespace}: from is Same"
            yield Hit((*path, "namespace"), message, fix=_ADMIT)
    if all(dig(item, "allowedRoutes", "namespaces", "from") == "None" for item in listeners):
        message = f"Gateway {gateway.name} takes no routes: from is None"
        yield Hit((*path, "name"), message, fix=_ADMIT)
    hosts = list(map(as_text, as_list(obj.spec.get("hostnames"))))
    names = [as_text(item.get("hostname")) for item in listeners]
    if hosts and all(names) and not _share_host(hosts, names):
        message = f"Gateway {gateway.name} has {', '.join(names[:3])}, and none of {hosts[0]}"
        fix = "name a host that a listener has"
        yield Hit(("spec", "hostnames"), message, fix=fix)


def _share_host(hosts: list[str], names: list[str]) -> bool:
    for host in hosts:
        for name in names:
            if _shares_host(host, name):
                return True
    return False


def _shares_host(host: str, name: str) -> bool:
    """Returns whether a host name of a route and one of a listener have a name in common."""
    for wide, narrow in ((host, name), (name, host)):
        if wide == narrow or (wide.startswith("*.") and narrow.endswith(wide[1:])):
            return True
    return False


def _explain_absence(kind: str, name: str, obj: Object, context: Context) -> str:
    """Returns why a name is a mistake: its file has other objects of the kind, and not this."""
    if context.index.find(kind, name, obj.namespace):
        return ""
    reason = explain_absence(kind, name, obj, context)
    if reason:
        return reason
    neighbors: list[str] = []
    for neighbor in context.index.list_namespace(kind, obj.namespace):
        if neighbor.file == obj.file:
            neighbors.append(neighbor.name)
    near_name = find_near(name, neighbors, 0.5)
    return f"no {kind} {name}; did you mean {near_name}?" if near_name else ""


def _write_route(namespace: str) -> str:
    return f"""\
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: chat, namespace: edge}}
spec:
  parentRefs: [{{name: edge}}]
  rules: [{{backendRefs: [{{name: chat, namespace: serving, port: 80}}]}}]
---
apiVersion: v1
kind: Service
metadata: {{name: chat, namespace: serving}}
spec: {{selector: {{app: chat}}, ports: [{{port: 80}}]}}
---
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {{name: routes, namespace: {namespace}}}
spec:
  from: [{{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: edge}}]
  to: [{{group: "", kind: Service}}]
"""


@rule(
    "HF846",
    "backend-not-granted",
    Severity.ERROR,
    on=Object,
    kinds=_ROUTES,
    what="A route names a Service of another namespace, and no ReferenceGrant allows it.",
    why="The Gateway takes no backend of another namespace without it: clients get 500.",
    source="https://gateway-api.sigs.k8s.io/api-types/referencegrant/",
    fix="add a ReferenceGrant in the namespace of the Service, from the namespace of the route",
    bad=_write_route("edge"),
    good=_write_route("serving"),
)
def check_grants(obj: Object, context: Context) -> Iterator[Hit]:
    for number, entry in enumerate(as_maps(obj.spec.get("rules"))):
        for index, backend in enumerate(as_maps(entry.get("backendRefs"))):
            namespace = as_text(backend.get("namespace"))
            name = as_text(backend.get("name"))
            if backend.get("kind") not in (None, "Service") or namespace in ("", obj.namespace):
                continue
            # A Service of other files may have its grant there.
            service = context.index.find("Service", name, namespace)
            if service and not _is_granted(obj, name, namespace, context):
                path = ("spec", "rules", number, "backendRefs", index, "namespace")
                yield Hit(path, f"no ReferenceGrant in {namespace} for {name} from {obj.namespace}")


def _is_granted(route: Object, name: str, namespace: str, context: Context) -> bool:
    for grant in context.index.list_namespace("ReferenceGrant", namespace):
        sources: list[tuple[Any, Any]] = []
        for source in as_maps(grant.spec.get("from")):
            sources.append((source.get("kind"), source.get("namespace")))
        targets: list[Any] = []
        for target in as_maps(grant.spec.get("to")):
            if target.get("kind") == "Service":
                targets.append(target.get("name"))
        if (route.kind, route.namespace) in sources and {None, name} & set(targets):
            return True
    return False


def _listener(tls: str) -> str:
    return f"""\
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: edge, namespace: serving}}
spec:
  gatewayClassName: gke-l7-global-external-managed
  listeners:
  - name: https
    port: 443
    protocol: HTTPS
    {tls}
"""


@rule(
    "HF631",
    "gateway-refused",
    Severity.ERROR,
    on=Object,
    kinds=("Gateway",),
    what="A Gateway has a class that GKE lacks, or a listener of HTTPS no certificate.",
    why="The API server refuses the Gateway, or its listener is never programmed.",
    source=DOC_GATEWAY,
    fix="name a class of GKE; give tls.certificateRefs to a listener of HTTPS only",
    bad=_listener(""),
    good=_listener("tls: {mode: Terminate, certificateRefs: [{kind: Secret, name: edge-tls}]}"),
)
def require_certificates(obj: Object, context: Context) -> Iterator[Hit]:
    name = as_text(obj.spec.get("gatewayClassName"))
    classes = load_table("gateway_classes")["names"]
    if name.startswith("gke-") and name not in classes:
        near_name = find_near(name, classes)
        hint = f"; did you mean {near_name}?" if near_name else ""
        yield Hit(("spec", "gatewayClassName"), f"GKE has no class {name}{hint}")
    options = ("networking.gke.io/certmap", "networking.gke.io/pre-shared-certs")
    if any(option in obj.annotations for option in options):
        return
    for number, listener in enumerate(as_maps(obj.spec.get("listeners"))):
        path = ("spec", "listeners", number)
        protocol = listener.get("protocol")
        tls = as_map(listener.get("tls"))
        if protocol in _TLS_PROTOCOLS and not listener.get("tls"):
            yield Hit((*path, "protocol"), f"{protocol} has no tls with a certificate")
        elif protocol == "HTTP" and tls:
            yield Hit((*path, "tls"), "a listener of HTTP takes no tls")
        has_own = tls.get("mode") == "Passthrough" or tls.get("options")
        if protocol == "HTTPS" and tls and not has_own and not tls.get("certificateRefs"):
            yield Hit((*path, "tls"), "names no certificate")


def _certificate(domain: str) -> str:
    return f"""\
apiVersion: networking.gke.io/v1
kind: ManagedCertificate
metadata:
  name: demo
  namespace: research
spec:
  domains:
    - {domain}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: demo
  namespace: research
  annotations:
    networking.gke.io/managed-certificates: demo
spec:
  rules:
    - host: demo.example.com
"""


@rule(
    "HF634",
    "certificate-for-another-host",
    Severity.ERROR,
    on=Object,
    kinds=("Ingress",),
    what="The certificates of an Ingress are for other hosts than its rules.",
    why="Browsers and clients refuse the connection; the certificate is never issued.",
    source="https://cloud.google.com/kubernetes-engine/docs/how-to/managed-certs",
    fix="list each host of the rules in the domains of a certificate",
    bad=_certificate("www.example.com"),
    good=_certificate("demo.example.com"),
)
def certificate_for_another_host(obj: Object, context: Context) -> Iterator[Hit]:
    text = as_text(obj.annotations.get("networking.gke.io/managed-certificates"))
    domains: list[str] = []
    for name in filter(None, re.split(r"[,\s]+", text)):
        certificate = context.index.find("ManagedCertificate", name, obj.namespace)
        if certificate is None:
            return
        domains += map(as_text, as_list(certificate.spec.get("domains")))
    for index, entry in enumerate(as_maps(obj.spec.get("rules"))):
        host = as_text(entry.get("host"))
        if domains and host and "*" not in host and host not in domains:
            path = ("spec", "rules", index, "host")
            yield Hit(path, f"no certificate is for {host}; they are for {', '.join(domains[:3])}")


def _scrape(timeout: str) -> str:
    return f"""\
apiVersion: monitoring.googleapis.com/v1
kind: PodMonitoring
metadata: {{name: chat, namespace: research}}
spec:
  selector: {{matchLabels: {{app: chat}}}}
  endpoints: [{{port: 8000, interval: 15s, timeout: {timeout}}}]
"""


@rule(
    "HF633",
    "scrape-refused",
    Severity.ERROR,
    on=Object,
    kinds=("PodMonitoring", "ClusterPodMonitoring"),
    what="A PodMonitoring waits longer for metrics than until its next turn, or asks a wrong path.",
    why="The webhook refuses it, or each turn gets 404: dashboards and alerts stay empty.",
    source="https://cloud.google.com/stackdriver/docs/managed-prometheus/setup-managed",
    fix="a timeout of at most the interval; path: /metrics",
    bad=_scrape("30s"),
    good=_scrape("10s"),
)
def scrape_refused(obj: Object, context: Context) -> Iterator[Hit]:
    for index, endpoint in enumerate(as_maps(obj.spec.get("endpoints"))):
        path = ("spec", "endpoints", index)
        interval_s = duration_s(as_text(endpoint.get("interval")))
        timeout_s = duration_s(as_text(endpoint.get("timeout")))
        if interval_s and timeout_s and timeout_s > interval_s:
            yield Hit((*path, "timeout"), f"{timeout_s:g} s, every {interval_s:g} s")
        place = as_text(endpoint.get("path"))
        if place != "/metrics" and count_differences(place[:50], "/metrics") <= 2:
            yield Hit((*path, "path"), f"{place} is not /metrics")
