"""Sizes for machines of the lab, given to pods when they are created.

So objects stay as a command sends them: a policy of the API server changes the pods alone. A pod
with a GPU needs a node that has one, and its processes do not look for the device.
"""

import json

from holdfast.clients.api import Api
from holdfast.vocabulary.environment import ENV_GPUS
from holdfast.vocabulary.pools import GPU_RESOURCE
from tests.cluster.sim.waiting import until
from workloads.library.tests.node.lab.as_rendered import SIZE, SMALL

NAME = "lab-sizes"
GROUP = "/apis/admissionregistration.k8s.io/v1"
_KINDS = ("containers", "initContainers")
_MOST = 3
"""Containers of one kind in a pod."""


def apply(api: Api, namespace: str) -> None:
    """Shrinks pods that are created from now on."""
    rules = [
        {
            "apiGroups": [""],
            "apiVersions": ["v1"],
            "operations": ["CREATE"],
            "resources": ["pods"],
        }
    ]
    selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    spec = {
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "matchConstraints": {"resourceRules": rules, "namespaceSelector": selector},
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": _expression()}}],
    }
    bodies = {
        "MutatingAdmissionPolicy": spec,
        "MutatingAdmissionPolicyBinding": {"policyName": NAME},
    }
    for kind, kind_spec in bodies.items():
        body = {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": kind,
            "metadata": {"name": NAME},
            "spec": kind_spec,
        }
        api.apply(api.path_of(body), body)
    until("pods are made smaller", lambda: _is_active(api, namespace))


def _expression() -> str:
    patches: list[str] = []
    for kind in _KINDS:
        for number in range(_MOST):
            patches.append(_patch(kind, number))
    env = "object.spec.containers[0].env"
    kept_entries = f"{env}.filter(entry, entry.name != '{ENV_GPUS}')"
    patch = f"JSONPatch{{op: 'replace', path: '/spec/containers/0/env', value: {kept_entries}}}"
    patches.append(f"(has({env}) ? [{patch}] : [])")
    return " + ".join(patches)


def _patch(kind: str, number: int) -> str:
    """Returns a list of one change, or of none for a container that is not there."""
    container = f"object.spec.{kind}[{number}]"
    limits = f"{container}.resources.limits"
    has_gpu = f"has({container}.resources) && has({limits}) && '{GPU_RESOURCE}' in {limits}"
    gpu = {GPU_RESOURCE: "1"}
    with_gpu = json.dumps({"limits": SIZE | gpu, "requests": SMALL | gpu})
    without = json.dumps({"limits": SIZE, "requests": SMALL})
    patch = (
        f"JSONPatch{{op: 'add', path: '/spec/{kind}/{number}/resources',"
        f" value: {has_gpu} ? {with_gpu} : {without}}}"
    )
    return f"(has(object.spec.{kind}) && size(object.spec.{kind}) > {number} ? [{patch}] : [])"


def _is_active(api: Api, namespace: str) -> bool:
    """Asks with a pod that is not stored; a new policy is used after a moment."""
    container = {
        "name": "main",
        "image": "none",
        "resources": {"limits": {"cpu": "64"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    security = {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": NAME},
        "spec": {
            "automountServiceAccountToken": False,
            "containers": [container],
            "securityContext": security,
        },
    }
    answer = api.create(f"/api/v1/namespaces/{namespace}/pods", pod, dryRun="All")
    return answer["spec"]["containers"][0]["resources"]["limits"]["cpu"] == SIZE["cpu"]
