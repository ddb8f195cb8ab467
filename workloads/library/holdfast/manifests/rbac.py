"""What pods may ask of the API server. A pod that calls it has a label, and only those reach it."""

from collections.abc import Iterator

from kubernetes import client

from holdfast.manifests.render_context import Body, manifest, meta

API = "rbac.authorization.k8s.io"
# On pods that hold a token; the network policy that opens the way to the API server selects it.
CALLS = {"holdfast.dev/calls": "kubernetes"}


def reading(
    name: str,
    rules: list[client.V1PolicyRule],
    *,
    accounts: list[str],
    namespace: str,
) -> Iterator[Body]:
    """A ClusterRole, since nodes have no namespace, for ServiceAccounts of one."""
    yield from _role("ClusterRole", name, None, rules, _accounts(accounts, namespace))


def holding(lease: str, *, account: str, namespace: str) -> Iterator[Body]:
    """One Lease, by name; only its creation cannot be bound to a name."""
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
    yield from within(
        lease,
        rules,
        namespace,
        account=account,
        account_namespace=namespace,
    )


def within(
    name: str,
    rules: list[client.V1PolicyRule],
    namespace: str,
    *,
    account: str,
    account_namespace: str,
) -> Iterator[Body]:
    """A Role of one namespace, for one ServiceAccount of the same or another."""
    yield from _role("Role", name, namespace, rules, _accounts([account], account_namespace))


def for_groups(
    kind: str,
    name: str,
    namespace: str | None,
    rules: list[client.V1PolicyRule],
    groups: list[str],
) -> Iterator[Body]:
    """A Role of one namespace or a ClusterRole, for people of Google groups."""
    yield from _role(
        kind,
        name,
        namespace,
        rules,
        [
            {
                "apiGroup": API,
                "kind": "Group",
                "name": each,
            }
            for each in groups
        ],
    )


def _accounts(names: list[str], namespace: str) -> list[dict[str, str]]:
    return [
        {
            "kind": "ServiceAccount",
            "name": name,
            "namespace": namespace,
        }
        for name in names
    ]


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
