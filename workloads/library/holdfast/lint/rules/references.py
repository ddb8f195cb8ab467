"""HF43x: names that have to resolve to an object of the files."""

# Why it is so: infra/decisions/0144.

from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from holdfast.lint.document import Path
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.objects import DEFAULT_NAMESPACE, Object, Pod, as_list, as_map, as_text, dig
from holdfast.lint.references import (
    ACCOUNT,
    CONFIG_MAP,
    EXTERNAL_SECRET,
    SECRET,
    list_keys,
    list_references,
)
from holdfast.lint.registry import Context, rule
from holdfast.lint.spelling import find_near
from holdfast.vocabulary.kubernetes import ACCOUNT_FOLDER, ANNOTATION_GOOGLE_ACCOUNT

DOC_SECRETS = "https://kubernetes.io/docs/concepts/configuration/secret/"
DOC_CONFIG = "https://kubernetes.io/docs/concepts/configuration/configmap/"
DOC_RBAC = "https://kubernetes.io/docs/reference/access-authn-authz/rbac/"
_NEAR = 0.7
_BINDINGS = ("RoleBinding", "ClusterRoleBinding")


def _config(name: str = "params", namespace: str = "training", key: str = "rate") -> str:
    """Writes a variable that refers to a ConfigMap, and a ConfigMap."""
    return f"""\
env: [{{name: RATE, valueFrom: {{configMapKeyRef: {{name: params, key: rate}}}}}}]
---
apiVersion: v1
kind: ConfigMap
metadata: {{name: {name}, namespace: {namespace}}}
data: {{{key}: "0.1"}}
"""


def _is_made(kind: str, name: str, context: Context) -> bool:
    """Returns whether an operator or a generator of Kustomize makes an object of this name."""
    generators = {CONFIG_MAP: "configMapGenerator", SECRET: "secretGenerator"}
    for obj in context.index.by_kind.get("Kustomization", []):
        for entry in as_list(obj.body.get(generators.get(kind, ""))):
            if dig(entry, "name") == name:
                return True
    if kind != SECRET:
        return False
    for source in ("SealedSecret", "ExternalSecret", "Certificate", "SecretProviderClass"):
        for obj in context.index.by_kind.get(source, []):
            own_name = as_text(dig(obj.spec, "target", "name")) or obj.name
            if name in (own_name, obj.spec.get("secretName")):
                return True
    return False


def explain_absence(kind: str, name: str, obj: Object, context: Context) -> str:
    """Returns why an object that is not in the namespace of `obj` is a mistake; empty if unknown.

    It may be in the cluster. That is ruled out if the files have it in another namespace, or if the
    file of `obj` has one with a similar name, or exactly one that nothing names.
    """
    if _is_made(kind, name, context):
        return ""
    namesakes = [item for item in context.index.find_all(kind, name) if is_near_file(item, obj)]
    homes: list[str] = []
    for namesake in namesakes:
        homes.append(namesake.namespace)
    if obj.namespace and homes and all(homes):
        return f"{kind} {name} is in {', '.join(sorted(set(homes)))}, not in {obj.namespace}"
    neighbors = _list_neighbors(kind, obj, context)
    near_name = find_near(name, neighbors, _NEAR)
    if near_name:
        return f"no {kind} {name}; did you mean {near_name}?"
    other_kind = {CONFIG_MAP: SECRET, SECRET: CONFIG_MAP}.get(kind, "")
    if context.index.find(other_kind, name, obj.namespace):
        return f"{name} is a {other_kind}, not a {kind}"
    unused = [neighbor for neighbor in neighbors if not _is_named(kind, neighbor, obj, context)]
    if len(unused) == 1:
        return f"no {kind} {name}; its file has {unused[0]}, which nothing names"
    return ""


def is_near_file(obj: Object, other: Object) -> bool:
    """Returns whether two objects are in one folder: other folders may be of other clusters."""
    return PurePosixPath(obj.file).parent == PurePosixPath(other.file).parent


def _list_neighbors(kind: str, obj: Object, context: Context) -> list[str]:
    """Lists the names of a kind in the file and the namespace of an object."""
    names: list[str] = []
    for neighbor in context.index.list_namespace(kind, obj.namespace):
        if neighbor.file == obj.file and neighbor is not obj:
            names.append(neighbor.name)
    if kind == SECRET:
        for external in context.index.list_namespace(EXTERNAL_SECRET, obj.namespace):
            if external.file == obj.file:
                names.append(as_text(dig(external.spec, "target", "name")) or external.name)
    return sorted(set(names))


def _is_named(kind: str, name: str, obj: Object, context: Context) -> bool:
    """Returns whether a pod of the namespace, or a binding, names an object."""
    if (kind, obj.namespace or DEFAULT_NAMESPACE, name) in context.index.pod_references:
        return True
    if kind != ACCOUNT:
        return False
    for binding_kind in _BINDINGS:
        for binding in context.index.by_kind.get(binding_kind, []):
            if any(dig(subject, "name") == name for subject in _subjects(binding)):
                return True
    return False


def _subjects(binding: Object) -> list[dict[str, object]]:
    return list(map(as_map, as_list(binding.body.get("subjects"))))


@rule(
    "HF430",
    "reference-to-nothing",
    Severity.ERROR,
    on=Pod,
    what=(
        "A pod names a ConfigMap, Secret, claim or service account of another namespace, or one"
        " that its file has under another name."
    ),
    why="A pod reads its own namespace only. Without the object it does not start, and waits.",
    source=DOC_SECRETS,
    fix="write the object's name, in its namespace",
    base="container",
    bad=_config(namespace="default"),
    good=_config(),
)
def reference_to_nothing(pod: Pod, context: Context) -> Iterator[Hit]:
    reported: set[tuple[str, str]] = set()
    for reference in list_references(pod):
        identity = (reference.kind, reference.name)
        is_there = context.index.find(reference.kind, reference.name, pod.owner.namespace)
        if identity in reported or is_there:
            continue
        reported.add(identity)
        reason = explain_absence(reference.kind, reference.name, pod.owner, context)
        if reason:
            yield Hit(reference.path, reason)


@rule(
    "HF431",
    "key-of-no-config",
    Severity.ERROR,
    on=Pod,
    what="A pod takes a key that the ConfigMap or Secret of the files does not have.",
    why="The container does not start (CreateContainerConfigError), or its file is missing.",
    source=DOC_CONFIG,
    fix="name a key of it, or add the key",
    base="container",
    bad=_config(key="learning_rate"),
    good=_config(),
)
def key_is_absent(pod: Pod, context: Context) -> Iterator[Hit]:
    for reference in list_references(pod):
        obj = context.index.find(reference.kind, reference.name, pod.owner.namespace)
        if obj is None and reference.kind == SECRET:
            obj = _find_external(reference.name, pod, context)
        keys = list_keys(obj) if obj and reference.key else set[str]()
        if keys and reference.key not in keys:
            message = f"{reference.name} has no key {reference.key}; it has {_join(keys)}"
            yield Hit(reference.key_path, message)
    yield from _check_sub_paths(pod, context)


def _find_external(name: str, pod: Pod, context: Context) -> Object | None:
    """Finds the ExternalSecret that makes a Secret."""
    for external in context.index.list_namespace(EXTERNAL_SECRET, pod.owner.namespace):
        if (as_text(dig(external.spec, "target", "name")) or external.name) == name:
            return external
    return None


def _check_sub_paths(pod: Pod, context: Context) -> Iterator[Hit]:
    """Yields mounts of one key, as a file, that the ConfigMap or Secret does not have."""
    configs: dict[str, Object] = {}
    for _, volume in pod.volumes:
        for kind, field, name in (
            (CONFIG_MAP, "configMap", "name"),
            (SECRET, "secret", "secretName"),
        ):
            source = as_map(dig(volume, field))
            obj = context.index.find(kind, as_text(source.get(name)), pod.owner.namespace)
            if obj and not source.get("items"):
                configs[as_text(dig(volume, "name"))] = obj
    for container in pod.containers:
        for path, mount in container.mounts:
            obj = configs.get(as_text(mount.get("name")))
            sub_path = as_text(mount.get("subPath"))
            if obj and sub_path and list_keys(obj) and sub_path not in list_keys(obj):
                message = f"{obj.name} has no key {sub_path}; it has {_join(list_keys(obj))}"
                yield Hit((*path, "subPath"), message)


def _join(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)[:5])


_ROLE = """\
spec: {{template: {{spec: {{serviceAccountName: trainer, automountServiceAccountToken: {}}}}}}}
---
apiVersion: v1
kind: ServiceAccount
metadata: {{name: trainer, namespace: training}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {{name: reads, namespace: training}}
rules: [{{apiGroups: [""], resources: [pods], verbs: [get]}}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{name: reads, namespace: training}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: reads}}
subjects: [{{kind: ServiceAccount, name: trainer, namespace: {}}}]
"""
_BOUND = _ROLE.format("true", "training")


@rule(
    "HF432",
    "binding-of-nothing",
    Severity.ERROR,
    on=Object,
    kinds=_BINDINGS,
    what="A binding names an account or a role that is elsewhere, or has another name.",
    why="The pods run with the account that has no rights: each call is forbidden.",
    source=DOC_RBAC,
    fix="name the account and the role with their own namespace and kind",
    base="job",
    bad=_ROLE.format("true", "default"),
    good=_BOUND,
)
def binding_names_nothing(obj: Object, context: Context) -> Iterator[Hit]:
    yield from _check_role(obj, context)
    for index, subject in enumerate(_subjects(obj)):
        name = as_text(subject.get("name"))
        if subject.get("kind") != ACCOUNT:
            if any(is_near_file(account, obj) for account in context.index.find_all(ACCOUNT, name)):
                message = f"{name} is a ServiceAccount, not a {subject.get('kind')}"
                yield Hit(("subjects", index, "kind"), message)
            continue
        namespace = as_text(subject.get("namespace"))
        path = ("subjects", index, "namespace")
        # A RoleBinding means its own namespace; Kustomize adds one to a ClusterRoleBinding.
        if not namespace:
            namespace = obj.namespace
        if not namespace:
            continue
        if context.index.find(ACCOUNT, name, namespace) or _is_used(name, namespace, context):
            continue
        owners = context.index.find_all(ACCOUNT, name)
        owners += [pod.owner for pod in context.index.pods_by_account.get(name, [])]
        homes = {owner.namespace for owner in owners if is_near_file(owner, obj)}
        homes.discard("")
        neighbors = context.index.list_names(ACCOUNT)
        near_name = find_near(name, neighbors, _NEAR) if obj.file in _files(context) else ""
        if homes:
            yield Hit(path, f"{name} is an account of {_join(homes)}, not of {namespace}")
        elif near_name and context.index.find(ACCOUNT, near_name, namespace):
            path = ("subjects", index, "name")
            yield Hit(path, f"no ServiceAccount {name}; did you mean {near_name}?")


def _files(context: Context) -> set[str]:
    return {account.file for account in context.index.by_kind.get(ACCOUNT, [])}


def _is_used(account: str, namespace: str, context: Context) -> bool:
    pods = context.index.pods_by_account.get(account, [])
    return any(pod.owner.namespace == namespace for pod in pods)


def _check_role(obj: Object, context: Context) -> Iterator[Hit]:
    kind = as_text(dig(obj.body, "roleRef", "kind"))
    name = as_text(dig(obj.body, "roleRef", "name"))
    if kind not in ("Role", "ClusterRole"):
        return
    if context.index.find(kind, name, obj.namespace if kind == "Role" else None):
        return
    other_kind = "ClusterRole" if kind == "Role" else "Role"
    if context.index.find(other_kind, name):
        yield Hit(("roleRef", "kind"), f"{name} is a {other_kind}, not a {kind}")
        return
    reason = explain_absence(kind, name, obj, context) if kind == "Role" else ""
    if not reason:
        names = [role.name for role in context.index.by_kind.get(kind, []) if role.file == obj.file]
        near_name = find_near(name, names, _NEAR)
        reason = f"no {kind} {name}; did you mean {near_name}?" if near_name else ""
    if reason:
        yield Hit(("roleRef", "name"), reason)


@rule(
    "HF433",
    "rights-without-token",
    Severity.ERROR,
    on=Pod,
    what="A pod whose account has rights in the cluster gets no token.",
    why="Its client finds no credentials, or asks as an anonymous user: each call fails.",
    source="https://kubernetes.io/docs/tasks/configure-pod-container/configure-service-account/",
    fix="set automountServiceAccountToken: true in the pod, or remove the binding",
    base="job",
    bad=_ROLE.format("false", "training"),
    good=_BOUND,
)
def rights_without_token(pod: Pod, context: Context) -> Iterator[Hit]:
    name = pod.account
    account = context.index.find(ACCOUNT, name, pod.owner.namespace)
    mounts = pod.spec.get("automountServiceAccountToken")
    path: Path = (*pod.spec_path, "automountServiceAccountToken")
    if mounts is None and account:
        mounts = account.body.get("automountServiceAccountToken")
        path = (*pod.spec_path, "serviceAccountName")
    if mounts is not False or _has_own_token(pod) or _is_for_others(pod, context):
        return
    for kind in _BINDINGS:
        for binding in context.index.by_kind.get(kind, []):
            if binding.file != pod.owner.file:
                continue
            for subject in _subjects(binding):
                namespace = subject.get("namespace") or binding.namespace
                if (subject.get("name"), namespace) == (name, pod.owner.namespace):
                    yield Hit(path, f"{name} has rights by {binding.title}, and no token")
                    return


def _is_for_others(pod: Pod, context: Context) -> bool:
    """Returns whether another pod of the account takes the token: the rights are for that one."""
    name = pod.account
    for other in context.index.pods_by_account.get(name, []):
        is_other = other is not pod and other.owner.namespace == pod.owner.namespace
        mounts = other.spec.get("automountServiceAccountToken") is not False
        if is_other and (mounts or _has_own_token(other)):
            return True
    return False


def _has_own_token(pod: Pod) -> bool:
    for _, volume in pod.volumes:
        for source in as_list(dig(volume, "projected", "sources")):
            if dig(source, "serviceAccountToken"):
                return True
    for container in pod.containers:
        for _, mount in container.mounts:
            if as_text(mount.get("mountPath")).startswith(ACCOUNT_FOLDER):
                return True
    return False


_IDENTITY = """\
apiVersion: v1
kind: ServiceAccount
metadata:
  name: scores
  namespace: serving
  annotations: {iam.gke.io/gcp-service-account: s@p.iam.gserviceaccount.com}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: scores, namespace: serving}
spec:
  selector: {matchLabels: {app: scores}}
  template:
    metadata: {labels: {app: scores}}
    spec: {containers: [{name: main, image: scores}], serviceAccountName: ACCOUNT}
"""


@rule(
    "HF419",
    "account-not-used",
    Severity.ERROR,
    on=Pod,
    what="A pod runs as the default account; its file has one with rights that no pod uses.",
    why="The default account has no rights: each call to Google or to the cluster is refused.",
    source="https://cloud.google.com/kubernetes-engine/docs/how-to/workload-identity",
    fix="set serviceAccountName",
    bad=_IDENTITY.replace(", serviceAccountName: ACCOUNT", ""),
    good=_IDENTITY.replace("ACCOUNT", "scores"),
)
def account_not_used(pod: Pod, context: Context) -> Iterator[Hit]:
    if pod.account not in ("", "default"):
        return
    for account in context.index.list_namespace(ACCOUNT, pod.owner.namespace):
        is_used = context.index.pods_by_account.get(account.name)
        if account.file == pod.owner.file and not is_used and _has_rights(account, context):
            yield Hit(pod.spec_path, f"runs as default, and nothing runs as {account.name}")
            return
    # Accounts of the platform are in other files.
    if pod.owner.namespace in context.platform.job_namespaces:
        for container in pod.containers:
            if "gs://" in container.script:
                yield Hit(pod.spec_path, "runs as default, which may not use the buckets")
                return


def _has_rights(account: Object, context: Context) -> bool:
    if ANNOTATION_GOOGLE_ACCOUNT in account.annotations:
        return True
    for kind in _BINDINGS:
        for binding in context.index.by_kind.get(kind, []):
            if any(subject.get("name") == account.name for subject in _subjects(binding)):
                return True
    return False
