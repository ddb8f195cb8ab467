"""HF700 to HF702: NetworkPolicies that cut pods off from what they need outside."""

import re
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from typing import Any

from holdfast.lint.finding import Hit, Severity
from holdfast.lint.folders import FUSE_DRIVER
from holdfast.lint.object_index import get_selector, selects
from holdfast.lint.objects import Object, Pod, as_int, as_list, as_maps, as_text, dig
from holdfast.lint.registry import Context, rule
from holdfast.vocabulary.kubernetes import ANNOTATION_GOOGLE_ACCOUNT

DOC_IDENTITY = "https://cloud.google.com/kubernetes-engine/docs/how-to/workload-identity"
DOC_POLICY = "https://kubernetes.io/docs/concepts/services-networking/network-policies/"
_METADATA = (("169.254.169.254", 80), ("169.254.169.252", 988), ("169.254.169.252", 987))
_OUTSIDE = re.compile(r"\b(?:gs|https?|s3)://|huggingface|\bhf\b|\bwandb\b")


def _policy(egress: str) -> str:
    return f"""\
apiVersion: v1
kind: Pod
metadata:
  name: loader
  namespace: research
  labels:
    app: loader
spec:
  serviceAccountName: loader
  containers:
  - name: main
    image: registry.example/loader:1.4
    command:
    - python
    - -m
    - loader
    - --weights
    - gs://models/a7
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: loader
  namespace: research
spec:
  podSelector:
    matchLabels:
      app: loader
  policyTypes: [Egress]
  egress: [{egress}]
"""


_DNS = "{ports: [{port: 53, protocol: UDP}]}"
_GOOGLE = "{to: [{ipBlock: {cidr: 199.36.153.8/30}}], ports: [{port: 443}]}"
_SERVER = (
    "{to: [{ipBlock: {cidr: 169.254.169.252/32}}], ports: [{port: 988}]},"
    " {to: [{ipBlock: {cidr: 169.254.169.254/32}}], ports: [{port: 80}]}"
)


@rule(
    "HF700",
    "metadata-server-closed",
    Severity.ERROR,
    on=Object,
    kinds=("NetworkPolicy",),
    what="NetworkPolicies keep pods with an identity of Google from the metadata server.",
    why="Their clients get no token: each call to a bucket or another service waits, then fails.",
    source=DOC_IDENTITY,
    fix="allow 169.254.169.252 port 988 and 169.254.169.254 port 80",
    bad=_policy(f"{_DNS}, {_GOOGLE}"),
    good=_policy(f"{_DNS}, {_GOOGLE}, {_SERVER}"),
)
def metadata_server_closed(obj: Object, context: Context) -> Iterator[Hit]:
    openings = as_list(obj.spec.get("egress"))
    if "Egress" not in _get_types(obj) or not openings or _has_platform_policies(obj, context):
        return
    for pod in _list_selected(obj, context):
        if not _uses_google(pod, context):
            continue
        if not any(map(_opens_metadata, _list_openings(pod, context))):
            message = f"{pod.owner.name} gets no token of Google: the metadata server is closed"
            yield Hit(("spec", "egress"), message)
            return


@rule(
    "HF701",
    "cut-off-from-everything",
    Severity.ERROR,
    on=Object,
    kinds=("NetworkPolicy",),
    what="A NetworkPolicy closes all egress of pods that name addresses outside.",
    why="With policyTypes Egress and no rule nothing is allowed, not even DNS: all calls hang.",
    source=DOC_POLICY,
    fix="list what the pods need in egress, or remove Egress from policyTypes",
    bad=_policy(""),
    good=_policy(f"{_DNS}, {_GOOGLE}, {_SERVER}"),
)
def cut_off_from_everything(obj: Object, context: Context) -> Iterator[Hit]:
    if "Egress" not in _get_types(obj) or as_list(obj.spec.get("egress")):
        return
    if _has_platform_policies(obj, context):
        return
    for pod in _list_selected(obj, context):
        if not _list_openings(pod, context) and (_uses_google(pod, context) or _calls(pod)):
            yield Hit(("spec", "policyTypes"), f"{pod.owner.name} can connect to nothing")
            return


@rule(
    "HF702",
    "direction-not-in-force",
    Severity.ERROR,
    on=Object,
    kinds=("NetworkPolicy",),
    what="A NetworkPolicy lists rules of a direction that its policyTypes leave out.",
    why="The rules have no effect; without UDP 53 no name resolves.",
    source=DOC_POLICY,
    fix="name Ingress and Egress in policyTypes as the rules need; UDP and TCP 53 for DNS",
    bad=_policy(f"{_DNS}, {_GOOGLE}, {_SERVER}").replace("[Egress]", "[Ingress]"),
    good=_policy(f"{_DNS}, {_GOOGLE}, {_SERVER}"),
)
def direction_not_in_force(obj: Object, context: Context) -> Iterator[Hit]:
    types = as_list(obj.spec.get("policyTypes"))
    for direction in ("Ingress", "Egress"):
        field = direction.lower()
        if types and direction not in types and as_list(obj.spec.get(field)):
            yield Hit(("spec", "policyTypes"), f"leaves out {direction}, and has rules of it")
    for index, opening in enumerate(as_maps(obj.spec.get("egress"))):
        ports = as_maps(opening.get("ports"))
        names: set[tuple[str, str]] = set()
        for entry in ports:
            names.add((str(entry.get("port")), as_text(entry.get("protocol")) or "TCP"))
        if ("53", "TCP") in names and ("53", "UDP") not in names and not _opens_udp(obj):
            message = "53 is open by TCP only, and names are asked by UDP"
            yield Hit(("spec", "egress", index, "ports"), message)
        peers = as_maps(opening.get("to"))
        is_of_dns = any(map(_selects_dns, peers))
        numbers = {number for number, _ in names}
        if is_of_dns and ports and not numbers & {"53", "dns", "dns-tcp"}:
            message = "opens no port 53 of the resolver"
            yield Hit(("spec", "egress", index, "ports"), message)


def _opens_udp(policy: Object) -> bool:
    for opening in as_maps(policy.spec.get("egress")):
        for entry in as_maps(opening.get("ports")):
            if entry.get("protocol") == "UDP" and entry.get("port") in (53, "53", "dns", None):
                return True
    return False


def _selects_dns(peer: dict[str, Any]) -> bool:
    """Returns whether a peer is the cluster's resolver of names."""
    selector = dig(peer, "podSelector")
    if dig(selector, "matchLabels", "k8s-app") in ("kube-dns", "node-local-dns"):
        return True
    for expression in as_maps(dig(selector, "matchExpressions")):
        if expression.get("key") == "k8s-app" and "kube-dns" in as_list(expression.get("values")):
            return True
    return False


def _has_platform_policies(obj: Object, context: Context) -> bool:
    """Returns whether policies of the platform open more in the namespace."""
    platform = context.platform
    return obj.namespace in (*platform.namespaces, *platform.job_namespaces)


def _get_types(policy: Object) -> list[Any]:
    default = ["Ingress", "Egress"] if "egress" in policy.spec else ["Ingress"]
    return as_list(policy.spec.get("policyTypes")) or default


def _list_selected(policy: Object, context: Context) -> list[Pod]:
    pods = context.index.list_pods_near(policy)
    return [pod for pod in pods if selects(get_selector(policy), pod)]


def _list_openings(pod: Pod, context: Context) -> list[dict[str, Any]]:
    """Lists the rules of egress of all policies over a pod."""
    openings: list[dict[str, Any]] = []
    for policy in context.index.find_selecting("NetworkPolicy", pod):
        openings += as_maps(policy.spec.get("egress"))
    return openings


def _uses_google(pod: Pod, context: Context) -> bool:
    """Returns whether a pod has an identity of Google that it uses, or mounts a bucket."""
    for _, volume in pod.volumes:
        if dig(volume, "csi", "driver") == FUSE_DRIVER:
            return True
    account = context.index.find("ServiceAccount", pod.account, pod.owner.namespace)
    if account and ANNOTATION_GOOGLE_ACCOUNT in account.annotations:
        return True
    return any("gs://" in container.script for container in pod.containers)


def _calls(pod: Pod) -> bool:
    for container in pod.containers:
        if any(_OUTSIDE.search(text[:4_000]) for _, text in container.list_texts()):
            return True
    return False


def _opens_metadata(opening: dict[str, Any]) -> bool:
    peers = as_maps(opening.get("to"))
    if peers and not any(dig(peer, "ipBlock") for peer in peers):
        return False
    for address, port in _METADATA:
        if _has_port(opening, port) and (not peers or _has_address(peers, address)):
            return True
    return False


def _has_port(opening: dict[str, Any], port: int) -> bool:
    ports = as_maps(opening.get("ports"))
    for entry in ports:
        first = as_int(entry.get("port"))
        last = as_int(entry.get("endPort")) or first
        if entry.get("protocol") in (None, "TCP") and first and first <= port <= (last or 0):
            return True
        if entry.get("protocol") in (None, "TCP") and entry.get("port") is None:
            return True
    return not ports


def _has_address(peers: list[dict[str, Any]], address: str) -> bool:
    for peer in peers:
        block = dig(peer, "ipBlock")
        if _is_inside(address, as_text(dig(block, "cidr"))):
            excepted = [as_text(item) for item in as_list(dig(block, "except"))]
            if not any(_is_inside(address, item) for item in excepted):
                return True
    return False


def _is_inside(address: str, network: str) -> bool:
    try:
        return ip_address(address) in ip_network(network[:50], strict=False)
    except ValueError:
        return False
