"""Policies of Kubernetes: which pods may reach each other, and how many pods may go at once."""

from collections.abc import Iterator
from typing import Any

from holdfast.manifests.render_context import Body, manifest, meta
from holdfast.vocabulary.kubernetes import LABEL_GANG, LABEL_NAME, LABEL_NAMESPACE
from holdfast.vocabulary.roles import NAMESPACE_TRAINING

RENDEZVOUS_PORT = 29_500


def peers(name: str, namespace: str = NAMESPACE_TRAINING) -> Body:
    """Opens the pods of one run to each other. To a pod of another run they stay closed, though it
    trains in the same namespace.
    """
    own = {LABEL_GANG: name}
    # gloo and NCCL take whatever ports are free.
    ports = [
        {
            "endPort": 65_535,
            "port": 1_024,
            "protocol": "TCP",
        }
    ]
    inward = {
        "from": [_pods(own)],
        "ports": ports,
    }
    outward = {
        "ports": ports,
        "to": [_pods(own)],
    }
    return policy(name, namespace, ["Ingress", "Egress"], [inward], [outward], own)


def ingress(
    namespace: str,
    name: str,
    pods: dict[str, str],
    *,
    port: int,
    peers: dict[str, str] | None,
) -> Iterator[Body]:
    """To pods with labels `pods`, from those of the namespace with labels `peers`, and there the
    way out; None: from every pod of the cluster.
    """
    ports = [{"port": port, "protocol": "TCP"}]
    allowed = _pods(peers) if peers else {"namespaceSelector": {}}
    yield policy(
        name,
        namespace,
        ["Ingress"],
        [
            {
                "from": [allowed],
                "ports": ports,
            }
        ],
        None,
        pods,
    )
    if peers:
        yield policy(
            f"{name}-egress",
            namespace,
            ["Egress"],
            None,
            [
                {
                    "ports": ports,
                    "to": [_pods(pods)],
                }
            ],
            peers,
        )


def scraped(
    namespace: str, *ports: int, name: str = "scrape", pods: dict[str, str] | None = None
) -> Body:
    """By managed Prometheus."""
    collectors = {"namespaceSelector": {"matchLabels": {LABEL_NAMESPACE: "gmp-system"}}}
    scrape = {
        "from": [collectors],
        "ports": [{"port": port, "protocol": "TCP"} for port in ports],
    }
    return policy(name, namespace, ["Ingress"], [scrape], None, pods)


def policy(
    name: str,
    namespace: str,
    types: list[str],
    ingress: Any,
    egress: Any,
    pods: dict[str, str] | None = None,
) -> Body:
    """`pods`: labels of those it is for; None means all."""
    rules = {"egress": egress} if egress else {}
    rules |= {"ingress": ingress} if ingress else {}
    spec = rules | {
        "podSelector": {"matchLabels": pods} if pods else {},
        "policyTypes": types,
    }
    return manifest("networking.k8s.io/v1", "NetworkPolicy", meta(name, namespace), spec=spec)


def egress_rule(ports: list[str], peers: list[Any]) -> dict[str, Any]:
    listed = [port.split("/") for port in ports]
    return {
        "ports": [
            {
                "port": int(number),
                "protocol": kind,
            }
            for number, kind in listed
        ],
        "to": peers,
    }


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
    """One pod at a time may go. `keep`, a count, is for pods of Jobs: for them Kubernetes knows no
    total.
    """
    spec = {
        **({"maxUnavailable": 1} if keep is None else {"minAvailable": keep}),
        "selector": {"matchLabels": {LABEL_NAME: app}},
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }
    about = meta(name, namespace, annotations={"holdfast.dev/reason": reason})
    return manifest("policy/v1", "PodDisruptionBudget", about, spec=spec)
