"""HF155, HF16x: ports that NetworkPolicies close, and pods that they admit."""

from collections.abc import Iterator
from typing import Any

from holdfast.lint.document import Path
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.object_index import get_selector, match_labels, selects
from holdfast.lint.objects import Container, Object, Pod, as_int, as_list, dig
from holdfast.lint.registry import Context, rule
from holdfast.lint.rules.elastic import GOOD, find_member, replace_once
from holdfast.lint.rules.selectors import find_port, list_ports, serve
from holdfast.lint.spelling import find_near
from holdfast.vocabulary.environment import ENV_GANG_PORT
from holdfast.vocabulary.kubernetes import LABEL_NAMESPACE

DOC_POLICY = "https://kubernetes.io/docs/concepts/services-networking/network-policies/"
ELASTIC_PORT = 29_500
ANY_PORT = 49_152  # in place of the free ports that gloo and NCCL use
_MEETING_OPTIONS = (
    *("--rendezvous", "--rdzv-endpoint", "--rdzv_endpoint"),
    *("--master-addr", "--master_addr"),
)


@rule(
    "HF155",
    "gang-port-closed",
    Severity.ERROR,
    on=Pod,
    what="A NetworkPolicy closes ports that members of a gang use among themselves.",
    why=(
        "A gang then waits for its members until the deadline. In an elastic gang each member"
        " concludes that the others are lost."
    ),
    source=DOC_POLICY,
    fix="allow TCP 1024 to 65535 from and to the gang's own pods: gloo and NCCL use any free port",
    base="job",
    bad=replace_once("port: 1024, endPort: 65535", "port: 29500"),
    good=GOOD,
)
def gang_port_closed(pod: Pod, context: Context) -> Iterator[Hit]:
    for port in _list_gang_ports(pod):
        names = _find_closing(context, pod, pod, port)
        if names:
            yield Hit(pod.spec_path, f"port {port} is closed by {names}")
            return


def _list_gang_ports(pod: Pod) -> tuple[int, ...]:
    member = find_member(pod)
    if member:
        first_port = member.number("", ENV_GANG_PORT) or ELASTIC_PORT
        return first_port, first_port + 1, ANY_PORT
    if not pod.job or pod.replicas < 2:
        return ()
    for container in pod.containers:
        meets = any(container.option(option) for option in _MEETING_OPTIONS)
        meets = meets or "MASTER_ADDR" in container.env
        if meets and container.gpus:
            return (ANY_PORT,)
    return ()


def _find_closing(context: Context, source: Pod | None, target: Pod, port: int) -> str:
    """Names the policies that keep `source` from a port of `target`; empty where it is open.

    A source of None is any pod, anywhere.
    """
    names = _find_closing_policies(context, "Ingress", target, source, port)
    if not names and source:
        names = _find_closing_policies(context, "Egress", source, target, port)
    return ", ".join(sorted(names))


def _find_closing_policies(
    context: Context, direction: str, pod: Pod, peer: Pod | None, port: int
) -> list[str]:
    """Names the policies over `pod` if none of them opens the port in this direction."""
    key = "from" if direction == "Ingress" else "to"
    names: list[str] = []
    for policy in context.index.find_selecting("NetworkPolicy", pod):
        if direction not in _get_types(policy):
            continue
        names.append(policy.name)
        for opening in as_list(policy.spec.get(direction.lower())):
            if _covers(opening, port) and _admits(opening, key, pod, peer):
                return []
    return names


def _get_types(policy: Object) -> list[Any]:
    default = ["Ingress", "Egress"] if "egress" in policy.spec else ["Ingress"]
    return as_list(policy.spec.get("policyTypes")) or default


def _covers(opening: Any, port: int) -> bool:
    ports = as_list(dig(opening, "ports"))
    for entry in ports:
        if dig(entry, "protocol") not in (None, "TCP"):
            continue
        first_port = as_int(dig(entry, "port"))
        last_port = as_int(dig(entry, "endPort"))
        if first_port is None or first_port <= port <= (last_port or first_port):
            return True
    return not ports


def _admits(opening: Any, key: str, pod: Pod, peer: Pod | None) -> bool:
    entries = as_list(dig(opening, key))
    if not entries or peer is None:
        return True
    return any(_means(entry, pod, peer) for entry in entries)


def _means(entry: Any, pod: Pod, peer: Pod) -> bool:
    """Returns whether an entry of `from` or `to` means `peer`; the policy selects `pod`."""
    selector = dig(entry, "namespaceSelector")
    namespace = peer.owner.namespace
    if selector is None:
        has_namespace = namespace == pod.owner.namespace
    else:
        name = dig(selector, "matchLabels", LABEL_NAMESPACE)
        has_namespace = selector == {} or name == namespace
    if not has_namespace or dig(entry, "ipBlock") is not None:
        return False
    return selects(dig(entry, "podSelector"), peer)


@rule(
    "HF160",
    "port-closed",
    Severity.ERROR,
    on=Object,
    what=(
        "NetworkPolicies close a port that others need: a Service's clients, its proxy, or"
        " Prometheus."
    ),
    why="Each request to it hangs until the client's timeout.",
    source=DOC_POLICY,
    fix="allow the port in a NetworkPolicy over these pods",
    base="serving-container",
    bad=serve(opened=80),
    good=serve(),
)
def port_closed(obj: Object, context: Context) -> Iterator[Hit]:
    selector = get_selector(obj)
    pods = context.index.select_pods(obj.namespace, selector) if any(selector.values()) else []
    for path, port in list_ports(obj):
        for pod in pods:
            number = port if isinstance(port, int) else find_port(port, pod)
            names = _find_closing(context, None, pod, number) if number else ""
            if names:
                yield Hit(path, f"port {number} of {pod.owner.name} is closed by {names}")
    for pod in obj.pods:
        has_endpoints = any(container.runs("serve", "endpoints") for container in pod.containers)
        for container in pod.containers:
            if has_endpoints:
                name = container.option("--service")
                service = context.index.find("Service", name, container.option("--namespace"))
                yield from _check_proxy(pod, container, service, context)
            if container.runs("serve", "router"):
                name = container.option("--servers").partition(":")[0]
                service = context.index.find("Service", name, obj.namespace)
                yield from _check_proxy(pod, container, service, context)


def _check_proxy(
    proxy: Pod,
    container: Container,
    service: Object | None,
    context: Context,
) -> Iterator[Hit]:
    """Yields the closed ports of the servers behind a proxy: for requests and for health."""
    if service is None:
        return
    ports = [port for _, port in list_ports(service) if isinstance(port, int)]
    health_port = container.number("--health-port")
    if health_port:
        ports.append(health_port)
    for pod in context.index.select_pods(service.namespace, get_selector(service)):
        for port in ports:
            names = _find_closing(context, proxy, pod, port)
            if names:
                message = f"cannot reach port {port} of {pod.owner.name}: closed by {names}"
                yield Hit(container.path, message)


@rule(
    "HF161",
    "open-to-all-namespaces",
    Severity.WARNING,
    on=Object,
    kinds=("NetworkPolicy",),
    what=(
        "A NetworkPolicy lets pods of all namespaces reach members of a gang, servers on Spot, or"
        " every pod."
    ),
    why=(
        "Members of a gang trust each other's state. A client that bypasses the proxy loses"
        " requests at each preemption."
    ),
    source=DOC_POLICY,
    fix="name the pods that may connect: from: [{podSelector: ...}]",
    base="job",
    good=GOOD,
    bad=replace_once(
        "from: [{podSelector: {matchLabels: {app.kubernetes.io/name: train}}}]",
        "from: [{namespaceSelector: {}}]",
    ),
)
def open_to_all_namespaces(obj: Object, context: Context) -> Iterator[Hit]:
    if "Ingress" not in _get_types(obj):
        return
    selector = get_selector(obj)
    pods = context.index.select_pods(obj.namespace, selector)
    selects_all = not any(selector.values())
    if not selects_all and not any(pod.job or context.place(pod).on_spot for pod in pods):
        return
    for index, opening in enumerate(as_list(obj.spec.get("ingress"))):
        if _admits_all_namespaces(opening):
            yield Hit(("spec", "ingress", index), "lets in pods of all namespaces")


def _admits_all_namespaces(opening: Any) -> bool:
    entries = as_list(dig(opening, "from"))
    for entry in entries:
        if dig(entry, "namespaceSelector") == {} and not dig(entry, "podSelector"):
            return True
    return not entries


def _policy(spec: str) -> str:
    return f"""\
metadata: {{name: server, namespace: web}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{name: server, namespace: web}}
spec: {{podSelector: {{matchLabels: {{app: server}}}}, {spec}}}
"""


def _from(selector: str) -> str:
    entry = f"{{namespaceSelector: {{matchLabels: {{{selector}}}}}}}"
    return _policy(f"policyTypes: [Ingress], ingress: [{{from: [{entry}]}}]")


@rule(
    "HF162",
    "peer-without-pods",
    Severity.ERROR,
    on=Object,
    kinds=("NetworkPolicy",),
    what="A NetworkPolicy admits pods or namespaces by a label that none has.",
    why=(
        "Kubernetes labels a namespace with its name by itself, as kubernetes.io/metadata.name; no"
        " other label of a namespace has its name. What should connect hangs."
    ),
    source=DOC_POLICY,
    fix=f"match {LABEL_NAMESPACE}, and the labels of the pod template",
    base="serving",
    bad=_from("name: gateway"),
    good=_from(f"{LABEL_NAMESPACE}: gateway"),
)
def peer_has_no_pod(obj: Object, context: Context) -> Iterator[Hit]:
    spaces = context.index.by_kind.get("Namespace", [])
    for direction, key in (("ingress", "from"), ("egress", "to")):
        for number, opening in enumerate(as_list(obj.spec.get(direction))):
            for index, entry in enumerate(as_list(dig(opening, key))):
                path = ("spec", direction, number, key, index)
                labels = match_labels(dig(entry, "namespaceSelector"))
                is_known = any(labels.items() <= space.labels.items() for space in spaces)
                if labels.keys() == {"name"} and not is_known:
                    message = f"no namespace has the label name={labels['name']} by itself"
                    yield Hit((*path, "namespaceSelector"), message)
                if dig(entry, "namespaceSelector") is None:
                    yield from _check_peer(path, dig(entry, "podSelector"), obj, context)


def _check_peer(path: Path, selector: Any, policy: Object, context: Context) -> Iterator[Hit]:
    """Yields a selector of pods that is nearly that of pods in the file, and matches none."""
    labels = match_labels(selector)
    pods = context.index.list_pods_near(policy)
    if not labels or any(selects(selector, pod) for pod in pods):
        return
    for pod in context.index.pods:
        home = pod.owner.namespace
        is_near = pod.owner.file == policy.file and home not in ("", policy.namespace)
        if is_near and policy.namespace and selects(selector, pod):
            message = f"{pod.owner.name} is in {home}: without a namespaceSelector it is not meant"
            yield Hit((*path, "podSelector"), message)
            return
    for key, value in labels.items():
        values = {str(pod.labels.get(key)) for pod in pods if key in pod.labels}
        near_value = find_near(value, values, 0.75)
        if near_value and near_value != value:
            message = f"no pod of its file has {key}={value}; did you mean {near_value}?"
            yield Hit((*path, "podSelector"), message)


@rule(
    "HF163",
    "names-not-resolved",
    Severity.ERROR,
    on=Object,
    kinds=("NetworkPolicy",),
    what="NetworkPolicies allow some egress of a pod, but not that to the resolver of names.",
    why="Each connection by name waits for DNS until its timeout.",
    source=DOC_POLICY,
    fix="allow UDP and TCP 53, to pods of kube-system",
    base="serving",
    bad=_policy("policyTypes: [Egress], egress: [{ports: [{port: 443}]}]"),
    good=_policy(
        "policyTypes: [Egress], egress: [{ports: [{port: 443}]}, {ports: [{port: 53, protocol:"
        " UDP}]}]"
    ),
)
def names_not_resolved(obj: Object, context: Context) -> Iterator[Hit]:
    if "Egress" not in _get_types(obj) or not as_list(obj.spec.get("egress")):
        return
    platform = context.platform
    if obj.namespace in (*platform.namespaces, *platform.job_namespaces):
        return  # a policy of the platform opens DNS there
    pods = context.index.list_pods_near(obj)
    for pod in pods:
        if not selects(get_selector(obj), pod):
            continue
        policies = context.index.find_selecting("NetworkPolicy", pod)
        if not _opens_dns(policies):
            yield Hit(("spec", "egress"), f"{pod.owner.name} cannot ask DNS: port 53 is closed")
            return


def _opens_dns(policies: list[Object]) -> bool:
    for policy in policies:
        for opening in as_list(policy.spec.get("egress")):
            ports = as_list(dig(opening, "ports"))
            if not ports or any(map(_is_for_names, ports)):
                return True
    return False


def _is_for_names(port: Any) -> bool:
    """Returns whether a port is that of DNS, whose queries use UDP."""
    number = dig(port, "port")
    is_udp = dig(port, "protocol") == "UDP"
    return number == "dns" or (is_udp and number in (53, "53", None))
