"""HF41x: the identity, the secrets and the code of a job."""

import re
from collections.abc import Iterator
from typing import Any

from holdfast.lint.finding import Hit, Severity
from holdfast.lint.objects import Object, Pod, as_list, as_map, as_text, dig
from holdfast.lint.registry import Context, rule
from holdfast.lint.spelling import misspells
from holdfast.vocabulary.kubernetes import ANNOTATION_GOOGLE_ACCOUNT, LABEL_PART_OF, PART_OF

DOC_IDENTITY = "https://cloud.google.com/kubernetes-engine/docs/how-to/workload-identity"
_ACCOUNT = (
    "apiVersion: v1\nkind: ServiceAccount\nmetadata: {{name: trainer, annotations: {{{}}}}}\n"
)
_BINDING = """\
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reads, namespace: training}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reads}
subjects: [{kind: ServiceAccount, name: trainer, namespace: training}]
"""
_IDENTITY = "iam.gke.io/gcp-service-account: trainer@acme-ai-platform.iam.gserviceaccount.com"
_GOOGLE_ACCOUNT = re.compile(r"[a-z0-9][a-z0-9-]{0,60}@[a-z0-9.:-]{1,60}\.gserviceaccount\.com")
_PLACEHOLDER = re.compile(r"[$<>{}A-Z]")
_SECRET_NAME = re.compile(r"(TOKEN|SECRET|PASSWORD|API_KEY|ACCESS_KEY|PRIVATE_KEY)$", re.IGNORECASE)
# Secrets with the prefixes that their issuers document so that scanners find them.
ISSUED_SECRET = re.compile(
    r"(?<![A-Za-z0-9])(hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}"
    r"|glpat-[\w-]{20,}|sk-[\w-]{20,}|xox[abps]-[\w-]{10,}|AKIA[A-Z0-9]{16}|AIza[\w-]{35})"
)
_SECRET_OPTION = re.compile(
    r"(?:^|[\s-])[\w-]*?(token|secret|password|api[-_]?key|access[-_]?key|private[-_]?key)"
    r"(?:=|\s+)(?P<value>\S+)",
    re.IGNORECASE,
)
_SHORTEST_SECRET = 16  # --pad-token and --eos-token name words of a vocabulary
# ALLOW_EMPTY_PASSWORD=1 has the name of a secret and is none.
_SWITCH = {"0", "1", "true", "false", "yes", "no", "on", "off"}
_REFERENCES = ("$(", "${", "<", "/")
_SHELL_REFERENCES = ("$", "<", "/")
_REMOTE_CODE = re.compile(r"trust[-_]remote[-_]code(?!=(0|false))", re.IGNORECASE)


@rule(
    "HF415",
    "remote-code",
    Severity.ERROR,
    on=Pod,
    what="A flag lets a downloaded model run its own code.",
    why="A person who can change the model can then run code with the pod's identity.",
    source="https://huggingface.co/docs/transformers/models#custom-models",
    fix="remove the flag, or keep a copy of the code in the image",
    base="container",
    bad="command: [python, -m, server, --trust-remote-code]",
)
def remote_code(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers:
        for key in ("command", "args"):
            for index, word in enumerate(as_list(container.body.get(key))):
                if _REMOTE_CODE.search(str(word)):
                    yield Hit((*container.path, key, index), "runs code that comes with a model")


@rule(
    "HF416",
    "secret-in-manifest",
    Severity.ERROR,
    on=Pod,
    what="An environment variable or an argument holds a secret as a literal value.",
    why="The secret is then in git, in etcd, and in the output of `kubectl describe`.",
    source="https://cloud.google.com/secret-manager/docs/secret-manager-managed-csi-component",
    fix="read it from a Secret by secretKeyRef, or from Secret Manager",
    base="container",
    bad="env: [{name: HF_TOKEN, value: hf_abcdefgh}]",
    good="env: [{name: HF_TOKEN, valueFrom: {secretKeyRef: {name: hub, key: token}}}]",
)
def secret_in_manifest(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers:
        for path, name, value in container.variables:
            if not value or value.lower() in _SWITCH or value.startswith(_REFERENCES):
                continue
            if _SECRET_NAME.search(name):
                yield Hit(path, f"{name} holds a literal value")
        for key in ("command", "args"):
            words = [as_text(word) for word in as_list(container.body.get(key))]
            for index, word in enumerate(words):
                option = words[index - 1] if index else ""
                if _holds_secret(word, option):
                    yield Hit((*container.path, key, index), "an argument holds a literal secret")


def _holds_secret(word: str, option: str) -> bool:
    """Returns whether a word of a command is a secret, or holds one. `option`: the word before."""
    if ISSUED_SECRET.search(word):
        return True
    text = f"{option} {word}" if option.startswith("-") and "=" not in option else word
    for match in _SECRET_OPTION.finditer(text):
        value = match["value"].strip("'\"")
        is_mixed = re.search(r"[A-Za-z]", value) and re.search(r"[0-9]", value)
        if len(value) >= _SHORTEST_SECRET and is_mixed and not value.startswith(_SHELL_REFERENCES):
            return True
    return False


@rule(
    "HF418",
    "identity-annotation-wrong",
    Severity.ERROR,
    on=Object,
    what=(
        "The Workload Identity annotation has a typo in its key, is on a pod, or names no Google"
        " service account."
    ),
    why="The pod then has no Google identity: buckets and queues refuse every call.",
    source=DOC_IDENTITY,
    fix=f"write {ANNOTATION_GOOGLE_ACCOUNT}: NAME@PROJECT.iam.gserviceaccount.com",
    bad=_ACCOUNT.format(_IDENTITY.replace("gcp-service", "gcp-sevice")),
    good=_ACCOUNT.format(_IDENTITY),
)
def identity_annotation_wrong(obj: Object, context: Context) -> Iterator[Hit]:
    for pod in obj.pods:
        if ANNOTATION_GOOGLE_ACCOUNT in pod.annotations:
            path = (*pod.path, "metadata", "annotations", ANNOTATION_GOOGLE_ACCOUNT)
            yield Hit(path, "GKE reads it on a ServiceAccount, not on a pod")
    if obj.kind != "ServiceAccount":
        return
    for key, value in obj.annotations.items():
        path = ("metadata", "annotations", key)
        if key == ANNOTATION_GOOGLE_ACCOUNT:
            account = as_text(value)
            is_prefixed = account.startswith("serviceAccount:")
            if is_prefixed:
                yield Hit(path, "serviceAccount: is for policies of IAM, not for this annotation")
            elif not _PLACEHOLDER.search(account) and not _GOOGLE_ACCOUNT.fullmatch(account):
                yield Hit(path, f"{account} is no Google service account")
        elif misspells(key, ANNOTATION_GOOGLE_ACCOUNT) or _names_account(key, value):
            message = f"GKE does not read {key}; it reads {ANNOTATION_GOOGLE_ACCOUNT}"
            yield Hit(path, message, on_key=True)


def _names_account(key: str, value: object) -> bool:
    """Returns whether an annotation of GKE or Google holds the name of a service account."""
    is_of_gke = "gke.io/" in key or "google" in key
    return is_of_gke and as_text(value)[:300].endswith(".iam.gserviceaccount.com")


_ROLE = """\
spec: {{template: {{spec: {{serviceAccountName: trainer}}}}}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {{name: reads, namespace: training}}
rules: [{{apiGroups: [""], resources: [{}], verbs: [get]}}]
{}"""
_WHOLE_ROLES = ("cluster-admin", "admin", "edit")


@rule(
    "HF420",
    "rights-beyond-the-job",
    Severity.ERROR,
    on=Object,
    kinds=("RoleBinding", "ClusterRoleBinding"),
    what=(
        "A binding lets a job, or a pod of the platform, read all secrets, run commands in pods, or"
        " do everything."
    ),
    why="Code that comes with a model or a dependency then has these rights too.",
    source="https://kubernetes.io/docs/concepts/security/rbac-good-practices/",
    fix="name the secrets by resourceNames; give no exec",
    base="job",
    bad=_ROLE.format("secrets", _BINDING),
    good=_ROLE.format("pods", _BINDING),
)
def rights_beyond_the_job(obj: Object, context: Context) -> Iterator[Hit]:
    hazard = _find_hazard(obj, context)
    if not hazard:
        return
    for index, subject in enumerate(as_list(obj.body.get("subjects"))):
        if dig(subject, "kind") != "ServiceAccount":
            continue
        name = dig(subject, "name")
        namespace = as_text(dig(subject, "namespace")) or obj.namespace
        for pod in context.index.select_pods(namespace, {}):
            if pod.spec.get("serviceAccountName") == name and _is_work(pod, context):
                yield Hit(("subjects", index), f"{name} may {hazard}")
                break


def _is_work(pod: Pod, context: Context) -> bool:
    """Returns whether a pod is one of a job or of the platform."""
    is_ours = pod.owner.labels.get(LABEL_PART_OF) == PART_OF
    return is_ours or pod.job is not None or context.place(pod).interruptible


def _find_hazard(binding: Object, context: Context) -> str:
    """Returns what the role of a binding allows that is too much; empty where nothing is."""
    kind = as_text(dig(binding.body, "roleRef", "kind"))
    name = as_text(dig(binding.body, "roleRef", "name"))
    if kind == "ClusterRole" and name in _WHOLE_ROLES:
        return "do everything"
    role = context.index.find(kind, name, binding.namespace if kind == "Role" else None)
    for role_rule in as_list(role.body.get("rules")) if role else []:
        hazard = _judge_rule(as_map(role_rule))
        if hazard:
            return hazard
    return ""


def _judge_rule(role_rule: dict[str, Any]) -> str:
    groups = _get_set(role_rule, "apiGroups")
    resources = _get_set(role_rule, "resources")
    verbs = _get_set(role_rule, "verbs")
    if not groups & {"", "*"} or role_rule.get("resourceNames"):
        return ""
    if resources & {"secrets", "*"} and verbs & {"get", "list", "watch", "*"}:
        return "read all secrets"
    if resources & {"pods/exec", "pods/attach", "pods/*", "*"} and verbs & {"create", "get", "*"}:
        return "run commands in pods"
    return ""


def _get_set(role_rule: dict[str, Any], field: str) -> set[str]:
    return set(map(as_text, as_list(role_rule.get(field))))
