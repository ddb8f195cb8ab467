"""HF4xx: what a shared cluster needs from every workload, where Pod Security and kube-score do not look."""

# Why it is so: infra/decisions/0067.

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from ipaddress import collapse_addresses, ip_network
from typing import Any

from holdfast.contract.kubernetes import ANNOTATION_GOOGLE_ACCOUNT
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.objects import Container, Object, Pod, as_list, as_map, as_text, dig, near
from holdfast.lint.registry import Context, rule

DOC_PSS = "https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted"
DOC_IMAGES = "https://kubernetes.io/docs/concepts/containers/images/"
_SECRET_NAME = re.compile(r"(TOKEN|SECRET|PASSWORD|API_KEY|ACCESS_KEY|PRIVATE_KEY)$", re.IGNORECASE)
_IMAGE = "registry.example/trainer"


def _is_judged(image: str, context: Context) -> bool:
    """Not a placeholder that somebody fills in, and not one that a kustomization of the same run replaces.

    A repository's name has no capitals, so MY_PROJECT or YOUR-IMAGE is none.
    """
    name = image.partition("@")[0]
    name = name[: name.rfind(":")] if name.rfind(":") > name.rfind("/") else name
    filled_in = not name or any(char in "$<>{}%[] " or char.isupper() for char in name)
    return not filled_in and name not in context.world.replaced_images


@rule(
    "HF401", "image-tag-moves", Severity.ERROR, on=Pod,
    what="An image without a tag, or with :latest.",
    why="Each restart after an eviction may run another program than the one that wrote the checkpoint.",
    source=DOC_IMAGES, fix="pin the image by digest", base="container",
    bad=f"image: {_IMAGE}:latest", good=f"image: {_IMAGE}@sha256:{'1' * 64}",
)  # fmt: skip
def image_tag_moves(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers:
        image = as_text(container.body.get("image"))
        tag = image.rpartition("/")[2].partition(":")[2]
        if _is_judged(image, context) and "@sha256:" not in image and tag in ("", "latest"):
            yield Hit((*container.path, "image"), f"{image} is another image tomorrow")


@rule(
    "HF402", "image-without-digest", Severity.WARNING, on=Pod,
    what="An image pinned by tag only.",
    why="A tag can be moved, by accident or by an intruder in the registry.",
    source=DOC_IMAGES, fix="append @sha256:...", base="container",
    bad=f"image: {_IMAGE}:1.4.2", good=f"image: {_IMAGE}:1.4.2@sha256:{'1' * 64}",
)  # fmt: skip
def image_without_digest(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers:
        image = as_text(container.body.get("image"))
        tag = image.rpartition("/")[2].partition(":")[2]
        if _is_judged(image, context) and "@sha256:" not in image and tag not in ("", "latest"):
            yield Hit((*container.path, "image"), f"{image} can be moved")


@rule(
    "HF403", "no-limits", Severity.ERROR, on=Pod,
    what="A container without a memory limit or a CPU and memory request.",
    why="It takes memory from its neighbours, and the autoscaler cannot size a node for it.",
    source="https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/",
    fix="state limits for memory and ephemeral-storage, and requests or limits for cpu", base="container",
    bad='resources: {limits: {memory: null, cpu: "2"}}', good='resources: {limits: {memory: 8Gi, cpu: "2"}}',
)  # fmt: skip
def no_limits(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers:
        missing = [] if container.limit("memory") is not None else ["memory limit"]
        missing += [f"{name} request" for name in ("cpu", "memory") if container.request(name) is None]
        if missing:
            yield Hit(
                (*container.path, "resources"), f"container {container.name} has no {', '.join(dict.fromkeys(missing))}"
            )


@rule(
    "HF409", "shares-the-host", Severity.ERROR, on=Pod,
    what="The pod uses the node's network, ports, processes, IPC, files or capabilities.",
    why="From there the node's metadata and tokens are within reach. Pod Security baseline refuses it.",
    source=DOC_PSS, fix="remove it; give data through volumes and services", base="job-pod",
    bad="hostNetwork: true", good="enableServiceLinks: false",
)  # fmt: skip
def shares_the_host(pod: Pod, context: Context) -> Iterator[Hit]:
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.spec.get(field) is True:
            yield Hit((*pod.at, field), f"{field} is on")
    for index, volume in enumerate(as_list(pod.spec.get("volumes"))):
        if dig(volume, "hostPath") is not None and pod.owner.kind != "DaemonSet":
            yield Hit((*pod.at, "volumes", index, "hostPath"), "mounts a folder of the node")
    for container in pod.containers if pod.owner.kind != "DaemonSet" else []:
        yield from _reaches_the_node(container)


def _reaches_the_node(container: Container) -> Iterator[Hit]:
    for index, port in enumerate(as_list(container.body.get("ports"))):
        if dig(port, "hostPort"):
            yield Hit((*container.path, "ports", index, "hostPort"), "takes a port of the node")
    at = (*container.path, "securityContext")
    if dig(container.body, "securityContext", "privileged") is True:
        yield Hit((*at, "privileged"), "is privileged: root of the node")
    added = as_list(dig(container.body, "securityContext", "capabilities", "add"))
    if any(name != "NET_BIND_SERVICE" for name in added):
        yield Hit((*at, "capabilities", "add"), f"adds capabilities: {', '.join(map(str, added[:5]))}")


@rule(
    "HF410", "token-mounted", Severity.WARNING, on=Pod,
    what="The Kubernetes token is mounted though nothing says that the pod needs it.",
    why="Most workloads never call the API server; the token only helps an intruder. Workload Identity works without it.",
    source="https://kubernetes.io/docs/tasks/configure-pod-container/configure-service-account/",
    fix="set automountServiceAccountToken: false, or true where the pod calls the API", base="job-pod",
    bad="automountServiceAccountToken: null", good="automountServiceAccountToken: false",
)  # fmt: skip
def token_mounted(pod: Pod, context: Context) -> Iterator[Hit]:
    if pod.spec.get("automountServiceAccountToken") is None:
        yield Hit(pod.at, "mounts a token by default")


@rule(
    "HF411", "default-service-account", Severity.WARNING, on=Pod,
    what="The pod runs as the namespace's default service account.",
    why="All pods of the namespace then share whatever one of them was granted.",
    source="https://cloud.google.com/kubernetes-engine/docs/how-to/workload-identity",
    fix="set serviceAccountName to the role's account", base="job-pod",
    bad="serviceAccountName: default", good="serviceAccountName: trainer",
)  # fmt: skip
def default_service_account(pod: Pod, context: Context) -> Iterator[Hit]:
    if pod.spec.get("serviceAccountName", pod.spec.get("serviceAccount")) in (None, "", "default"):
        yield Hit((*pod.at, "serviceAccountName"), "runs as the default service account")


@rule(
    "HF412", "namespace-not-restricted", Severity.WARNING, on=Object,
    what="A namespace without the label that enforces Pod Security restricted.",
    why="Without it nothing stops a privileged pod in the namespace.",
    source=DOC_PSS, fix="label it pod-security.kubernetes.io/enforce: restricted",
    bad="apiVersion: v1\nkind: Namespace\nmetadata: {name: training}\n",
    good="apiVersion: v1\nkind: Namespace\nmetadata:\n  name: training\n"
         "  labels: {pod-security.kubernetes.io/enforce: restricted}\n",
)  # fmt: skip
def namespace_not_restricted(obj: Object, context: Context) -> Iterator[Hit]:
    level = dig(obj.metadata, "labels", "pod-security.kubernetes.io/enforce")
    if obj.kind == "Namespace" and not obj.name.startswith("kube-") and level != "restricted":
        yield Hit(("metadata", "labels"), f"enforces {level or 'nothing'}")


@rule(
    "HF413", "namespace-missing", Severity.WARNING, on=Object,
    what="A workload without a namespace, or in `default`.",
    why="Quotas, policies and identities are bound to namespaces; in default there are none.",
    source="infra/contract/names.py", fix="state metadata.namespace", base="job",
    bad="metadata: {namespace: null}", good="metadata: {namespace: training}",
)  # fmt: skip
def namespace_left_out(obj: Object, context: Context) -> Iterator[Hit]:
    if obj.pods and obj.namespace in ("", "default"):
        yield Hit(("metadata", "namespace"), "stands in the namespace default")


def _policy(to: str) -> str:
    return ("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: egress, namespace: training}\n"
            f"spec: {{podSelector: {{}}, policyTypes: [Egress], egress: [{{to: [{to}]}}]}}\n")  # fmt: skip


@rule(
    "HF414", "egress-open", Severity.WARNING, on=Object,
    what="A NetworkPolicy that lets pods reach every address.",
    why="A compromised pod can then send data and checkpoints anywhere, and reach the node's metadata server.",
    source="https://cloud.google.com/kubernetes-engine/docs/how-to/network-policy",
    fix="name the ranges and ports",
    bad=_policy("{ipBlock: {cidr: 0.0.0.0/0}}"), good=_policy("{ipBlock: {cidr: 199.36.153.4/30}}"),
)  # fmt: skip
def egress_open(obj: Object, context: Context) -> Iterator[Hit]:
    if obj.kind != "NetworkPolicy":
        return
    for index, egress in enumerate(as_list(obj.spec.get("egress"))):
        listed = as_list(dig(egress, "to"))
        everywhere = _is_most_of_the_internet(as_text(dig(peer, "ipBlock", "cidr")) for peer in listed)
        if isinstance(egress, dict) and (everywhere or (not listed and not egress.get("ports"))):
            yield Hit(("spec", "egress", index), "reaches every address")


def _is_most_of_the_internet(cidrs: Iterable[str]) -> bool:
    """Half of all addresses or more, in however many pieces."""
    found: dict[int, list[Any]] = {4: [], 6: []}
    for cidr in cidrs:
        with suppress(ValueError):
            network = ip_network(cidr, strict=False)
            found[network.version].append(network)
    sizes = ((sum(n.num_addresses for n in collapse_addresses(found[version])), version) for version in (4, 6))
    return any(2 * size >= 2 ** (32 if version == 4 else 128) for size, version in sizes)


_ACCOUNT = """\
apiVersion: v1
kind: ServiceAccount
metadata: {{name: trainer, namespace: training, annotations: {{{annotation}}}}}
"""
_BINDING = """\
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{name: reads, namespace: training}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: reads}}
subjects: [{{kind: ServiceAccount, name: trainer, namespace: {namespace}}}]
"""
_IDENTITY = "iam.gke.io/gcp-service-account: trainer@acme-ai-platform.iam.gserviceaccount.com"
_GOOGLE_ACCOUNT = re.compile(r"[a-z0-9][a-z0-9-]{0,60}@[a-z0-9.:-]{1,60}\.gserviceaccount\.com")


@rule(
    "HF417", "binding-of-no-account", Severity.ERROR, on=Object,
    what="A RoleBinding gives rights to an account that stands in another namespace.",
    why="The account that was meant gets nothing, and whoever makes one of that name there gets it.",
    source="https://kubernetes.io/docs/reference/access-authn-authz/rbac/", fix="name the account's own namespace",
    bad=_ACCOUNT.format(annotation=_IDENTITY) + _BINDING.format(namespace="batch"),
    good=_ACCOUNT.format(annotation=_IDENTITY) + _BINDING.format(namespace="training"),
)  # fmt: skip
def binding_of_no_account(obj: Object, context: Context) -> Iterator[Hit]:
    """Only where the account stands beside the binding: of one in another namespace the files may not know."""
    for index, subject in enumerate(as_list(obj.body.get("subjects")) if obj.kind == "RoleBinding" else []):
        name, namespace = as_text(dig(subject, "name")), as_text(dig(subject, "namespace"))
        if dig(subject, "kind") != "ServiceAccount" or not namespace or namespace == obj.namespace:
            continue
        there = context.world.named("ServiceAccount", name, namespace)
        if obj.namespace and not there and context.world.named("ServiceAccount", name, obj.namespace):
            yield Hit(("subjects", index, "namespace"), f"{name} stands in {obj.namespace}, not in {namespace}")


@rule(
    "HF418", "identity-annotation-wrong", Severity.ERROR, on=Object,
    what="The Workload Identity annotation has a typo in its key, or no Google service account as its value.",
    why="The pod then runs as nobody: every call to a bucket or a queue is refused.",
    source="https://cloud.google.com/kubernetes-engine/docs/how-to/workload-identity",
    fix=f"write {ANNOTATION_GOOGLE_ACCOUNT}: NAME@PROJECT.iam.gserviceaccount.com",
    bad=_ACCOUNT.format(annotation=_IDENTITY.replace("gcp-service", "gcp-sevice")),
    good=_ACCOUNT.format(annotation=_IDENTITY),
)  # fmt: skip
def identity_annotation_wrong(obj: Object, context: Context) -> Iterator[Hit]:
    for pod in obj.pods:
        if ANNOTATION_GOOGLE_ACCOUNT in pod.annotations:
            at = (*pod.path, "metadata", "annotations", ANNOTATION_GOOGLE_ACCOUNT)
            yield Hit(at, "is read on a ServiceAccount, not on a pod")
    if obj.kind != "ServiceAccount":
        return
    for key, value in as_map(obj.metadata.get("annotations")).items():
        at, text = ("metadata", "annotations", key), as_text(value)
        if key != ANNOTATION_GOOGLE_ACCOUNT and near(key, [ANNOTATION_GOOGLE_ACCOUNT], cutoff=0.85):
            yield Hit(at, f"{key} is read by nobody; {ANNOTATION_GOOGLE_ACCOUNT} is", on_key=True)
        placeholder = any(char in "$<>{}" or char.isupper() for char in text)
        if key == ANNOTATION_GOOGLE_ACCOUNT and not placeholder and not _GOOGLE_ACCOUNT.fullmatch(text):
            yield Hit(at, f"{text} is no Google service account")


@rule(
    "HF415", "remote-code", Severity.ERROR, on=Pod,
    what="A flag that lets a downloaded model run its own code.",
    why="Whoever can change the model then runs code with the pod's identity.",
    source="https://huggingface.co/docs/transformers/models#custom-models",
    fix="remove the flag, or vendor the code", base="container",
    bad="command: [python, -m, server, --trust-remote-code]", good="command: [python, -m, server]",
)  # fmt: skip
def remote_code(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers:
        for key in ("command", "args"):
            for index, word in enumerate(as_list(container.body.get(key))):
                if re.search(r"trust[-_]remote[-_]code(?!=(0|false))", str(word), re.IGNORECASE):
                    yield Hit((*container.path, key, index), "runs code that comes with a model")


# ALLOW_EMPTY_PASSWORD=1 has the name of a secret and is none.
_SWITCH = {"0", "1", "true", "false", "yes", "no", "on", "off"}


@rule(
    "HF416", "secret-in-manifest", Severity.ERROR, on=Pod,
    what="A secret as the literal value of an environment variable.",
    why="It is in git, in etcd, and in every `kubectl describe`.",
    source="https://cloud.google.com/secret-manager/docs/secret-manager-managed-csi-component",
    fix="read it from a Secret by secretKeyRef, or from Secret Manager", base="container",
    bad="env: [{name: HF_TOKEN, value: hf_abcdefgh}]",
    good="env: [{name: HF_TOKEN, valueFrom: {secretKeyRef: {name: hub, key: token}}}]",
)  # fmt: skip
def secret_in_manifest(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers:
        for index, item in enumerate(as_list(container.body.get("env"))):
            name, value = as_text(dig(item, "name")), as_text(dig(item, "value"))
            literal = value and value.lower() not in _SWITCH and not value.startswith(("$(", "${", "<", "/"))
            if literal and _SECRET_NAME.search(name):
                yield Hit((*container.path, "env", index, "value"), f"{name} holds a literal value")
