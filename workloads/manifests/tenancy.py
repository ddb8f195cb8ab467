"""Builds namespaces with their identities, quotas and network policies, and the priorities."""

from collections.abc import Iterator, Sequence

from holdfast.manifests import database
from holdfast.manifests.policies import block, egress_rule, names_policy, policy, scrape
from holdfast.manifests.rbac import CALLS
from holdfast.manifests.render_context import Body, RenderContext, manifest, meta
from holdfast.platform.egress import is_range
from holdfast.vocabulary import roles
from holdfast.vocabulary.kubernetes import (
    ANNOTATION_GOOGLE_ACCOUNT,
    LABEL_NAME,
    LABEL_NAMESPACE,
    PRIORITIES,
)
from holdfast.vocabulary.roles import GOOGLE_APIS_CIDR
from holdfast.vocabulary.serving import PORT

# Metadata server for Workload Identity. Dataplane V2 redirects packets for the first address to the
# second.
METADATA = ("169.254.169.254/32", "169.254.169.252/32")
METADATA_PORTS = (80, 988)
# Cloud DNS for GKE answers on the metadata server's address, the cache of the node on the other.
RESOLVERS = ("169.254.169.254/32", "169.254.20.10/32")
EXPORTER_PORT = 9_400
OUTSIDE_PORT = 443


def pod_security(level: str) -> dict[str, str]:
    """Returns the labels of a namespace that enforces a level of Pod Security."""
    labels: dict[str, str] = {}
    for mode in ("enforce", "audit", "warn"):
        labels[f"pod-security.kubernetes.io/{mode}"] = level
        labels[f"pod-security.kubernetes.io/{mode}-version"] = "latest"
    return labels


def namespaces(context: RenderContext) -> Iterator[Body]:
    roles_by_namespace: dict[str, list[str]] = {}
    for role, name in roles.KSA_NAMESPACES.items():
        roles_by_namespace.setdefault(name, []).append(role)
    for name, namespace_roles in roles_by_namespace.items():
        yield from namespace(context, name, namespace_roles, pod_security("restricted"))


def namespace(
    context: RenderContext,
    name: str,
    role_names: Sequence[str],
    labels: dict[str, str],
) -> Iterator[Body]:
    """Builds a namespace with the accounts of its roles, its quotas and its network policies."""
    yield manifest("v1", "Namespace", meta(name, labels=labels))
    for role in role_names:
        google_account = context.platform.accounts[context.platform.role_in(name, role)]
        yield _account(role, name, {ANNOTATION_GOOGLE_ACCOUNT: google_account})
    # Without the annotation a pod acts as itself, and the bucket's policy names its account.
    for run in context.platform.runs:
        if "trainer" in role_names and context.platform.namespace_of(run.name) == name:
            yield _account(run.account, name, None)
    yield from _quotas(context, name)
    yield from _policies(context, role_names, name)


def _account(name: str, namespace: str, annotations: dict[str, str] | None) -> Body:
    metadata = meta(name, namespace, annotations=annotations)
    return manifest("v1", "ServiceAccount", metadata, automountServiceAccountToken=False)


def _quotas(context: RenderContext, namespace: str) -> Iterator[Body]:
    gpus = 0
    if namespace != roles.NAMESPACE_MONITORING:
        gpus = sum(context.platform.auto_provisioning.values())
        for pool in context.platform.pools:
            gpus += pool.max_nodes * pool.gpus_per_node
    hard = {
        "pods": "2000",
        "requests.nvidia.com/gpu": str(gpus),
    }
    yield manifest("v1", "ResourceQuota", meta("ceiling", namespace), spec={"hard": hard})
    default = {"memory": "512Mi", "ephemeral-storage": "1Gi"}
    item = {
        "default": default,
        "defaultRequest": {"cpu": "100m", "memory": "256Mi"},
        "type": "Container",
    }
    yield manifest("v1", "LimitRange", meta("defaults", namespace), spec={"limits": [item]})


def _policies(context: RenderContext, role_names: Sequence[str], namespace: str) -> Iterator[Body]:
    yield policy("default-deny", namespace, ["Ingress", "Egress"], None, None)
    kube_system = {"namespaceSelector": {"matchLabels": {LABEL_NAMESPACE: "kube-system"}}}
    dns = egress_rule(["53/UDP", "53/TCP"], [kube_system, *map(block, RESOLVERS)])
    apis = egress_rule(["443/TCP"], [block(GOOGLE_APIS_CIDR)])
    metadata_ports = [f"{port}/TCP" for port in METADATA_PORTS]
    metadata = egress_rule(metadata_ports, [*map(block, METADATA)])
    egress = [dns, apis, metadata]
    database_port = f"{database.port(context)}/TCP"
    results = egress_rule([database_port], [block(context.platform.network.database_cidr)])
    if "batch" in role_names:
        egress.append(results)
    yield policy("egress-named", namespace, ["Egress"], None, egress)
    yield from _outside(context, namespace)
    if not {"trainer", "exporter", "server"}.isdisjoint(role_names):
        yield _api_server(context, namespace)
    if not {"trainer", "batch", "server"}.isdisjoint(role_names):
        yield _call_services(context, namespace)
    if "exporter" in role_names:
        # The mover is never called, and needs no database.
        exporter = {LABEL_NAME: "exporter"}
        yield scrape(namespace, EXPORTER_PORT, pods=exporter)
        if context.platform.database:
            yield policy("exporter-database", namespace, ["Egress"], None, [results], exporter)


def _call_services(context: RenderContext, namespace: str) -> Body:
    """Opens the services of all namespaces, each of which names its callers."""
    homes = {
        "key": LABEL_NAMESPACE,
        "operator": "In",
        "values": [*context.platform.service_namespaces],
    }
    peer = {"namespaceSelector": {"matchExpressions": [homes]}}
    rule = egress_rule([f"{PORT}/TCP"], [peer])
    return policy("call-services", namespace, ["Egress"], None, [rule])


def _outside(context: RenderContext, namespace: str) -> Iterator[Body]:
    """Opens what the environment and the team name outside Google: hosts and ranges, by TLS."""
    # Why: infra/decisions/0135.
    names: list[str] = []
    ranges: list[Body] = []
    for target in context.platform.list_egress(namespace):
        if is_range(target):
            ranges.append(block(target))
        else:
            names.append(target)
    if names:
        yield names_policy("egress-outside", namespace, names, OUTSIDE_PORT)
    if ranges:
        rule = egress_rule([f"{OUTSIDE_PORT}/TCP"], ranges)
        yield policy("egress-ranges", namespace, ["Egress"], None, [rule])


def _api_server(context: RenderContext, namespace: str) -> Body:
    """Opens the API server's Service, and its private endpoint, which has an address of a node."""
    network = context.platform.network
    peers = [block(network.nodes_cidr), block(network.services_cidr)]
    rule = egress_rule(["443/TCP"], peers)
    return policy("api-server", namespace, ["Egress"], None, [rule], CALLS)


def priorities() -> Iterator[Body]:
    for name, priority in PRIORITIES.items():
        yield manifest(
            "scheduling.k8s.io/v1",
            "PriorityClass",
            meta(name),
            value=priority.value,
            description=priority.what,
            globalDefault=False,
            preemptionPolicy="PreemptLowerPriority" if priority.preempts else "Never",
        )
