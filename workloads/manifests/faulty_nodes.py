"""Builds the mover's rights over broken GPUs.

It may read the GPU exporters and, where the environment allows it, replace Spot nodes.
"""

from collections.abc import Iterator

from kubernetes import client

from holdfast.manifests.policies import policy
from holdfast.manifests.rbac import bind_cluster_role, bind_role
from holdfast.manifests.render_context import Body, RenderContext, manifest, meta
from holdfast.vocabulary.kubernetes import LABEL_NAME, LABEL_NAMESPACE
from holdfast.vocabulary.pools import LABEL_GPU_FAULT, LABEL_SPOT
from holdfast.vocabulary.roles import NAMESPACE_MONITORING, NAMESPACE_SERVING
from holdfast.vocabulary.telemetry import GPU_EXPORTER, GPU_EXPORTER_NAMESPACE, GPU_EXPORTER_PORT

NAME = "holdfast-mover-nodes"
MOVER = "mover"
ADMISSION = "admissionregistration.k8s.io/v1"
_SPOT = f"oldObject.metadata.?labels[?'{LABEL_SPOT}'].orValue('') == 'true'"
# Holds for an update of a node that changes neither its taints nor any label but the mover's.
_CORDONS = (
    "object.spec.?taints == oldObject.spec.?taints && oldObject.metadata.labels.all(k, k in"
    f" object.metadata.labels) && object.metadata.labels.all(k, k == '{LABEL_GPU_FAULT}' || k in"
    " oldObject.metadata.labels && object.metadata.labels[k] == oldObject.metadata.labels[k])"
)


def objects(context: RenderContext) -> Iterator[Body]:
    security = context.platform.security
    if not security.gpu_exporter:
        return
    yield from _network_policies()
    create_events = client.V1PolicyRule(api_groups=[""], resources=["events"], verbs=["create"])
    yield from _bind_mover(create_events, "default")
    if not security.faulty_nodes_per_hour:
        return
    change_nodes = client.V1PolicyRule(
        api_groups=[""], resources=["nodes"], verbs=["patch", "delete"]
    )
    yield from bind_cluster_role(
        NAME,
        [change_nodes],
        accounts=[MOVER],
        namespace=NAMESPACE_MONITORING,
    )
    evict = client.V1PolicyRule(api_groups=[""], resources=["pods/eviction"], verbs=["create"])
    for namespace in (*context.platform.job_namespaces, NAMESPACE_SERVING):
        yield from _bind_mover(evict, namespace)
    yield from _spot_only()


def _bind_mover(rule: client.V1PolicyRule, namespace: str) -> Iterator[Body]:
    yield from bind_role(
        NAME,
        [rule],
        namespace,
        account=MOVER,
        account_namespace=NAMESPACE_MONITORING,
    )


def _network_policies() -> Iterator[Body]:
    """Opens the GPU exporters to the mover."""
    ports = [{"port": GPU_EXPORTER_PORT, "protocol": "TCP"}]
    mover = {LABEL_NAME: MOVER}
    exporters = {LABEL_NAME: GPU_EXPORTER}
    ingress_rule = {
        "from": [_pods(NAMESPACE_MONITORING, mover)],
        "ports": ports,
    }
    egress_rule = {
        "ports": ports,
        "to": [_pods(GPU_EXPORTER_NAMESPACE, exporters)],
    }
    yield policy(MOVER, GPU_EXPORTER_NAMESPACE, ["Ingress"], [ingress_rule], None, exporters)
    yield policy("gpu-metrics", NAMESPACE_MONITORING, ["Egress"], None, [egress_rule], mover)


def _pods(namespace: str, labels: dict[str, str]) -> Body:
    return {
        "namespaceSelector": {"matchLabels": {LABEL_NAMESPACE: namespace}},
        "podSelector": {"matchLabels": labels},
    }


def _spot_only() -> Iterator[Body]:
    """Keeps the mover from nodes that are not Spot, and from taints and labels of nodes.

    RBAC knows no labels, so an admission policy does it.
    """
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["UPDATE", "DELETE"],
        "resources": ["nodes"],
    }
    account = f"system:serviceaccount:{NAMESPACE_MONITORING}:{MOVER}"
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule]},
        "matchConditions": [
            {"name": "by-the-mover", "expression": f"request.userInfo.username == '{account}'"}
        ],
        "validations": [
            {"expression": _SPOT, "message": "the mover changes Spot nodes only"},
            {
                "expression": f"request.operation == 'DELETE' || ({_CORDONS})",
                "message": (
                    f"the mover cordons a node and writes its label {LABEL_GPU_FAULT}, and nothing"
                    " else"
                ),
            },
        ],
    }
    yield manifest(ADMISSION, "ValidatingAdmissionPolicy", meta(NAME), spec=spec)
    binding = {
        "policyName": NAME,
        "validationActions": ["Deny"],
    }
    yield manifest(ADMISSION, "ValidatingAdmissionPolicyBinding", meta(NAME), spec=binding)
