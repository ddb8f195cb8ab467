"""What pods may ask of the API server. Whoever calls it says so on its pods, and only those reach it."""

from collections.abc import Iterator

from kubernetes import client

from holdfast.manifests.render_context import Body, meta, plain

API = "rbac.authorization.k8s.io"
# On pods that hold a token; the network policy that opens the way to the API server selects it.
CALLS = {"holdfast.dev/calls": "kubernetes"}


def reading(name: str, rules: list[client.V1PolicyRule], *, accounts: list[str], namespace: str) -> Iterator[Body]:
    """A ClusterRole, since nodes stand in no namespace, for ServiceAccounts of one."""
    role = client.V1ClusterRole(api_version=f"{API}/v1", kind="ClusterRole", metadata=meta(name), rules=rules)
    binding = client.V1ClusterRoleBinding(
        api_version=f"{API}/v1",
        kind="ClusterRoleBinding",
        metadata=meta(name),
        role_ref=client.V1RoleRef(api_group=API, kind="ClusterRole", name=name),
        subjects=[client.RbacV1Subject(kind="ServiceAccount", name=each, namespace=namespace) for each in accounts],
    )
    yield plain(role)
    yield plain(binding)


def holding(lease: str, *, account: str, namespace: str) -> Iterator[Body]:
    """One Lease, by name; only its creation cannot be bound to a name."""
    groups, resources = ["coordination.k8s.io"], ["leases"]
    rules = [
        client.V1PolicyRule(api_groups=groups, resources=resources, verbs=["create"]),
        client.V1PolicyRule(api_groups=groups, resources=resources, resource_names=[lease], verbs=["get", "update"]),
    ]
    yield from within(lease, rules, namespace, account=account, account_namespace=namespace)


def within(
    name: str, rules: list[client.V1PolicyRule], namespace: str, *, account: str, account_namespace: str
) -> Iterator[Body]:
    """A Role of one namespace, for one ServiceAccount of the same or another."""
    role = client.V1Role(api_version=f"{API}/v1", kind="Role", metadata=meta(name, namespace), rules=rules)
    binding = client.V1RoleBinding(
        api_version=f"{API}/v1",
        kind="RoleBinding",
        metadata=meta(name, namespace),
        role_ref=client.V1RoleRef(api_group=API, kind="Role", name=name),
        subjects=[client.RbacV1Subject(kind="ServiceAccount", name=account, namespace=account_namespace)],
    )
    yield plain(role)
    yield plain(binding)
