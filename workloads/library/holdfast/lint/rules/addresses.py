"""HF834 to HF836: hosts that no pod resolves, and pools of servers that hold none.

Why it is so: infra/decisions/0200.
"""

import re
from collections.abc import Iterator

from holdfast.lint.finding import Hit, Severity
from holdfast.lint.object_index import match_labels
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
from holdfast.lint.rules.servers import find_server

DOC_POD = "https://kubernetes.io/docs/concepts/workloads/pods/#pod-networking"
DOC_DNS = "https://kubernetes.io/docs/concepts/services-networking/dns-pod-service/"
DOC_POOL = "https://gateway-api-inference-extension.sigs.k8s.io/api-types/inferencepool/"
_HOST = re.compile(
    r"[a-z][a-z0-9+]{1,15}://(?:[^@/\s]{1,100}@)?([a-z][a-z0-9-]{0,62})(?::\d{2,5})?(?=[/\s'\"]|$)"
)
_DOMAIN = re.compile(
    r"(?<=\w)\.svc\.((?!cluster\.local\b|clusterset\.local\b|id\.goog\b)[\w.-]{1,60})"
)
_POOL = "InferencePool"
_MOST_TEXT = 4_000


def _write_pair(host: str) -> str:
    return f"""\
apiVersion: v1
kind: Pod
metadata:
  name: api
  namespace: research
spec:
  containers:
  - name: api
    image: registry.example/api:1.4
    env:
    - name: CACHE_URL
      value: redis://{host}:6379
  - name: cache
    image: registry.example/cache:1.4
    ports:
    - containerPort: 6379
"""


@rule(
    "HF834",
    "container-is-no-host",
    Severity.ERROR,
    on=Pod,
    what="A container asks another container of its pod by the container's name.",
    why="The name does not resolve: containers of a pod share localhost, and have no names.",
    source=DOC_POD,
    fix="write localhost, or make a Service of this name",
    bad=_write_pair("cache"),
    good=_write_pair("localhost"),
)
def check_hosts(pod: Pod, context: Context) -> Iterator[Hit]:
    names = {container.name for container in pod.containers}
    for container in pod.containers:
        for path, text in container.list_texts():
            for host in _HOST.findall(text[:_MOST_TEXT]):
                is_container = host in names and host != container.name
                if is_container and not _is_resolved(host, pod, context):
                    yield Hit(path, f"{host} is a container of the pod, and no host")


def _is_resolved(host: str, pod: Pod, context: Context) -> bool:
    """Returns whether a Service or an alias of the pod has the name of a host."""
    aliases: set[str] = set()
    for item in as_maps(pod.spec.get("hostAliases")):
        aliases.update(map(as_text, as_list(item.get("hostnames"))))
    namespace = pod.owner.namespace or DEFAULT_NAMESPACE
    return host in aliases or context.index.find("Service", host, namespace) is not None


def _write_domain(domain: str) -> str:
    return f"""\
env:
- name: QUEUE_URL
  value: redis://queue.batch.svc.{domain}:6379
"""


@rule(
    "HF835",
    "domain-of-no-cluster",
    Severity.ERROR,
    on=Pod,
    what="The address of a Service ends with another domain than that of the cluster.",
    why="The name does not resolve.",
    source=DOC_DNS,
    fix="write .svc.cluster.local, or .svc alone",
    base="container",
    bad=_write_domain("cluster.internal"),
    good=_write_domain("cluster.local"),
)
def check_domains(pod: Pod, context: Context) -> Iterator[Hit]:
    dns_config = as_map(pod.spec.get("dnsConfig"))
    for container in pod.containers if not dns_config else ():
        for path, text in container.list_texts():
            for domain in _DOMAIN.findall(text[:_MOST_TEXT]):
                if domain.startswith("cluster"):
                    yield Hit(path, f".svc.{domain} is not .svc.cluster.local")


def _write_pool(port: int) -> str:
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
        - containerPort: 8000
---
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata:
  name: server
  namespace: serving
spec:
  selector:
    matchLabels:
      app: server
  targetPorts:
  - number: {port}
"""


@rule(
    "HF836",
    "pool-of-no-server",
    Severity.ERROR,
    on=Object,
    kinds=(_POOL, "HTTPRoute"),
    what="An InferencePool selects no pods of its file, or a port that they do not have.",
    why="The gateway finds no endpoint: each request gets 503.",
    source=DOC_POOL,
    fix="write the labels and the port of the servers; name the pool in the route",
    base="serving",
    bad=_write_pool(8080),
    good=_write_pool(8000),
)
def check_pools(obj: Object, context: Context) -> Iterator[Hit]:
    if obj.kind == "HTTPRoute":
        yield from _check_routes(obj, context)
        return
    selector = as_map(obj.spec.get("selector"))
    if "matchLabels" not in selector:
        selector = {"matchLabels": selector}
    pods = context.index.select_pods(obj.namespace, selector)
    if not match_labels(selector):
        return
    near_pods = context.index.list_pods_near(obj)
    servers = [pod for pod in near_pods if any(map(find_server, pod.main_containers))]
    if not pods and servers:
        yield Hit(("spec", "selector"), "selects none of the pods in its file")
    numbers: set[int] = set()
    for pod in pods:
        for container in pod.containers:
            numbers |= container.ports.keys()
    for index, port in enumerate(as_maps(obj.spec.get("targetPorts"))):
        number = as_int(port.get("number"))
        if number and numbers and number not in numbers:
            path = ("spec", "targetPorts", index, "number")
            yield Hit(path, f"no container of its pods has the port {number}")
    number = as_int(obj.spec.get("targetPortNumber"))
    if number and numbers and number not in numbers:
        yield Hit(("spec", "targetPortNumber"), f"no container of its pods has the port {number}")


def _check_routes(obj: Object, context: Context) -> Iterator[Hit]:
    names = [pool.name for pool in context.index.list_namespace(_POOL, obj.namespace)]
    for index, entry in enumerate(as_maps(obj.spec.get("rules")) if names else ()):
        for number, backend in enumerate(as_maps(entry.get("backendRefs"))):
            is_near = backend.get("kind") == _POOL and not backend.get("namespace")
            if is_near and dig(backend, "name") not in names:
                path = ("spec", "rules", index, "backendRefs", number, "name")
                yield Hit(path, f"no {_POOL} {backend.get('name')}; there are {', '.join(names)}")
