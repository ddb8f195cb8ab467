"""Builds what ends the servers of a service without requests, and starts them for the next one.

Routers hold requests and know when there are none. A sidecar of each of them scales the servers
between none and one; between one and the maximum their autoscaler does, which rests while its
target has no replicas.
"""

# Why it is so: infra/decisions/0157.

from collections.abc import Iterator, Sequence

from kubernetes import client

from holdfast.manifests.rbac import bind_role
from holdfast.manifests.render_context import Body, RenderContext, manifest, meta
from holdfast.manifests.serving_proxy import FirstHop, sidecar
from holdfast.manifests.sidecar_tokens import token_mount
from holdfast.vocabulary.kubernetes import LEASE_API


def rights(name: str, namespace: str, servers: Sequence[str]) -> Iterator[Body]:
    """Builds the Lease with the time of the last request, and the account of the routers.

    It may scale these Deployments, and change nothing else of them.
    """
    yield manifest(LEASE_API, "Lease", meta(name, namespace))
    yield manifest(
        "v1", "ServiceAccount", meta(name, namespace), automountServiceAccountToken=False
    )
    verbs = ["get", "patch"]
    scale = client.V1PolicyRule(
        api_groups=["apps"],
        resources=["deployments/scale"],
        resource_names=list(servers),
        verbs=verbs,
    )
    lease = client.V1PolicyRule(
        api_groups=["coordination.k8s.io"],
        resources=["leases"],
        resource_names=[name],
        verbs=verbs,
    )
    yield from bind_role(name, [scale, lease], namespace, account=name, account_namespace=namespace)


def idle_scaler(
    context: RenderContext, hop: FirstHop, servers: Sequence[str]
) -> client.V1Container:
    """Builds the sidecar of a router that starts and ends the servers."""
    command = ["python", "-m", "holdfast.inference.router.idle_scaler"]
    command += ["--namespace", hop.namespace, "--lease", hop.routers]
    command += ["--idle-minutes", str(hop.idle_minutes)]
    for server in servers:
        command += ["--deployment", server]
    return sidecar(context, "idle-scaler", command, [token_mount()])
