"""Namespaces and what bounds them: identities, quotas, network policies, priorities, disruption
budgets.
"""

from collections.abc import Iterator, Sequence

from holdfast.manifests import database
from holdfast.manifests.policies import block, egress_rule, policy, scraped
from holdfast.manifests.rbac import CALLS
from holdfast.manifests.render_context import Body, RenderContext, manifest, meta
from holdfast.vocabulary import roles
from holdfast.vocabulary.kubernetes import (
    ANNOTATION_GOOGLE_ACCOUNT,
    LABEL_NAME,
    LABEL_NAMESPACE,
    PRIORITIES,
)
from holdfast.vocabulary.roles import GOOGLE_APIS_CIDR

# Workload Identity; the second is where Dataplane V2 sends what pods address to the first.
METADATA = ("169.254.169.254/32", "169.254.169.252/32")
METADATA_PORTS = (80, 988)
# Cloud DNS for GKE answers on the metadata server's address, the cache of the node on the other.
RESOLVERS = ("169.254.169.254/32", "169.254.20.10/32")
EXPORTER_PORT = 9_400


def pod_security(level: str) -> dict[str, str]:
    """Labels of a namespace: the Pod Security level that it enforces."""
    return {
        f"pod-security.kubernetes.io/{mode}{suffix}": value
        for mode in ("enforce", "audit", "warn")
        for suffix, value in (("", level), ("-version", "latest"))
    }


def namespaces(context: RenderContext) -> Iterator[Body]:
    for name in dict.fromkeys(roles.KSA_NAMESPACES.values()):
        of_it = [role for role, place in roles.KSA_NAMESPACES.items() if place == name]
        yield from namespace(context, name, of_it, pod_security("restricted"))


def namespace(
    context: RenderContext,
    name: str,
    of_it: Sequence[str],
    labels: dict[str, str],
) -> Iterator[Body]:
    """With the accounts of the roles `of_it`, its bounds and its network policies."""
    yield manifest("v1", "Namespace", meta(name, labels=labels))
    for role in of_it:
        acts_as = context.platform.accounts[context.platform.role_in(name, role)]
        yield _account(role, name, {ANNOTATION_GOOGLE_ACCOUNT: acts_as})
    # Without the annotation a pod acts as itself, and the bucket's policy knows it by its account.
    for run in context.platform.runs:
        if "trainer" in of_it and context.platform.namespace_of(run.name) == name:
            yield _account(run.account, name, None)
    yield from _bounds(context, name)
    yield from _policies(context, of_it, name)


def _account(name: str, namespace: str, annotations: dict[str, str] | None) -> Body:
    about = meta(name, namespace, annotations=annotations)
    return manifest("v1", "ServiceAccount", about, automountServiceAccountToken=False)


def _bounds(context: RenderContext, namespace: str) -> Iterator[Body]:
    gpus = sum(pool.max_nodes * pool.gpus_per_node for pool in context.platform.pools)
    gpus += sum(context.platform.auto_provisioning.values())
    hard = {
        "pods": "2000",
        "requests.nvidia.com/gpu": str(0 if namespace == roles.NAMESPACE_MONITORING else gpus),
    }
    yield manifest("v1", "ResourceQuota", meta("ceiling", namespace), spec={"hard": hard})
    default = {"memory": "512Mi", "ephemeral-storage": "1Gi"}
    item = {
        "default": default,
        "defaultRequest": {"cpu": "100m", "memory": "256Mi"},
        "type": "Container",
    }
    yield manifest("v1", "LimitRange", meta("defaults", namespace), spec={"limits": [item]})


def _policies(context: RenderContext, of_it: Sequence[str], namespace: str) -> Iterator[Body]:
    yield policy("default-deny", namespace, ["Ingress", "Egress"], None, None)
    kube_system = {"namespaceSelector": {"matchLabels": {LABEL_NAMESPACE: "kube-system"}}}
    dns = egress_rule(["53/UDP", "53/TCP"], [kube_system, *map(block, RESOLVERS)])
    apis = egress_rule(["443/TCP"], [block(GOOGLE_APIS_CIDR)])
    metadata = egress_rule([f"{port}/TCP" for port in METADATA_PORTS], [*map(block, METADATA)])
    egress = [dns, apis, metadata]
    results = egress_rule(
        [f"{database.port(context)}/TCP"], [block(context.platform.network.database_cidr)]
    )
    if "batch" in of_it:
        egress.append(results)
    yield policy("egress-named", namespace, ["Egress"], None, egress)
    if {"trainer", "exporter", "server"} & {*of_it}:
        yield _api_server(context, namespace)
    if "exporter" in of_it:
        # The mover in the same pod is never called, and has no business with the database.
        own = {LABEL_NAME: "exporter"}
        yield scraped(namespace, EXPORTER_PORT, pods=own)
        if context.platform.database:
            yield policy("exporter-database", namespace, ["Egress"], None, [results], own)


def _api_server(context: RenderContext, namespace: str) -> Body:
    """Its Service, and its private endpoint, which takes an address of the nodes."""
    ranges = (context.platform.network.nodes_cidr, context.platform.network.services_cidr)
    rule = egress_rule(["443/TCP"], [block(cidr) for cidr in ranges])
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
