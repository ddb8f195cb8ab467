"""HF800 to HF802: rights that a pod needs and does not have.

Why it is so: infra/decisions/0200.
"""

import re
from collections.abc import Iterator
from typing import Any

from holdfast.lint.finding import Hit, Severity
from holdfast.lint.known_values import load_table
from holdfast.lint.objects import (
    DEFAULT_NAMESPACE,
    Container,
    Object,
    Pod,
    as_list,
    as_maps,
    as_text,
    as_texts,
    dig,
)
from holdfast.lint.registry import Context, rule

DOC_RBAC = "https://kubernetes.io/docs/reference/access-authn-authz/rbac/"
DOC_IDENTITY = "https://cloud.google.com/kubernetes-engine/docs/how-to/workload-identity"
_BINDINGS = ("RoleBinding", "ClusterRoleBinding")
_KUBECTL = re.compile(
    r"\bkubectl((?:\s+(?:-n|--namespace|--context)[=\s]\S{1,100})*)\s+"
    r"(get|describe|delete|patch|scale|annotate|label|create|wait)\s+([a-z][a-z.,-]{1,100})"
)
_NAMESPACE = re.compile(r"\bkubectl [^\n;&|]{0,200}?(?:-n|--namespace)[= ]([a-z][a-z0-9-]{0,62})\b")
_VERBS = {
    "get": ("get", "list"),
    "describe": ("get", "list"),
    "delete": ("delete", "deletecollection"),
    "patch": ("patch",),
    "scale": ("patch", "update"),
    "annotate": ("patch",),
    "label": ("patch",),
    "create": ("create",),
    "wait": ("get", "list", "watch"),
}
_MEMBER = re.compile(r"serviceAccount:[\w.:-]{1,100}\.svc\.id\.goog\[[^\]]{1,200}\]")
_USER_ROLE = "roles/iam.workloadIdentityUser"
_MOST_CALLS = 50


def _write_cleaner(verbs: str) -> str:
    return f"""\
apiVersion: v1
kind: Pod
metadata:
  name: cleaner
  namespace: batch
spec:
  serviceAccountName: cleaner
  containers:
  - name: main
    image: registry.example/kubectl:1.4
    command:
    - kubectl
    - delete
    - jobs
    - --all
---
apiVersion: v1
kind: ServiceAccount
metadata:
  name: cleaner
  namespace: batch
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: cleaner
  namespace: batch
rules:
- apiGroups:
  - batch
  resources:
  - jobs
  verbs: {verbs}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: cleaner
  namespace: batch
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: cleaner
subjects:
- kind: ServiceAccount
  name: cleaner
  namespace: batch
"""


@rule(
    "HF800",
    "kubectl-without-right",
    Severity.ERROR,
    on=Pod,
    what="A command runs kubectl with a verb or a resource that the pod's roles do not give.",
    why="The API server answers 403 Forbidden, and the work is not done.",
    source=DOC_RBAC,
    fix="add the verb and the resource to the role",
    bad=_write_cleaner("[get, list]"),
    good=_write_cleaner("[get, list, delete]"),
)
def check_kubectl(pod: Pod, context: Context) -> Iterator[Hit]:
    is_calling = any("kubectl" in container.script for container in pod.containers)
    rules = _list_rules(pod, context) if pod.account and is_calling else None
    namespaces = _list_namespaces(pod, context) if rules else set[str]()
    for container in pod.containers if rules else ():
        text = " ".join(container.words)[:20_000]
        for namespace in _NAMESPACE.findall(text) if namespaces else ():
            if namespace not in namespaces:
                message = f"{pod.account} has no rights in {namespace}"
                yield Hit(container.command_path, message)
        for verb, resource in _list_calls(container):
            if not any(_gives(entry, verb, resource) for entry in rules or ()):
                message = f"{pod.account} may not {verb} {resource}"
                yield Hit(container.command_path, message)


def _list_rules(pod: Pod, context: Context) -> list[dict[str, Any]] | None:
    """Lists the rules of a pod's roles; None where the files lack one of them."""
    namespace = pod.owner.namespace or DEFAULT_NAMESPACE
    rules: list[dict[str, Any]] = []
    for kind in _BINDINGS:
        for binding in context.index.by_kind[kind]:
            if not _is_bound(binding, pod.account, namespace):
                continue
            role_kind = as_text(dig(binding.body, "roleRef", "kind"))
            role_name = as_text(dig(binding.body, "roleRef", "name"))
            roles = context.index.find_all(role_kind, role_name)
            if not roles or any(role.body.get("aggregationRule") for role in roles):
                return None
            for role in roles:
                rules += as_maps(role.body.get("rules"))
    return rules


def _list_namespaces(pod: Pod, context: Context) -> set[str]:
    """Lists the namespaces in which an account has rights; empty if it has them in every one."""
    namespace = pod.owner.namespace or DEFAULT_NAMESPACE
    for binding in context.index.by_kind["ClusterRoleBinding"]:
        if _is_bound(binding, pod.account, namespace):
            return set()
    namespaces: set[str] = set()
    for binding in context.index.by_kind["RoleBinding"]:
        if _is_bound(binding, pod.account, namespace):
            namespaces.add(binding.namespace or namespace)
    return namespaces


def _is_bound(binding: Object, account: str, namespace: str) -> bool:
    for subject in as_maps(binding.body.get("subjects")):
        home = subject.get("namespace") or binding.namespace or DEFAULT_NAMESPACE
        is_account = subject.get("kind") == "ServiceAccount"
        if is_account and subject.get("name") == account and home == namespace:
            return True
        # A group may hold the account.
        if subject.get("kind") == "Group":
            return True
    return False


def _list_calls(container: Container) -> list[tuple[str, str]]:
    """Lists verb and resource of the calls of kubectl in a container's command."""
    calls: list[tuple[str, str]] = []
    names = load_table("resource_names")
    for _, verb, resources in _KUBECTL.findall(" ".join(container.words)[:20_000])[:_MOST_CALLS]:
        for resource in resources.split(","):
            name = names.get(resource.partition(".")[0])
            if name:
                calls.append((verb, name))
    return calls


def _gives(entry: dict[str, Any], verb: str, resource: str) -> bool:
    """Returns whether a rule of a role allows one of the verbs that a call needs."""
    verbs = as_texts(entry.get("verbs"))
    resources = as_texts(entry.get("resources"))
    has_resource = bool({resource, f"{resource}/scale", "*"} & set(resources))
    return has_resource and bool({*_VERBS[verb], "*"} & set(verbs))


def _write_role(kind: str) -> str:
    return f"""\
apiVersion: rbac.authorization.k8s.io/v1
kind: {kind}
metadata:
  name: reads-nodes
rules:
- apiGroups:
  - ""
  resources:
  - nodes
  verbs:
  - get
"""


@rule(
    "HF801",
    "right-out-of-scope",
    Severity.ERROR,
    on=Object,
    kinds=("Role", *_BINDINGS),
    what="A Role has resources of the whole cluster, or a binding an account of no namespace.",
    why="A Role gives rights in its namespace only; the API server refuses the binding.",
    source=DOC_RBAC,
    fix="use a ClusterRole and a ClusterRoleBinding; state the account's namespace",
    bad=_write_role("Role"),
    good=_write_role("ClusterRole"),
)
def check_scopes(obj: Object, context: Context) -> Iterator[Hit]:
    cluster_resources = load_table("cluster_resources")["names"]
    for index, entry in enumerate(as_maps(obj.body.get("rules")) if obj.kind == "Role" else ()):
        for resource in as_texts(entry.get("resources")):
            if resource in cluster_resources:
                message = f"{resource} are in no namespace: a Role gives nothing on them"
                yield Hit(("rules", index, "resources"), message)
    # In a RoleBinding, an account without a namespace is one of the binding's own.
    is_open = obj.kind == "ClusterRoleBinding"
    for index, subject in enumerate(as_list(obj.body.get("subjects")) if is_open else ()):
        name = as_text(dig(subject, "name"))
        # Kustomize completes files whose accounts have no namespace either.
        accounts = context.index.find_all("ServiceAccount", name)
        is_stated = any(account.namespace for account in accounts)
        if is_stated and dig(subject, "kind") == "ServiceAccount" and not dig(subject, "namespace"):
            yield Hit(("subjects", index), "an account needs its namespace here")


def _write_member(role: str) -> str:
    return f"""\
apiVersion: iam.cnrm.cloud.google.com/v1beta1
kind: IAMPolicyMember
metadata:
  name: trainer
  namespace: research
spec:
  member: serviceAccount:acme.svc.id.goog[research/trainer]
  role: {role}
  resourceRef:
    kind: IAMServiceAccount
    name: trainer
"""


@rule(
    "HF802",
    "identity-role-wrong",
    Severity.ERROR,
    on=Object,
    kinds=("IAMPolicyMember",),
    what="An account of Kubernetes gets another role on a Google account than the one it needs.",
    why="Its pods cannot act as the Google account: each call ends with 403.",
    source=DOC_IDENTITY,
    fix=f"role: {_USER_ROLE}",
    bad=_write_member("roles/iam.serviceAccountUser"),
    good=_write_member(_USER_ROLE),
)
def check_identity_roles(obj: Object, context: Context) -> Iterator[Hit]:
    member = as_text(obj.spec.get("member"))[:400]
    role = as_text(obj.spec.get("role"))
    is_on_account = dig(obj.spec, "resourceRef", "kind") == "IAMServiceAccount"
    if not is_on_account or not _MEMBER.fullmatch(member) or role == _USER_ROLE:
        return
    for other in context.index.by_kind["IAMPolicyMember"]:
        if other.spec.get("member") == member and other.spec.get("role") == _USER_ROLE:
            return
    yield Hit(("spec", "role"), f"{role} does not let pods act as the account")
