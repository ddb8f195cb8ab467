"""HF148, HF155, HF16x: what Services, budgets and NetworkPolicies choose, and whether pods that
need each other connect.
"""

from collections.abc import Iterator
from typing import Any

from holdfast.lint.document import Path
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.objects import Object, Pod, as_int, as_list, as_text, dig
from holdfast.lint.registry import Context, rule
from holdfast.lint.rules.elastic import GOOD, but, member
from holdfast.lint.world import selector_of, selects
from holdfast.vocabulary.environment import ENV_GANG_PORT
from holdfast.vocabulary.kubernetes import LABEL_NAMESPACE

DOC_POLICY = "https://kubernetes.io/docs/concepts/services-networking/network-policies/"
DOC_SERVICE = "https://kubernetes.io/docs/concepts/services-networking/service/"
ELASTIC_PORT = 29_500
ANY_PORT = 49_152  # in place of the free ports that gloo and NCCL use
_SELECTING = ("Service", "PodDisruptionBudget", "PodMonitoring", "NetworkPolicy")
_SERVED = """\
ports: [{containerPort: 8080}]
---
apiVersion: v1
kind: Service
metadata: {name: server, namespace: serving}
spec: {selector: {app: SELECTED}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: answer, namespace: serving}
spec:
  podSelector: {matchLabels: {app: server}}
  ingress: [{from: [{podSelector: {matchLabels: {app: proxy}}}], ports: [{port: OPENED}]}]
"""


def _served(selected: str = "server", opened: int = 8080) -> str:
    return _SERVED.replace("SELECTED", selected).replace("OPENED", str(opened))


@rule(
    "HF148",
    "reaches-no-pod",
    Severity.ERROR,
    on=Object,
    what=(
        "A Service, budget, monitor or NetworkPolicy selects none of the pods in its file, or a"
        " port that they have not."
    ),
    why=(
        "Requests get no answer, a budget protects nothing, a policy opens nothing; and no event"
        " says so."
    ),
    source=DOC_SERVICE,
    fix="select by the labels of the pod template, and a port of its containers",
    base="serving-container",
    bad=_served("servers"),
    good=_served(),
)
def reaches_no_pod(obj: Object, context: Context) -> Iterator[Hit]:
    selector = selector_of(obj) if obj.kind in _SELECTING else {}
    if not any(selector.values()):
        return
    pods = context.world.selected(obj.namespace, selector)
    if not pods and context.world.has_pods_near(obj):
        field = "podSelector" if obj.kind == "NetworkPolicy" else "selector"
        yield Hit(("spec", field), "selects none of the pods in its file")
    for at, port in _ports(obj):
        listed = [[c.ports for c in pod.containers if c.ports] for pod in pods]
        if pods and all(listed) and not any(_declared(port, each) for each in listed):
            yield Hit(at, f"no container of its pods has the port {port}")


def _ports(obj: Object) -> list[tuple[Path, int | str]]:
    """Ports of pods that a Service or a monitor names, each with its place."""
    if obj.kind == "PodMonitoring":
        field, words = ("endpoints", ("port",))
    else:
        field, words = ("ports", ("targetPort", "port"))
    found = list[tuple[Path, int | str]]()
    for index, each in enumerate(
        as_list(obj.spec.get(field)) if obj.kind in ("Service", "PodMonitoring") else []
    ):
        word = next((word for word in words if dig(each, word)), "port")
        port = dig(each, word)
        if as_int(port) or as_text(port):
            found.append((("spec", field, index, word), port))
    return found


def _declared(port: int | str, containers: list[dict[int, str]]) -> int:
    """The number of a port; 0 where no container has it."""
    return next((n for each in containers for n, name in each.items() if port in (n, name)), 0)


@rule(
    "HF155",
    "gang-port-closed",
    Severity.ERROR,
    on=Pod,
    what="A NetworkPolicy closes ports that members of a gang use among themselves.",
    why=(
        "A gang then waits for its members until the deadline. Those of an elastic one take each"
        " other for lost."
    ),
    source=DOC_POLICY,
    fix="allow TCP 1024 to 65535 from and to the gang's own pods: gloo and NCCL use any free port",
    base="job",
    bad=but("port: 1024, endPort: 65535", "port: 29500"),
    good=GOOD,
)
def gang_port_closed(pod: Pod, context: Context) -> Iterator[Hit]:
    for port in _gang_ports(pod):
        names = _closed(context, pod, pod, port)
        if names:
            yield Hit(pod.at, f"port {port} is closed by {names}")
            return


def _gang_ports(pod: Pod) -> tuple[int, ...]:
    main = member(pod)
    if main:
        first = main.number("", ENV_GANG_PORT) or ELASTIC_PORT
        return first, first + 1, ANY_PORT
    joins = pod.replicas > 1 and any(
        c.option("--rendezvous") or c.option("--rdzv-endpoint") for c in pod.containers
    )
    return (ANY_PORT,) if pod.job and joins else ()


def _closed(context: Context, source: Pod | None, target: Pod, port: int) -> str:
    """The policies that keep `source` from a port of `target`; empty where it is open. None: any
    pod, anywhere.
    """
    for direction, pod, peer, key in (
        ("Ingress", target, source, "from"),
        ("Egress", source, target, "to"),
    ):
        policies = context.world.selecting("NetworkPolicy", pod) if pod else []
        bounds = [policy for policy in policies if direction in _types(policy)]
        rules = [each for policy in bounds for each in as_list(policy.spec.get(direction.lower()))]
        if bounds and not any(
            _covers(each, port) and _admits(each, key, pod, peer) for each in rules
        ):
            return ", ".join(sorted(policy.name for policy in bounds))
    return ""


def _types(policy: Object) -> list[Any]:
    implied = ["Ingress", "Egress"] if "egress" in policy.spec else ["Ingress"]
    return as_list(policy.spec.get("policyTypes")) or implied


def _covers(opening: Any, port: int) -> bool:
    ports = as_list(dig(opening, "ports"))
    bounds = []
    for p in ports:
        if dig(p, "protocol") in (None, "TCP"):
            bounds.append((as_int(dig(p, "port")), as_int(dig(p, "endPort"))))
    return not ports or any(
        first is None or first <= port <= (last or first) for first, last in bounds
    )


def _admits(opening: Any, key: str, pod: Pod | None, peer: Pod | None) -> bool:
    listed = as_list(dig(opening, key))
    return not listed or peer is None or pod is None or any(_is(each, pod, peer) for each in listed)


def _is(each: Any, pod: Pod, peer: Pod) -> bool:
    """Whether one entry of `from` or `to` means `peer`; `pod` is the one that the policy selects."""
    spaces = dig(each, "namespaceSelector")
    there = peer.owner.namespace
    wanted = dig(spaces, "matchLabels", LABEL_NAMESPACE)
    near = there == pod.owner.namespace if spaces is None else spaces == {} or wanted == there
    return near and dig(each, "ipBlock") is None and selects(dig(each, "podSelector"), peer)


@rule(
    "HF160",
    "port-closed",
    Severity.ERROR,
    on=Object,
    what=(
        "NetworkPolicies close a port to those that need it: a Service's clients, its proxy, or"
        " what scrapes it."
    ),
    why="Each request to it hangs until the client's timeout.",
    source=DOC_POLICY,
    fix="allow the port in a NetworkPolicy over these pods",
    base="serving-container",
    bad=_served(opened=80),
    good=_served(),
)
def port_closed(obj: Object, context: Context) -> Iterator[Hit]:
    if any(selector_of(obj).values()):
        pods = context.world.selected(obj.namespace, selector_of(obj))
    else:
        pods = []
    for at, port in _ports(obj):
        for pod in pods:
            if isinstance(port, int):
                asked = port
            else:
                asked = _declared(port, [c.ports for c in pod.containers])
            names = _closed(context, None, pod, asked) if asked else ""
            if names:
                yield Hit(at, f"port {asked} of {pod.owner.name} is closed by {names}")
    for pod in obj.pods:
        yield from _cut_off(pod, context)


def _cut_off(proxy: Pod, context: Context) -> Iterator[Hit]:
    """A proxy asks the servers of its Service for answers, and on another port for their health."""
    for container in (
        proxy.containers if any(c.runs("serve", "endpoints") for c in proxy.containers) else []
    ):
        namespace = container.option("--namespace")
        service = context.world.named("Service", container.option("--service"), namespace)
        ports = [port for _, port in _ports(service) if isinstance(port, int)] if service else []
        for pod in context.world.selected(namespace, selector_of(service)) if service else []:
            for port in (*ports, *filter(None, [container.number("--health-port")])):
                names = _closed(context, proxy, pod, port)
                if names:
                    yield Hit(
                        container.path,
                        f"cannot reach port {port} of {pod.owner.name}: closed by {names}",
                    )


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
        "Members of a gang trust each other's state. A client that goes past the proxy loses"
        " requests at each preemption."
    ),
    source=DOC_POLICY,
    fix="name the pods that may connect: from: [{podSelector: ...}]",
    base="job",
    good=GOOD,
    bad=but(
        "from: [{podSelector: {matchLabels: {app.kubernetes.io/name: train}}}]",
        "from: [{namespaceSelector: {}}]",
    ),
)
def open_to_all_namespaces(obj: Object, context: Context) -> Iterator[Hit]:
    if "Ingress" not in _types(obj):
        return
    everywhere = not any(selector_of(obj).values())
    pods = context.world.selected(obj.namespace, selector_of(obj))
    if not everywhere and not any(pod.job or context.place(pod).on_spot for pod in pods):
        return
    for index, opening in enumerate(as_list(obj.spec.get("ingress"))):
        listed = as_list(dig(opening, "from"))
        if not listed or any(
            dig(e, "namespaceSelector") == {} and not dig(e, "podSelector") for e in listed
        ):
            yield Hit(("spec", "ingress", index), "lets in pods of all namespaces")
