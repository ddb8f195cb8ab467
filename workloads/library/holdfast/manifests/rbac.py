"""Builds the rights of pods at the API server.

A pod that calls it has a label, and only those pods reach it.
"""

from collections.abc import Iterator

from kubernetes import client

from holdfast.manifests.render_context import Body, manifest, meta

API = "rbac.authorization.k8s.io"
# Label of pods that have a token; the network policy that opens the API server selects it.
CALLS = {"holdfast.dev/calls": "kubernetes"}


def bind_cluster_role(
    name: str,
    rules: list[client.V1PolicyRule],
    *,
    accounts: list[str],
    namespace: str,
) -> Iterator[Body]:
    """Grants a ClusterRole, since nodes have no namespace, to ServiceAccounts of a namespace."""
    yield from _role("ClusterRole", name, None, rules, _accounts(accounts, namespace))


def bind_lease(lease: str, *, account: str, namespace: str) -> Iterator[Body]:
    """Grants one Lease, by name; only its creation cannot be bound to a name."""
    groups = ["coordination.k8s.io"]
    resources = ["leases"]
    rules = [
        client.V1PolicyRule(
            api_groups=groups,
            resources=resources,
            verbs=["create"],
        ),
        client.V1PolicyRule(
            api_groups=groups,
            resources=resources,
            resource_names=[lease],
            verbs=["get", "update"],
        ),
    ]
    yield from bind_role(
        lease,
        rules,
        namespace,
        account=account,
        account_namespace=namespace,
    )


def bind_role(
    name: str,
    rules: list[client.V1PolicyRule],
    namespace: str,
    *,
    account: str,
    account_namespace: str,
) -> Iterator[Body]:
    """Grants a Role of one namespace to one ServiceAccount of the same or another."""
    yield from _role("Role", name, namespace, rules, _accounts([account], account_namespace))


def bind_groups(
    kind: str,
    name: str,
    namespace: str | None,
    rules: list[client.V1PolicyRule],
    groups: list[str],
) -> Iterator[Body]:
    """Grants a Role of one namespace or a ClusterRole to people of Google groups."""
    subjects: list[dict[str, str]] = []
    for group in groups:
        subject = {
            "apiGroup": API,
            "kind": "Group",
            "name": group,
        }
        subjects.append(subject)
    yield from _role(kind, name, namespace, rules, subjects)


def _accounts(names: list[str], namespace: str) -> list[dict[str, str]]:
    subjects: list[dict[str, str]] = []
    for name in names:
        subject = {
            "kind": "ServiceAccount",
            "name": name,
            "namespace": namespace,
        }
        subjects.append(subject)
    return subjects


def _role(
    kind: str,
    name: str,
    namespace: str | None,
    rules: list[client.V1PolicyRule],
    subjects: list[dict[str, str]],
) -> Iterator[Body]:
    yield manifest(f"{API}/v1", kind, meta(name, namespace), rules=rules)
    role = {
        "apiGroup": API,
        "kind": kind,
        "name": name,
    }
    yield manifest(
        f"{API}/v1",
        f"{kind}Binding",
        meta(name, namespace),
        roleRef=role,
        subjects=subjects,
    )
