"""Builds the way into a service from outside the cluster: a load balancer of the Gateway API.

GKE makes an Application Load Balancer of a Gateway. Its times agree with the drain of the proxies
behind it, which `holdfast.vocabulary.serving` has.
"""

# Why it is so: infra/decisions/0130.

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.manifests.policies import block, policy
from holdfast.manifests.render_context import Body, manifest, meta
from holdfast.vocabulary import serving
from holdfast.vocabulary.kubernetes import LABEL_NAME

GATEWAY_API = "gateway.networking.k8s.io/v1"
POLICY_API = "networking.gke.io/v1"
INTERNAL_CLASS = "gke-l7-rilb"
EXTERNAL_CLASS = "gke-l7-regional-external-managed"
CERTIFICATES = "networking.gke.io/pre-shared-certs"
# Where the probes of all Google load balancers come from.
HEALTH_CHECK_CIDRS = ("35.191.0.0/16", "130.211.0.0/22")


@dataclass(frozen=True, kw_only=True)
class WayIn:
    """A load balancer before the Service for clients."""

    service: str
    """Service for clients, and name of the objects."""
    proxy: str
    """Name of the pods behind the Service."""
    namespace: str
    subnet: str
    """Range of the proxy-only subnet, from which requests come."""
    window_s: float
    """Time for which a proxy drains; the grace period of its pod is longer."""
    longest_s: float
    """Total time of a request."""
    external: bool = False
    asks_identity: bool = False
    """Identity-Aware Proxy asks who calls; otherwise the proxies ask for a key."""
    hostname: str = ""
    """Name that clients use; empty: any, by the address."""
    certificate: str = ""
    """Regional SSL certificate of the project; empty: HTTP."""


def objects(way: WayIn) -> Iterator[Body]:
    yield _gateway(way)
    yield _route(way)
    yield _backend_policy(way)
    yield _health_check(way)
    ports = [{"port": port, "protocol": "TCP"} for port in (serving.PORT, serving.SIDECAR_PORT)]
    sources = [block(cidr) for cidr in (way.subnet, *HEALTH_CHECK_CIDRS)]
    rule = {"from": sources, "ports": ports}
    name = f"{way.service}-balancer"
    yield policy(name, way.namespace, ["Ingress"], [rule], None, {LABEL_NAME: way.proxy})


def _gateway(way: WayIn) -> Body:
    listener: Body = {
        "name": "http",
        "port": 80,
        "protocol": "HTTP",
        "allowedRoutes": {"namespaces": {"from": "Same"}},
    }
    if way.certificate:
        tls = {"mode": "Terminate", "options": {CERTIFICATES: way.certificate}}
        listener |= {"name": "https", "port": 443, "protocol": "HTTPS", "tls": tls}
    if way.hostname:
        listener["hostname"] = way.hostname
    spec = {
        "gatewayClassName": EXTERNAL_CLASS if way.external else INTERNAL_CLASS,
        "listeners": [listener],
    }
    return manifest(GATEWAY_API, "Gateway", meta(way.service, way.namespace), spec=spec)


def _route(way: WayIn) -> Body:
    spec: Body = {
        "parentRefs": [{"kind": "Gateway", "name": way.service}],
        "rules": [{"backendRefs": [{"name": way.service, "port": serving.PORT}]}],
    }
    if way.hostname:
        spec["hostnames"] = [way.hostname]
    return manifest(GATEWAY_API, "HTTPRoute", meta(way.service, way.namespace), spec=spec)


def _backend_policy(way: WayIn) -> Body:
    hold_s, _ = serving.sidecar_budget(way.window_s)
    default: Body = {
        # Google's default of 30 s would cut a text in the middle.
        "timeoutSec": int(way.longest_s),
        # The requests of a detached endpoint end within the time that its pod has left.
        "connectionDraining": {"drainingTimeoutSec": int(way.window_s - hold_s)},
    }
    if way.asks_identity:
        default["iap"] = {"enabled": True}
    return _policy(way, "GCPBackendPolicy", default)


def _health_check(way: WayIn) -> Body:
    config = {
        "type": "HTTP",
        "httpHealthCheck": {
            "portSpecification": "USE_FIXED_PORT",
            "port": serving.SIDECAR_PORT,
            "requestPath": serving.READY_PATH,
        },
    }
    default = {
        "checkIntervalSec": serving.BALANCER_CHECK_S,
        "timeoutSec": serving.BALANCER_CHECK_S,
        "healthyThreshold": 1,
        "unhealthyThreshold": serving.BALANCER_FAILURES,
        "config": config,
    }
    return _policy(way, "HealthCheckPolicy", default)


def _policy(way: WayIn, kind: str, default: Body) -> Body:
    target = {"group": "", "kind": "Service", "name": way.service}
    spec = {"default": default, "targetRef": target}
    return manifest(POLICY_API, kind, meta(way.service, way.namespace), spec=spec)
