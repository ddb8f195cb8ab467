"""HF750 to HF753: containers that wait forever, for others or for each other."""

import re
from collections.abc import Iterator

from holdfast.lint.document import Path
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.object_index import get_selector, selects
from holdfast.lint.objects import Container, Pod, as_int, as_list, as_text, dig
from holdfast.lint.registry import Context, rule
from holdfast.lint.rules.progress import is_endless

DOC_INIT = "https://kubernetes.io/docs/concepts/workloads/pods/init-containers/"
DOC_SIDECAR = "https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/"
_LONGEST = 4_000
_HOST = r"([a-z][a-z0-9-]{0,62}(?:\.[a-z0-9-]{1,63}){0,4})"
_URL = re.compile(rf"[a-z]{{2,10}}://{_HOST}")
_ASKS = re.compile(
    rf"\b(?:nc|ncat)\s(?:-\S+\s(?:\d+\s)?){{0,6}}{_HOST}\s+(?:\d{{1,5}}|\$)"
    rf"|\b(?:nslookup|dig|getent\s+hosts|ping)\s(?:-\S+\s(?:\d+\s)?){{0,4}}{_HOST}"
    rf"|\b(?:pg_isready|redis-cli|mysqladmin)\s[^\n;|&]{{0,80}}?-h\s?{_HOST}"
    rf"|\bwait-for(?:-it)?(?:\.sh)?\s{_HOST}:\d"
    rf"|/dev/tcp/{_HOST}/\d"
)


def _waits(host: str) -> str:
    return f"""\
apiVersion: v1
kind: Service
metadata:
  name: sessions
  namespace: research
spec:
  selector:
    app: sessions
  ports:
    - port: 8080
---
apiVersion: v1
kind: Service
metadata:
  name: redis
  namespace: research
spec:
  ports:
    - port: 6379
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: sessions
  namespace: research
spec:
  selector:
    matchLabels:
      app: sessions
  template:
    metadata:
      labels:
        app: sessions
    spec:
      initContainers:
        - name: wait
          image: busybox:1.36
          command:
            - sh
            - -c
            - until wget -q -O /dev/null http://{host}; do sleep 2; done
      containers:
        - name: main
          image: a:1
          ports:
            - containerPort: 8080
"""


@rule(
    "HF750",
    "waits-for-itself",
    Severity.ERROR,
    on=Pod,
    what="An init container waits for the Service of its own pods.",
    why="The pods become ready after their init containers: none of them ever starts.",
    source=DOC_INIT,
    fix="wait for what the program needs, or for nothing",
    bad=_waits("sessions:8080"),
    good=_waits("redis:6379"),
)
def waits_for_itself(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers:
        if container.is_main or container.body.get("restartPolicy") == "Always":
            continue
        for path, host in _list_hosts(container):
            labels = host.split(".")
            namespace = labels[1] if len(labels) > 1 else pod.owner.namespace
            service = context.index.find("Service", labels[0], namespace)
            # Its pods have names before they are ready.
            is_early = bool(service and service.spec.get("publishNotReadyAddresses") is True)
            if service is None or is_early:
                continue
            selector = get_selector(service)
            pods = context.index.select_pods(service.namespace, selector)
            is_own = any(selector.values()) and selects(selector, pod)
            if is_own and all(other.owner is pod.owner for other in pods):
                yield Hit(path, f"waits for {service.name}, which is over these pods themselves")
                break


def _list_hosts(container: Container) -> Iterator[tuple[Path, str]]:
    """Yields the hosts that a command asks, each with its path."""
    for path, text in container.list_words():
        for pattern in (_URL, _ASKS):
            for match in pattern.finditer(text[:_LONGEST]):
                yield path, next(filter(None, match.groups()))


def _proxy(policy: str) -> str:
    return f"""\
spec:
  template:
    spec:
      initContainers:
      - name: cloud-sql-proxy
        image: gcr.io/cloud-sql-connectors/cloud-sql-proxy:2.14.1
        args: [--port=5432, 'p:us-central1:labels']{policy}
"""


@rule(
    "HF751",
    "init-never-ends",
    Severity.ERROR,
    on=Pod,
    what="An init container runs a server or a loop that never ends.",
    why="The containers after it never start.",
    source=DOC_SIDECAR,
    fix="make it a sidecar: restartPolicy: Always",
    base="job",
    bad=_proxy(""),
    good=_proxy("\n        restartPolicy: Always"),
)
def init_never_ends(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers:
        is_sidecar = container.body.get("restartPolicy") == "Always"
        if not container.is_main and not is_sidecar and is_endless(container):
            yield Hit(container.path, f"{container.name} never ends: nothing after it starts")


def _wait(host: str, port: int) -> str:
    return f"""\
spec:
  template:
    spec:
      initContainers:
      - name: wait
        image: busybox:1.36
        command: [nc, -z, -w, '60', {host}, '{port}']
---
apiVersion: v1
kind: Service
metadata:
  name: cache
  namespace: training
spec:
  selector:
    app: cache
  ports:
  - port: 6379
---
apiVersion: v1
kind: Pod
metadata:
  name: cache
  namespace: training
  labels:
    app: cache
spec:
  containers:
  - name: cache
    image: redis:7.4
    ports:
    - containerPort: 6379
"""


_ENDPOINT = re.compile(
    rf"\b(?:nc|ncat)\s(?:-\S+\s(?:\d+\s)?){{0,6}}{_HOST}\s+(\d{{1,5}})"
    rf"|\bwait-for(?:-it)?(?:\.sh)?\s{_HOST}:(\d{{1,5}})"
    rf"|/dev/tcp/{_HOST}/(\d{{1,5}})"
)


@rule(
    "HF752",
    "waits-at-a-closed-port",
    Severity.ERROR,
    on=Pod,
    what="A container waits for a port that the Service it names does not have.",
    why="Nothing answers there: the pods stay in their init containers.",
    source=DOC_INIT,
    fix="write a port of the Service",
    base="job",
    bad=_wait("cache", 6380),
    good=_wait("cache", 6379),
)
def waits_at_a_closed_port(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers:
        texts = list(container.list_words())
        if not any(" " in text for _, text in texts):
            texts = [(container.command_path, " ".join(container.words))]
        for path, text in texts:
            for match in _ENDPOINT.finditer(text[:_LONGEST]):
                host, port = list(filter(None, match.groups()))
                yield from _check_port(path, host, int(port), pod, context)
    for container in pod.containers:
        yield from _check_pair(container, pod, context)


def _check_port(path: Path, host: str, port: int, pod: Pod, context: Context) -> Iterator[Hit]:
    labels = host.split(".")
    namespace = labels[1] if len(labels) > 1 else pod.owner.namespace
    service = context.index.find("Service", labels[0], namespace)
    if service is None:
        return
    ports = [as_int(dig(entry, "port")) for entry in as_list(service.spec.get("ports"))]
    if service.spec.get("clusterIP") == "None":
        for other in context.index.select_pods(service.namespace, get_selector(service)):
            for container in other.containers:
                ports += list(container.ports)
    if ports and port not in ports:
        listed = ", ".join(map(str, ports[:5]))
        yield Hit(path, f"Service {service.name} has no port {port}; it has {listed}")


def _check_pair(container: Container, pod: Pod, context: Context) -> Iterator[Hit]:
    """Yields a variable NAME_PORT that is no port of the Service in NAME_HOST."""
    values = {name: value for _, name, value in container.variables}
    for path, name, value in container.variables:
        if name.endswith("_PORT") and value.isdecimal():
            host = as_text(values.get(name.removesuffix("_PORT") + "_HOST"))
            if re.fullmatch(_HOST, host[:300]):
                yield from _check_port(path, host, int(value[:9]), pod, context)


def _local(port: int) -> str:
    return f"""\
spec:
  template:
    spec:
      initContainers:
      - name: proxy
        image: gcr.io/cloud-sql-connectors/cloud-sql-proxy:2.14.1
        args: [--port=5432, 'p:us-central1:labels']
        restartPolicy: Always
      containers:
      - name: main
        image: registry.example/sync:1.4
        env:
        - name: PGHOST
          value: 127.0.0.1
        - name: PGPORT
          value: '{port}'
        resources:
          limits:
            nvidia.com/gpu: 1
            memory: 8Gi
"""


@rule(
    "HF753",
    "asks-a-closed-local-port",
    Severity.ERROR,
    on=Pod,
    what="A container asks a port of its own pod on which none of its sidecars listens.",
    why="The connection is refused at each start.",
    source=DOC_SIDECAR,
    fix="write the port of the sidecar",
    base="job",
    bad=_local(5433),
    good=_local(5432),
)
def asks_a_closed_local_port(pod: Pod, context: Context) -> Iterator[Hit]:
    proxies = [other for other in pod.containers if _PORT_OPTION.search(other.script)]
    if not proxies or len(pod.containers) < 2:
        return
    opened = set[int]().union(*map(_list_ports, pod.containers))
    for container in pod.containers:
        if proxies == [container] or any(map(_has_unknown_port, _list_others(container, pod))):
            continue
        for path, name, port in _list_local_ports(container):
            if port not in opened:
                listed = ", ".join(map(str, sorted(opened)[:5]))
                yield Hit(path, f"{name} is {port}; the containers listen on {listed}")


def _list_others(container: Container, pod: Pod) -> Iterator[Container]:
    """Yields the other containers that run with a container."""
    for other in pod.containers:
        is_running = other.is_main or other.body.get("restartPolicy") == "Always"
        if other is not container and is_running:
            yield other


def _has_unknown_port(container: Container) -> bool:
    """Returns whether a container may listen on a default port that no option names.

    A second port, as --http-port for health checks, says nothing about the main one.
    """
    return not container.ports and not _MAIN_PORT_OPTION.search(container.script)


def _list_ports(container: Container) -> set[int]:
    """Lists the ports that a container declares, or that its options and probes name."""
    ports = set(container.ports)
    for match in _PORT_OPTION.finditer(container.script):
        ports.add(int(match[1]))
    return ports


def _list_local_ports(container: Container) -> Iterator[tuple[Path, str, int]]:
    """Yields the ports of this pod that a container asks, each with its path and name."""
    values = {name: value for _, name, value in container.variables}
    for path, name, value in container.variables:
        host = values.get(name.removesuffix("PORT") + "HOST", "")
        if name.endswith("PORT") and value.isdecimal() and host in _LOCAL:
            yield path, name, int(value[:9])
        match = _LOCAL_URL.search(value[:_LONGEST])
        if match:
            yield path, name, int(match[1])


_LOCAL = ("127.0.0.1", "localhost")
_PORT_OPTION = re.compile(r"--[\w-]{0,40}port[= \n](\d{1,5})(?!\d)")
_MAIN_PORT_OPTION = re.compile(r"--(?:listen-|server-)?port[= \n]\d")
_LOCAL_URL = re.compile(r"//(?:[^@/\s]{1,100}@)?(?:127\.0\.0\.1|localhost):(\d{1,5})")
