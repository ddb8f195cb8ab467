"""HF434 to HF437: what autoscalers, JobSets, routes and addresses name."""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from holdfast.lint import api_fields
from holdfast.lint.accessors import list_names
from holdfast.lint.document import Path
from holdfast.lint.examples import write_scaler
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.object_index import SCALER, get_selector, selects
from holdfast.lint.objects import Object, Pod, as_int, as_list, as_maps, as_text, dig
from holdfast.lint.registry import Context, rule
from holdfast.lint.rules.references import explain_absence
from holdfast.lint.spelling import find_near, misspells

DOC_HPA = "https://kubernetes.io/docs/concepts/workloads/autoscaling/horizontal-pod-autoscale/"
DOC_JOBSET = "https://jobset.sigs.k8s.io/docs/concepts/"
DOC_DNS = "https://kubernetes.io/docs/concepts/services-networking/dns-pod-service/"
_SCALED = ("Deployment", "StatefulSet", "ReplicaSet", "ReplicationController")
_URL = re.compile(
    r"\b([a-z][a-z0-9+]{1,15})://(?:[^@/\s'\"]{1,100}@)?([a-z0-9][a-z0-9.-]{0,250})(?::(\d{1,5}))?"
)
_CLUSTER_HOST = re.compile(
    r"(?<![\w./-])()([a-z0-9][a-z0-9-]{0,62}\.[a-z0-9-]{1,63}\.svc(?:\.[a-z0-9.-]{1,100})?)(?::(\d{1,5}))?"
)
_POD_HOST = re.compile(
    r"(?<![\w.-])([a-z][a-z0-9-]{0,50})-(\d{1,4})\.([a-z][a-z0-9-]{0,62})"
    r"(?:\.([a-z0-9-]{1,63})(?:\.svc[a-z.]{0,40})?)?(?::(\d{1,5}))?(?![\w.-])"
)
_HOST_VARIABLE = re.compile(r"_HOST(NAME)?$")
_PLAIN_HOST = re.compile(r"[a-z][a-z0-9-]{1,62}")
_LONGEST = 4_000
_COMMON_PORTS = ("80", "443", "3000", "5000", "8000", "8080", "8443", "9090")
# Scheme -> the port of a URL without one.
_DEFAULT_PORTS = {"http": "80", "https": "443"}
_TOP_DOMAINS = ("com", "org", "io", "net", "ai", "dev", "internal", "local", "google", "app", "co")


@rule(
    "HF434",
    "scaler-of-nothing",
    Severity.ERROR,
    on=Object,
    kinds=(SCALER, "VerticalPodAutoscaler", "ScaledObject"),
    what="An autoscaler names a workload that its file has under another name or kind.",
    why="It reports FailedGetScale in its own conditions only, and scales nothing.",
    source=DOC_HPA,
    fix="name the Deployment or StatefulSet",
    base="serving",
    bad=write_scaler(target="servers"),
    good=write_scaler(),
)
def scaler_lacks_target(obj: Object, context: Context) -> Iterator[Hit]:
    field = "targetRef" if obj.kind == "VerticalPodAutoscaler" else "scaleTargetRef"
    kind = as_text(dig(obj.spec, field, "kind")) or "Deployment"
    name = as_text(dig(obj.spec, field, "name"))
    version = as_text(dig(obj.spec, field, "apiVersion"))
    versions = api_fields.find_versions(kind)
    if version and versions and version not in versions:
        message = f"{version} has no {kind}; it is in {', '.join(versions)}"
        yield Hit(("spec", field, "apiVersion"), message)
    if not name or context.index.find(kind, name, obj.namespace):
        return
    for other_kind in _SCALED:
        if context.index.find(other_kind, name, obj.namespace):
            yield Hit(("spec", field, "kind"), f"{name} is a {other_kind}, not a {kind}")
            return
    neighbors: list[str] = []
    for workload in context.index.list_namespace(kind, obj.namespace):
        if workload.file == obj.file:
            neighbors.append(workload.name)
    reason = explain_absence(kind, name, obj, context)
    if not reason and neighbors:
        reason = f"no {kind} {name}; its file has {', '.join(sorted(neighbors)[:5])}"
    if reason:
        yield Hit(("spec", field, "name"), reason)


@rule(
    "HF435",
    "replicated-job-unknown",
    Severity.ERROR,
    on=Object,
    kinds=("JobSet",),
    what="A policy, an order or the coordinator of a JobSet names a replicated job that it lacks.",
    why="JobSet's webhook refuses it, or waits for a job that never comes.",
    source=DOC_JOBSET,
    fix="name one of its replicatedJobs",
    base="jobset",
    bad="""\
spec:
  successPolicy:
    operator: All
    targetReplicatedJobs:
      - worker
""",
    good="""\
spec:
  successPolicy:
    operator: All
    targetReplicatedJobs:
      - workers
""",
)
def require_replicated_jobs(obj: Object, context: Context) -> Iterator[Hit]:
    jobs = as_list(obj.spec.get("replicatedJobs"))
    names = list_names(jobs)
    for path, name in _list_job_names(obj, jobs):
        if name and name not in names:
            yield Hit(path, f"no replicated job {name}; there are {', '.join(names)}")


def _list_job_names(obj: Object, jobs: list[Any]) -> Iterator[tuple[Path, str]]:
    """Yields the names of replicated jobs in a JobSet, each with its path."""
    lists: list[Path] = [("spec", "successPolicy", "targetReplicatedJobs")]
    for index in range(len(as_list(dig(obj.spec, "failurePolicy", "rules")))):
        lists.append(("spec", "failurePolicy", "rules", index, "targetReplicatedJobs"))
    for path in lists:
        for index, name in enumerate(as_list(dig(obj.body, *path))):
            yield (*path, index), as_text(name)
    path = ("spec", "coordinator", "replicatedJob")
    yield path, as_text(dig(obj.body, *path))
    for number, job in enumerate(jobs):
        for index, dependency in enumerate(as_list(dig(job, "dependsOn"))):
            path = ("spec", "replicatedJobs", number, "dependsOn", index, "name")
            yield path, as_text(dig(dependency, "name"))


_ROUTED = """\
ports: [{{containerPort: 8080}}]
---
apiVersion: v1
kind: Service
metadata: {{name: server, namespace: serving}}
spec: {{selector: {{app: server}}, ports: [{{name: http, port: 80, targetPort: 8080}}]}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: server, namespace: serving}}
spec: {{rules: [{{backendRefs: [{{name: {}, port: {}}}]}}]}}
"""


@rule(
    "HF436",
    "backend-unknown",
    Severity.ERROR,
    on=Object,
    what="A route, an ingress or a StatefulSet names a Service or a port that is not there.",
    why="Clients get an error from the load balancer; pods of a StatefulSet get no names.",
    source="https://kubernetes.io/docs/concepts/services-networking/service/",
    fix="name the Service, and its port instead of that of the container",
    base="serving-container",
    bad=_ROUTED.format("server", 8080),
    good=_ROUTED.format("server", 80),
)
def backend_unknown(obj: Object, context: Context) -> Iterator[Hit]:
    for path, name, port, namespace in _list_backends(obj):
        service = context.index.find("Service", name, namespace or obj.namespace)
        if service is None:
            reason = "" if namespace else explain_absence("Service", name, obj, context)
            neighbors = _list_near_services(obj, context)
            if not reason and not namespace and neighbors:
                reason = f"no Service {name}; its file has {', '.join(neighbors)}"
            # A StatefulSet works without its Service, but for the names of its pods.
            is_named = obj.kind != "StatefulSet" or bool(neighbors) or "did you mean" in reason
            if reason and is_named:
                yield Hit(path, reason)
        elif port not in (None, "") and not _has_port(service, port):
            yield Hit(path, f"Service {name} has no port {port}; it has {_list_ports(service)}")


def _list_near_services(obj: Object, context: Context) -> list[str]:
    """Lists the Services of the object's file; for a StatefulSet those over its pods."""
    names: list[str] = []
    for service in context.index.list_namespace("Service", obj.namespace):
        is_over = any(selects(get_selector(service), pod) for pod in obj.pods)
        if service.file == obj.file and (obj.kind == "Ingress" or is_over):
            names.append(service.name)
    return names


def _list_backends(obj: Object) -> Iterator[tuple[Path, str, Any, str]]:
    """Yields path, name, port and namespace of each Service that an object sends requests to."""
    if obj.kind == "StatefulSet":
        name = as_text(obj.spec.get("serviceName"))
        if name:
            yield ("spec", "serviceName"), name, None, ""
    if obj.kind in ("HTTPRoute", "GRPCRoute", "TCPRoute"):
        for number, entry in enumerate(as_list(obj.spec.get("rules"))):
            for index, backend in enumerate(as_list(dig(entry, "backendRefs"))):
                if dig(backend, "kind") in (None, "Service"):
                    path = ("spec", "rules", number, "backendRefs", index, "name")
                    name = as_text(dig(backend, "name"))
                    namespace = as_text(dig(backend, "namespace"))
                    yield path, name, dig(backend, "port"), namespace
    if obj.kind == "Ingress":
        yield from _list_ingress_backends(obj)


def _list_ingress_backends(obj: Object) -> Iterator[tuple[Path, str, Any, str]]:
    places: list[Path] = [("spec", "defaultBackend")]
    for number, entry in enumerate(as_list(obj.spec.get("rules"))):
        for index in range(len(as_list(dig(entry, "http", "paths")))):
            places.append(("spec", "rules", number, "http", "paths", index, "backend"))
    for place in places:
        service = dig(obj.body, *place, "service")
        port = dig(service, "port", "number") or dig(service, "port", "name")
        if as_text(dig(service, "name")):
            yield (*place, "service", "name"), as_text(dig(service, "name")), port, ""


def _has_port(service: Object, port: Any) -> bool:
    for entry in as_maps(service.spec.get("ports")):
        if port in (entry.get("port"), entry.get("name")):
            return True
    return not as_list(service.spec.get("ports"))


def _list_ports(service: Object) -> str:
    ports = as_maps(service.spec.get("ports"))
    return ", ".join(str(entry.get("port")) for entry in ports[:5])


def _client(url: str) -> str:
    return f"""\
env: [{{name: SCORES, value: '{url}'}}]
---
apiVersion: v1
kind: Service
metadata: {{name: scores, namespace: serving}}
spec: {{selector: {{app: scores}}, ports: [{{port: 80, targetPort: 8080}}]}}
"""


@rule(
    "HF437",
    "address-of-no-service",
    Severity.ERROR,
    on=Pod,
    what="An address in a command or a variable names a Service of the files wrongly.",
    why=(
        "The name does not resolve, or nothing listens on the port: a Service answers on its own"
        " ports, in its own namespace."
    ),
    source=DOC_DNS,
    fix="write NAME.NAMESPACE and a port of the Service",
    base="container",
    bad=_client("http://scores.serving:8080/v2"),
    good=_client("http://scores.serving:80/v2"),
)
def address_lacks_service(pod: Pod, context: Context) -> Iterator[Hit]:
    if not context.index.by_kind.get("Service"):
        return
    for container in pod.containers:
        for path, name, value in container.variables:
            if _HOST_VARIABLE.search(name) and _PLAIN_HOST.fullmatch(value[:300]):
                # The port of its Service, which another variable may give.
                port = as_text(container.env.get(re.sub("_HOST(NAME)?$", "_PORT", name)))
                reason = _judge_host(value, port, pod, context)
                if reason:
                    yield Hit(path, reason)
        for path, value in container.list_texts():
            text = container.expand(value)
            yield from _check_pod_names(path, text[:_LONGEST], pod, context)
            matches = [*_URL.finditer(text[:_LONGEST]), *_CLUSTER_HOST.finditer(text[:_LONGEST])]
            # A host of a URL is found by both.
            schemes = {item[2] for item in matches if item[1]}
            matches = [item for item in matches if item[1] or item[2] not in schemes]
            for match in sorted({item.groups("") for item in matches}):
                scheme, host, port = match
                port = port or _DEFAULT_PORTS.get(scheme, "")
                reason = _judge_address(
                    host.rstrip("."), port, pod.owner.namespace, pod.owner.file, context
                )
                if reason:
                    yield Hit(path, reason)
                    break


def _check_pod_names(path: Path, text: str, pod: Pod, context: Context) -> Iterator[Hit]:
    """Yields a name of a pod of a StatefulSet that has no such pod, Service or port."""
    for match in _POD_HOST.finditer(text):
        owner_name, ordinal, service_name, namespace, port = match.groups()
        namespace = namespace or pod.owner.namespace
        owner = context.index.find("StatefulSet", owner_name, namespace)
        if owner is None:
            continue
        replicas = as_int(owner.spec.get("replicas"))
        if int(ordinal) >= (1 if replicas is None else replicas):
            yield Hit(path, f"StatefulSet {owner_name} has no pod {ordinal}")
        elif service_name != owner.spec.get("serviceName"):
            message = f"pods of {owner_name} are named below {owner.spec.get('serviceName')}"
            yield Hit(path, message)
        service = context.index.find("Service", service_name, namespace)
        if service and service.spec.get("clusterIP") != "None":
            message = f"Service {service_name} is not headless: its pods have no names"
            yield Hit(path, message)
        ports = _list_numbers(owner.pods)
        if port and ports and int(port) not in ports:
            yield Hit(path, f"pods of {owner_name} have no port {port}; they have {_join(ports)}")


def _list_numbers(pods: list[Pod]) -> set[int]:
    """Lists the ports that the containers of pods declare."""
    ports: set[int] = set()
    for pod in pods:
        for container in pod.containers:
            ports |= container.ports.keys()
    return ports


def _join(ports: set[int]) -> str:
    return ", ".join(map(str, sorted(ports)))


def _judge_address(host: str, port: str, home: str, file: str, context: Context) -> str:
    """Returns why an address is wrong; empty if it is right or not of the files."""
    labels = host.split(".")
    is_in_cluster = len(labels) > 2 and labels[2] == "svc"
    if len(labels) > 2 and not is_in_cluster:
        return ""
    if len(labels) == 2 and labels[1] in _TOP_DOMAINS:
        return ""
    name = labels[0]
    namespace = labels[1] if len(labels) > 1 else home
    service = context.index.find("Service", name, namespace)
    if service:
        is_headless = service.spec.get("clusterIP") == "None"
        if is_headless and port:
            pods = context.index.select_pods(service.namespace, get_selector(service))
            ports = _list_numbers(pods)
            if ports and int(port) not in ports and not _has_port(service, int(port)):
                return f"pods of {name} have no port {port}; they have {_join(ports)}"
        if port and not is_headless and not _has_port(service, as_int(int(port))):
            return f"Service {name} has no port {port}; it has {_list_ports(service)}"
        return ""
    namesakes = context.index.find_all("Service", name)
    homes = [item.namespace for item in namesakes if _is_in_folder(item, file)]
    if namespace and homes and all(homes):
        return f"Service {name} is in {', '.join(sorted(set(homes)))}, not in {namespace}"
    near_name = ""
    for neighbor in context.index.list_namespace("Service", namespace):
        if neighbor.file != file:
            continue
        if misspells(name, neighbor.name):
            near_name = find_near(name, [neighbor.name], 0.75) or near_name
        elif port and _is_meant(name, neighbor, port, context):
            near_name = near_name or neighbor.name
    return f"no Service {name}; did you mean {near_name}?" if near_name else ""


def _is_meant(name: str, service: Object, port: str, context: Context) -> bool:
    """Returns whether a name has the words of a Service with the port, or shares its first word.

    A shared first word counts only if the port is uncommon and no other Service of the namespace
    has it.
    """
    if not _has_port(service, int(port)):
        return False
    if _extends(name, service.name):
        return True
    is_alike = name.partition("-")[0] == service.name.partition("-")[0] and "-" in name
    services = context.index.list_namespace("Service", service.namespace)
    owners = [other for other in services if _has_port(other, int(port))]
    return port not in _COMMON_PORTS and is_alike and owners == [service]


def _is_in_folder(obj: Object, file: str) -> bool:
    """Returns whether an object is in the folder of a file."""
    return PurePosixPath(obj.file).parent == PurePosixPath(file).parent


def judge_text(text: str, namespace: str, file: str, context: Context) -> str:
    """Returns why an address in a text of a file is wrong; empty if none is."""
    matches = list(_URL.finditer(text))
    for scheme, host, port in sorted({item.groups("") for item in matches}):
        port = port or _DEFAULT_PORTS.get(scheme, "")
        reason = _judge_address(host.rstrip("."), port, namespace, file, context)
        if reason:
            return reason
    return ""


def _judge_host(host: str, port: str, pod: Pod, context: Context) -> str:
    """Returns why a name of a host is wrong: its file has a Service with a similar name."""
    if context.index.find("Service", host, pod.owner.namespace):
        return ""
    for neighbor in context.index.list_namespace("Service", pod.owner.namespace):
        if neighbor.file != pod.owner.file:
            continue
        is_same_port = not port.isdecimal() or _has_port(neighbor, int(port))
        is_turned = sorted(host.split("-")) == sorted(neighbor.name.split("-"))
        is_like = misspells(host, neighbor.name) or _extends(host, neighbor.name) or is_turned
        if is_like and is_same_port:
            return f"no Service {host}; did you mean {neighbor.name}?"
    return ""


def _extends(name: str, other: str) -> bool:
    """Returns whether one name is the other one with words before or after it."""
    words = name.split("-")
    other_words = other.split("-")
    shorter, longer = sorted((words, other_words), key=len)
    return longer[: len(shorter)] == shorter or longer[-len(shorter) :] == shorter
