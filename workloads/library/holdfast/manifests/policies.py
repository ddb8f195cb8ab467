"""Builds network policies and disruption budgets."""

from collections.abc import Iterator
from typing import Any

from holdfast.manifests.render_context import Body, manifest, meta
from holdfast.vocabulary.kubernetes import FQDN_API, LABEL_GANG, LABEL_NAME, LABEL_NAMESPACE
from holdfast.vocabulary.roles import NAMESPACE_TRAINING

RENDEZVOUS_PORT = 29_500


def peers(name: str, namespace: str = NAMESPACE_TRAINING) -> Body:
    """Opens the pods of one run to each other.

    They stay closed to pods of other runs in the same namespace.
    """
    pods = {LABEL_GANG: name}
    # gloo and NCCL use any free port.
    ports = [
        {
            "endPort": 65_535,
            "port": 1_024,
            "protocol": "TCP",
        }
    ]
    ingress_rule = {
        "from": [_pods(pods)],
        "ports": ports,
    }
    egress_rule = {
        "ports": ports,
        "to": [_pods(pods)],
    }
    return policy(name, namespace, ["Ingress", "Egress"], [ingress_rule], [egress_rule], pods)


def ingress(
    namespace: str,
    name: str,
    pods: dict[str, str],
    *,
    port: int,
    peers: dict[str, str] | None,
) -> Iterator[Body]:
    """Opens a port of pods with labels `pods` to pods of the namespace with labels `peers`.

    Those get the egress too. Without `peers` the port is open to every pod of the cluster.
    """
    ports = [{"port": port, "protocol": "TCP"}]
    source = _pods(peers) if peers else {"namespaceSelector": {}}
    ingress_rule = {"from": [source], "ports": ports}
    yield policy(name, namespace, ["Ingress"], [ingress_rule], None, pods)
    if peers:
        egress_rule = {"ports": ports, "to": [_pods(pods)]}
        yield policy(f"{name}-egress", namespace, ["Egress"], None, [egress_rule], peers)


def scrape(
    namespace: str, *ports: int, name: str = "scrape", pods: dict[str, str] | None = None
) -> Body:
    """Opens ports to managed Prometheus."""
    collectors = {"namespaceSelector": {"matchLabels": {LABEL_NAMESPACE: "gmp-system"}}}
    ingress_rule = {
        "from": [collectors],
        "ports": [{"port": port, "protocol": "TCP"} for port in ports],
    }
    return policy(name, namespace, ["Ingress"], [ingress_rule], None, pods)


def policy(
    name: str,
    namespace: str,
    types: list[str],
    ingress: Any,
    egress: Any,
    pods: dict[str, str] | None = None,
) -> Body:
    """Builds a network policy over the pods with labels `pods`; None means all."""
    rules = {"egress": egress} if egress else {}
    rules |= {"ingress": ingress} if ingress else {}
    spec = rules | {
        "podSelector": {"matchLabels": pods} if pods else {},
        "policyTypes": types,
    }
    return manifest("networking.k8s.io/v1", "NetworkPolicy", meta(name, namespace), spec=spec)


def egress_rule(ports: list[str], peers: list[Any]) -> dict[str, Any]:
    """Builds a rule that lets pods reach `peers` on ports such as 443/TCP."""
    entries: list[Body] = []
    for port in ports:
        number, protocol = port.split("/")
        entries.append({"port": int(number), "protocol": protocol})
    return {"ports": entries, "to": peers}


def names_policy(name: str, namespace: str, names: list[str], port: int) -> Body:
    """Builds a policy of GKE that opens a port of hosts by name, to all pods of the namespace."""
    matches: list[Body] = []
    for host in names:
        key = "pattern" if "*" in host else "name"
        matches.append({key: host})
    rule = {"matches": matches, "ports": [{"port": port, "protocol": "TCP"}]}
    spec = {"podSelector": {}, "egress": [rule]}
    return manifest(FQDN_API, "FQDNNetworkPolicy", meta(name, namespace), spec=spec)


def block(cidr: str) -> Body:
    return {"ipBlock": {"cidr": cidr}}


def _pods(labels: dict[str, str]) -> Body:
    return {"podSelector": {"matchLabels": labels}}


def budget(
    name: str,
    namespace: str,
    app: str,
    reason: str,
    keep: int | None = None,
) -> Body:
    """Builds a budget that lets one pod at a time go.

    `keep`, the number of pods that stay, is for pods of Jobs: Kubernetes knows no total for them.
    """
    limit = {"maxUnavailable": 1} if keep is None else {"minAvailable": keep}
    spec = {
        **limit,
        "selector": {"matchLabels": {LABEL_NAME: app}},
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }
    metadata = meta(name, namespace, annotations={"holdfast.dev/reason": reason})
    return manifest("policy/v1", "PodDisruptionBudget", metadata, spec=spec)
