"""Policies of Kubernetes: who may reach whom, and how many pods may go at once."""

from collections.abc import Iterator
from typing import Any

from kubernetes import client

from holdfast.contract.kubernetes import LABEL_NAME, LABEL_NAMESPACE
from holdfast.contract.roles import NAMESPACE_TRAINING
from holdfast.manifests.render_context import Body, meta, plain

RENDEZVOUS_PORT = 29_500


def peers(name: str) -> Body:
    """Opens the pods of one run to each other. To a pod of another run they stay closed, though it trains beside them."""
    own = {LABEL_NAME: name}
    inside = client.V1NetworkPolicyPeer(pod_selector=client.V1LabelSelector(match_labels=own))
    # gloo and NCCL take whatever ports are free.
    ports = [client.V1NetworkPolicyPort(port=1_024, end_port=65_535, protocol="TCP")]
    ingress = [client.V1NetworkPolicyIngressRule(_from=[inside], ports=ports)]
    outward = [client.V1NetworkPolicyEgressRule(to=[inside], ports=ports)]
    return policy(name, NAMESPACE_TRAINING, ["Ingress", "Egress"], ingress, outward, own)


def ingress(
    namespace: str, name: str, pods: dict[str, str], *, port: int, peers: dict[str, str] | None
) -> Iterator[Body]:
    """To pods with labels `pods`, from those of the namespace with labels `peers`, and there the way out; None: from
    every pod of the cluster."""
    ports = [client.V1NetworkPolicyPort(port=port, protocol="TCP")]
    everywhere = client.V1NetworkPolicyPeer(namespace_selector=client.V1LabelSelector())
    named = client.V1NetworkPolicyPeer(pod_selector=client.V1LabelSelector(match_labels=peers))
    rule = client.V1NetworkPolicyIngressRule(_from=[named if peers else everywhere], ports=ports)
    yield policy(name, namespace, ["Ingress"], [rule], None, pods)
    if peers:
        target = client.V1NetworkPolicyPeer(pod_selector=client.V1LabelSelector(match_labels=pods))
        way = client.V1NetworkPolicyEgressRule(to=[target], ports=ports)
        yield policy(f"{name}-egress", namespace, ["Egress"], None, [way], peers)


def scraped(namespace: str, *ports: int, name: str = "scrape", pods: dict[str, str] | None = None) -> Body:
    """By managed Prometheus."""
    collectors = client.V1LabelSelector(match_labels={LABEL_NAMESPACE: "gmp-system"})
    scrape = client.V1NetworkPolicyIngressRule(
        _from=[client.V1NetworkPolicyPeer(namespace_selector=collectors)],
        ports=[client.V1NetworkPolicyPort(port=port, protocol="TCP") for port in ports],
    )
    return policy(name, namespace, ["Ingress"], [scrape], None, pods)


def policy(
    name: str, namespace: str, types: list[str], ingress: Any, egress: Any, pods: dict[str, str] | None = None
) -> Body:
    """`pods`: labels of those it is for; None means all."""
    spec = client.V1NetworkPolicySpec(
        pod_selector=client.V1LabelSelector(match_labels=pods), policy_types=types, ingress=ingress, egress=egress
    )
    policy = client.V1NetworkPolicy(
        api_version="networking.k8s.io/v1",
        kind="NetworkPolicy",
        metadata=meta(name, namespace),
        spec=spec,
    )
    body = plain(policy)
    body["spec"].setdefault("podSelector", {})
    return body


def egress_rule(ports: list[str], peers: list[client.V1NetworkPolicyPeer]) -> client.V1NetworkPolicyEgressRule:
    listed = [port.split("/") for port in ports]
    return client.V1NetworkPolicyEgressRule(
        to=peers, ports=[client.V1NetworkPolicyPort(port=int(number), protocol=kind) for number, kind in listed]
    )


def block(cidr: str) -> client.V1NetworkPolicyPeer:
    return client.V1NetworkPolicyPeer(ip_block=client.V1IPBlock(cidr=cidr))


def budget(name: str, namespace: str, app: str, reason: str, keep: int | None = None) -> Body:
    """One pod at a time may go. `keep`, a count, is for pods of Jobs: for them Kubernetes knows no total."""
    return plain(
        client.V1PodDisruptionBudget(
            api_version="policy/v1",
            kind="PodDisruptionBudget",
            metadata=meta(name, namespace, annotations={"holdfast.dev/reason": reason}),
            spec=client.V1PodDisruptionBudgetSpec(
                max_unavailable=1 if keep is None else None,
                min_available=keep,
                unhealthy_pod_eviction_policy="AlwaysAllow",
                selector=client.V1LabelSelector(match_labels={LABEL_NAME: app}),
            ),
        )
    )
