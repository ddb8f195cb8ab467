"""HF632: health checks of load balancers ask ports and paths that the pods have."""

import re
from collections.abc import Iterator

from holdfast.lint.document import Path
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.known_values import load_table
from holdfast.lint.object_index import get_selector
from holdfast.lint.objects import PROBES, Object, Pod, as_int, as_text, dig
from holdfast.lint.registry import Context, rule
from holdfast.lint.rules.servers import find_server, is_known_path
from holdfast.lint.spelling import find_near

DOC_POLICIES = "https://cloud.google.com/kubernetes-engine/docs/how-to/configure-gateway-resources"
_CHECKS = ("httpHealthCheck", "httpsHealthCheck", "http2HealthCheck", "tcpHealthCheck")


def _health(port: int) -> str:
    return f"""\
ports:
  - name: http
    containerPort: 8080
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
      targetPort: http
---
apiVersion: networking.gke.io/v1
kind: HealthCheckPolicy
metadata:
  name: server
  namespace: serving
spec:
  default:
    config:
      type: HTTP
      httpHealthCheck:
        port: {port}
        requestPath: /health
  targetRef:
    group: ''
    kind: Service
    name: server
"""


@rule(
    "HF632",
    "health-check-elsewhere",
    Severity.ERROR,
    on=Object,
    kinds=("HealthCheckPolicy", "BackendConfig"),
    what="The health check of a load balancer asks a port that the pods do not have.",
    why=(
        "It asks the pods themselves, not the Service: all of them count as unhealthy, and each"
        " request gets 502 or 503."
    ),
    source=DOC_POLICIES,
    fix="write the port of the container",
    base="serving-container",
    bad=_health(80),
    good=_health(8080),
)
def health_check_elsewhere(obj: Object, context: Context) -> Iterator[Hit]:
    times = (dig(obj.spec, "default", field) for field in ("timeoutSec", "checkIntervalSec"))
    timeout_s, interval_s = map(as_int, times)
    if timeout_s and interval_s and timeout_s > interval_s:
        message = f"timeoutSec {timeout_s} is above checkIntervalSec {interval_s}: it is refused"
        yield Hit(("spec", "default", "timeoutSec"), message)
    yield from _check_health_path(obj, context)
    for path, port, services in _list_checked_ports(obj, context):
        for service in services:
            selector = get_selector(service)
            pods = context.index.select_pods(service.namespace, selector)
            ports = _list_ports(pods) if any(selector.values()) else set[int]()
            if ports and port not in ports and not _is_mentioned(port, pods):
                has = ", ".join(map(str, sorted(ports)))
                yield Hit(path, f"the pods of {service.name} have no port {port}; they have {has}")


def _check_health_path(obj: Object, context: Context) -> Iterator[Hit]:
    """Yields a path that the server behind a Service does not have."""
    name = as_text(dig(obj.spec, "targetRef", "name"))
    service = context.index.find("Service", name, obj.namespace)
    path: Path = ("spec", "default", "config", "httpHealthCheck", "requestPath")
    if obj.kind == "BackendConfig":
        service = next(iter(_find_configured(obj, context)), None)
        path = ("spec", "healthCheck", "requestPath")
    place = as_text(dig(obj.body, *path))
    if service is None or not place or not any(get_selector(service).values()):
        return
    for pod in context.index.select_pods(service.namespace, get_selector(service)):
        for container in pod.main_containers if len(pod.main_containers) == 1 else ():
            server = find_server(container)
            known_paths = load_table("health_paths").get(server, [])
            if known_paths and not is_known_path(place, known_paths):
                message = f"{server} has no {place}; it has {', '.join(known_paths[:3])}"
                yield Hit(path, message)
                return
            probed = {as_text(dig(container.body, probe, "httpGet", "path")) for probe in PROBES}
            near_path = find_near(place, probed - {""}, 0.8) if place not in probed else ""
            if near_path and not known_paths:
                yield Hit(path, f"asks {place}, and the probes ask {near_path}")
                return


def _list_checked_ports(obj: Object, context: Context) -> Iterator[tuple[Path, int, list[Object]]]:
    """Yields each port that a health check asks, with its path and the Services behind it."""
    if obj.kind == "BackendConfig":
        port = as_int(dig(obj.spec, "healthCheck", "port"))
        if port is not None:
            yield ("spec", "healthCheck", "port"), port, _find_configured(obj, context)
        return
    name = as_text(dig(obj.spec, "targetRef", "name"))
    service = context.index.find("Service", name, obj.namespace)
    for check in _CHECKS:
        path = ("spec", "default", "config", check, "port")
        port = as_int(dig(obj.body, *path))
        if service and port is not None:
            yield path, port, [service]


def _find_configured(obj: Object, context: Context) -> list[Object]:
    """Finds the Services with a BackendConfig that reach their pods directly."""
    services: list[Object] = []
    for service in context.index.list_namespace("Service", obj.namespace):
        text = as_text(service.annotations.get("cloud.google.com/backend-config"))
        is_direct = "cloud.google.com/neg" in service.annotations
        if f'"{obj.name}"' in text and is_direct:
            services.append(service)
    return services


def _is_mentioned(port: int, pods: list[Pod]) -> bool:
    """Returns whether a probe or a command of the pods names a port that they do not declare."""
    pattern = re.compile(rf"(?<!\d){port}(?!\d)")
    for pod in pods:
        for container in pod.containers:
            probed_ports = [dig(container.body, field, "httpGet", "port") for field in PROBES]
            texts = [text for _, text in container.list_texts()]
            if port in probed_ports or any(pattern.search(text) for text in texts):
                return True
    return False


def _list_ports(pods: list[Pod]) -> set[int]:
    """Lists the ports that the containers of pods declare."""
    ports: set[int] = set()
    for pod in pods:
        for container in pod.containers:
            ports |= container.ports.keys()
    return ports
