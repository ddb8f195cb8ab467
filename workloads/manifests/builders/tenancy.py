"""Namespaces and what bounds them: identities, quotas, network policies, priorities, disruption budgets."""

from collections.abc import Iterator
from typing import Any

from kubernetes import client

from infra.contract import names
from infra.contract.kubernetes import ANNOTATION_GOOGLE_ACCOUNT, LABEL_NAME, LABEL_NAMESPACE, PRIORITIES
from infra.contract.names import GOOGLE_APIS_CIDR
from workloads.manifests.builders import database
from workloads.manifests.builders.rbac import CALLS
from workloads.manifests.builders.render_context import Body, RenderContext, meta, plain

PSS = {
    f"pod-security.kubernetes.io/{mode}{suffix}": value
    for mode in ("enforce", "audit", "warn")
    for suffix, value in (("", "restricted"), ("-version", "latest"))
}
# Workload Identity; the second is where Dataplane V2 sends what pods address to the first.
METADATA = ("169.254.169.254/32", "169.254.169.252/32")
METADATA_PORTS = (80, 988)
# Cloud DNS for GKE answers on the metadata server's address, the cache of the node on the other.
RESOLVERS = ("169.254.169.254/32", "169.254.20.10/32")
RENDEZVOUS_PORT = 29_500
EXPORTER_PORT = 9_400


def namespaces(context: RenderContext) -> Iterator[Body]:
    for name in dict.fromkeys(names.KSA_NAMESPACES.values()):
        roles = [role for role, place in names.KSA_NAMESPACES.items() if place == name]
        yield plain(client.V1Namespace(api_version="v1", kind="Namespace", metadata=meta(name, labels=PSS)))
        for role in roles:
            yield _account(role, name, {ANNOTATION_GOOGLE_ACCOUNT: context.env.service_account_email(role)})
        # Without the annotation a pod acts as itself, and the bucket's policy knows it by its account.
        for run in context.env.storage.runs if name == names.NAMESPACE_TRAINING else ():
            yield _account(run.account, name, None)
        yield from _bounds(context, name)
        yield from _policies(context, roles[0], name)


def _account(name: str, namespace: str, annotations: dict[str, str] | None) -> Body:
    account = client.V1ServiceAccount(
        api_version="v1",
        kind="ServiceAccount",
        metadata=meta(name, namespace, annotations=annotations),
        automount_service_account_token=False,
    )
    return plain(account)


def _bounds(context: RenderContext, namespace: str) -> Iterator[Body]:
    gpus = sum(pool.max_nodes * pool.gpus_per_node for pool in context.env.pools())
    gpus += sum(cap.max_gpus for cap in context.env.auto_provisioning.accelerators)
    hard = {"pods": "2000", "requests.nvidia.com/gpu": str(0 if namespace == names.NAMESPACE_MONITORING else gpus)}
    quota = client.V1ResourceQuota(
        api_version="v1",
        kind="ResourceQuota",
        metadata=meta("ceiling", namespace),
        spec=client.V1ResourceQuotaSpec(hard=hard),
    )
    default = {"memory": "512Mi", "ephemeral-storage": "1Gi"}
    item = client.V1LimitRangeItem(
        type="Container", default=default, default_request={"cpu": "100m", "memory": "256Mi"}
    )
    limits = client.V1LimitRange(
        api_version="v1",
        kind="LimitRange",
        metadata=meta("defaults", namespace),
        spec=client.V1LimitRangeSpec(limits=[item]),
    )
    yield plain(quota)
    yield plain(limits)


def _policies(context: RenderContext, role: str, namespace: str) -> Iterator[Body]:
    yield _policy("default-deny", namespace, ["Ingress", "Egress"], None, None)
    dns = _egress(["53/UDP", "53/TCP"], [_kube_system(), *map(_block, RESOLVERS)])
    apis = _egress(["443/TCP"], [_block(GOOGLE_APIS_CIDR)])
    metadata = _egress([f"{port}/TCP" for port in METADATA_PORTS], [*map(_block, METADATA)])
    egress = [dns, apis, metadata]
    if role == "batch" or (role in names.DATABASE_ROLES and context.env.database):
        egress.append(_egress([f"{database.port(context)}/TCP"], [_block(context.env.network.database_cidr)]))
    yield _policy("egress-named", namespace, ["Egress"], None, egress)
    if role in ("trainer", "exporter", "server"):
        yield _api_server(context, namespace)
    if role == "exporter":
        yield scraped(namespace, EXPORTER_PORT)


def peers(name: str) -> Body:
    """Opens the pods of one run to each other. To a pod of another run they stay closed, though it trains beside them."""
    own = {LABEL_NAME: name}
    inside = client.V1NetworkPolicyPeer(pod_selector=client.V1LabelSelector(match_labels=own))
    # gloo and NCCL take whatever ports are free.
    ports = [client.V1NetworkPolicyPort(port=1_024, end_port=65_535, protocol="TCP")]
    ingress = [client.V1NetworkPolicyIngressRule(_from=[inside], ports=ports)]
    outward = [client.V1NetworkPolicyEgressRule(to=[inside], ports=ports)]
    return _policy(name, names.NAMESPACE_TRAINING, ["Ingress", "Egress"], ingress, outward, own)


def ingress(
    namespace: str, name: str, pods: dict[str, str], *, port: int, peers: dict[str, str] | None
) -> Iterator[Body]:
    """To pods with labels `pods`, from those of the namespace with labels `peers`, and there the way out; None: from
    every pod of the cluster."""
    ports = [client.V1NetworkPolicyPort(port=port, protocol="TCP")]
    everywhere = client.V1NetworkPolicyPeer(namespace_selector=client.V1LabelSelector())
    named = client.V1NetworkPolicyPeer(pod_selector=client.V1LabelSelector(match_labels=peers))
    rule = client.V1NetworkPolicyIngressRule(_from=[named if peers else everywhere], ports=ports)
    yield _policy(name, namespace, ["Ingress"], [rule], None, pods)
    if peers:
        target = client.V1NetworkPolicyPeer(pod_selector=client.V1LabelSelector(match_labels=pods))
        way = client.V1NetworkPolicyEgressRule(to=[target], ports=ports)
        yield _policy(f"{name}-egress", namespace, ["Egress"], None, [way], peers)


def scraped(namespace: str, *ports: int, name: str = "scrape") -> Body:
    """By managed Prometheus."""
    collectors = client.V1LabelSelector(match_labels={LABEL_NAMESPACE: "gmp-system"})
    scrape = client.V1NetworkPolicyIngressRule(
        _from=[client.V1NetworkPolicyPeer(namespace_selector=collectors)],
        ports=[client.V1NetworkPolicyPort(port=port, protocol="TCP") for port in ports],
    )
    return _policy(name, namespace, ["Ingress"], [scrape], None)


def _api_server(context: RenderContext, namespace: str) -> Body:
    """Its Service, and its private endpoint, which takes an address of the nodes."""
    ranges = (context.env.network.nodes_cidr, context.env.network.services_cidr)
    rule = _egress(["443/TCP"], [_block(cidr) for cidr in ranges])
    return _policy("api-server", namespace, ["Egress"], None, [rule], CALLS)


def _policy(
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


def _egress(ports: list[str], peers: list[client.V1NetworkPolicyPeer]) -> client.V1NetworkPolicyEgressRule:
    listed = [port.split("/") for port in ports]
    return client.V1NetworkPolicyEgressRule(
        to=peers, ports=[client.V1NetworkPolicyPort(port=int(number), protocol=kind) for number, kind in listed]
    )


def _block(cidr: str) -> client.V1NetworkPolicyPeer:
    return client.V1NetworkPolicyPeer(ip_block=client.V1IPBlock(cidr=cidr))


def _kube_system() -> client.V1NetworkPolicyPeer:
    labels = {LABEL_NAMESPACE: "kube-system"}
    return client.V1NetworkPolicyPeer(namespace_selector=client.V1LabelSelector(match_labels=labels))


def priorities() -> Iterator[Body]:
    for name, priority in PRIORITIES.items():
        yield plain(
            client.V1PriorityClass(
                api_version="scheduling.k8s.io/v1",
                kind="PriorityClass",
                metadata=meta(name),
                value=priority.value,
                description=priority.what,
                global_default=False,
                preemption_policy="PreemptLowerPriority" if priority.preempts else "Never",
            )
        )


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
