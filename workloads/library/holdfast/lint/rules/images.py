"""HF49x: images that a new node cannot pull."""

import json
import re
from base64 import b64decode
from collections.abc import Iterator
from functools import lru_cache

from holdfast.lint.finding import Hit, Severity
from holdfast.lint.known_values import load_table
from holdfast.lint.objects import Object, Pod, as_list, as_map, as_text, dig
from holdfast.lint.references import SECRET
from holdfast.lint.registry import Context, rule
from holdfast.lint.spelling import count_differences, find_near, suggest

DOC_IMAGES = "https://kubernetes.io/docs/concepts/containers/images/"
# Placeholders of templates, and names that a reader of a sample replaces, as PROJECT_ID.
_PLACEHOLDER = re.compile(r"[$<{]|(?<![A-Za-z0-9])[A-Z][A-Z0-9]*_?[A-Z0-9_]{2,}(?![a-z])")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_NAME = re.compile(r"[a-z0-9]+([._-]+[a-z0-9]+)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_HOST = re.compile(r"[A-Za-z0-9.-]{1,253}(:\d{1,5})?")
_ARTIFACT_HOST = re.compile(r"([a-z]+(-[a-z]+\d+)?)-docker\.pkg\.dev")
_PULL_KEY = ".dockerconfigjson"
_LONGEST = 20_000
_NEAR = 0.85
_PULL_TYPES = ("kubernetes.io/dockerconfigjson", "kubernetes.io/dockercfg")
# Path below the host: PROJECT/REPOSITORY/IMAGE.
_ARTIFACT_PARTS = 3


@rule(
    "HF490",
    "image-name-wrong",
    Severity.ERROR,
    on=Pod,
    what="An image has a name, a tag or a digest that no registry has.",
    why="The pod stays in InvalidImageName or ImagePullBackOff, on a node that is paid for.",
    source=DOC_IMAGES,
    fix="write HOST/PROJECT/REPOSITORY/IMAGE:TAG, or @sha256: and 64 digits",
    base="container",
    bad="""\
image: https://us-docker.pkg.dev/acme/ml/trainer:1.4
""",
    good="""\
image: us-docker.pkg.dev/acme/ml/trainer:1.4
""",
)
def image_name_wrong(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers:
        image = as_text(container.body.get("image"))
        if container.body.get("image") == "":
            yield Hit((*container.path, "image"), "has no image")
        if not image or _PLACEHOLDER.search(image[:600]):
            continue
        problem = _judge_image(image[:600]) or _find_misspelt(image[:600])
        if problem:
            yield Hit((*container.path, "image"), problem)


def _find_misspelt(image: str) -> str:
    """Returns the public image of which a name is most likely a typo; empty for others."""
    return _judge_repository(image.partition("@")[0].partition(":")[0])


@lru_cache(maxsize=4096)
def _judge_repository(repository: str) -> str:
    known_names = load_table("stock_images").keys() | load_table("entrypoints").keys()
    for known_name in known_names if "/" in repository else ():
        if "/" not in known_name or abs(len(known_name) - len(repository)) > 1:
            continue
        if count_differences(repository, known_name) == 1:
            return f"no public image {repository}; did you mean {known_name}?"
    return ""


def _judge_image(image: str) -> str:
    """Returns what is wrong with the name of an image; empty if nothing is."""
    if "://" in image:
        return "an image has no scheme"
    if image != image.strip() or " " in image:
        return "an image has no spaces"
    name, separator, digest = image.partition("@")
    if separator and not _DIGEST.fullmatch(digest):
        return f"{digest[:80]} is no digest: sha256: and 64 digits of 0-9 and a-f"
    path, colon, tag = name.rpartition(":")
    if not colon or "/" in tag:
        path = name
        tag = ""
    if tag and not _TAG.fullmatch(tag):
        return f"{tag[:80]} is no tag"
    parts = path.split("/")
    has_host = len(parts) > 1 and ("." in parts[0] or ":" in parts[0] or parts[0] == "localhost")
    if has_host and not _HOST.fullmatch(parts[0]):
        return f"{parts[0]} is no host"
    names = parts[1:] if has_host else parts
    for part in names:
        if not _NAME.fullmatch(part):
            return f"{part or 'an empty part'} is no part of an image's name: lower case only"
    if has_host and parts[0].endswith("pkg.dev"):
        return _judge_artifact(parts)
    return _judge_host(parts[0]) if has_host else ""


def _judge_host(host: str) -> str:
    """Returns which registry a host is a typing error of; empty if it is none."""
    known_hosts = load_table("registries")["hosts"]
    region, dash, domain = host.partition("-docker.")
    near_host = find_near(host, known_hosts, _NEAR)
    if dash and find_near(domain, ["pkg.dev"], 0.8):
        near_host = f"{region}-docker.pkg.dev"
    is_known = host in known_hosts or not near_host
    return "" if is_known else f"no registry {host}; did you mean {near_host}?"


def _judge_artifact(parts: list[str]) -> str:
    """Judges a name in Google's Artifact Registry."""
    if not _ARTIFACT_HOST.fullmatch(parts[0]):
        return f"{parts[0]} is no host of Artifact Registry: REGION-docker.pkg.dev"
    region = parts[0].partition("-docker.")[0]
    regions = load_table("registries")["regions"]
    if region not in regions:
        return f"Google has no region {region}{suggest(region, regions, 0.8)}"
    if len(parts) - 1 < _ARTIFACT_PARTS:
        return "Artifact Registry has PROJECT/REPOSITORY/IMAGE below its host"
    return ""


@rule(
    "HF491",
    "image-never-pulled",
    Severity.ERROR,
    on=Pod,
    what="imagePullPolicy Never: the node has to have the image already.",
    why="A new node of GKE has none of your images: ErrImageNeverPull.",
    source=DOC_IMAGES + "#image-pull-policy",
    fix="set IfNotPresent",
    base="container",
    bad="""\
imagePullPolicy: Never
""",
    good="""\
imagePullPolicy: IfNotPresent
""",
)
def image_never_pulled(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers:
        if container.body.get("imagePullPolicy") == "Never":
            yield Hit((*container.path, "imagePullPolicy"), "a new node has no image")


@rule(
    "HF494",
    "image-may-change",
    Severity.INFO,
    on=Pod,
    what="A Job or a server on Spot runs an image by the tag latest, or without a tag.",
    why="Each replacement of a lost pod may run another program than the pod that it replaces.",
    source=DOC_IMAGES + "#image-names",
    fix="name the image by its digest, or by a tag that stays",
    base="container",
    bad="""\
image: registry.example/trainer:latest
""",
    good="""\
image: registry.example/trainer:1.4
""",
)
def image_may_change(pod: Pod, context: Context) -> Iterator[Hit]:
    if not pod.job and not pod.gpus:
        return
    for container in pod.main_containers:
        image = as_text(container.body.get("image"))
        name = image.rpartition("/")[2]
        is_bare = "/" in image and ":" not in name
        if "@" not in image and (is_bare or name.endswith(":latest")):
            yield Hit((*container.path, "image"), "its tag is moved")


def _secret(kind: str) -> str:
    return f"""\
imagePullSecrets: [{{name: pull}}]
---
apiVersion: v1
kind: Secret
metadata: {{name: pull, namespace: training}}
type: {kind}
data: {{.dockerconfigjson: e30=}}
"""


@rule(
    "HF492",
    "pull-secret-of-other-type",
    Severity.ERROR,
    on=Pod,
    what="A pod pulls images with a Secret that is no pull secret.",
    why="The kubelet ignores it and pulls without credentials: the registry refuses.",
    source="https://kubernetes.io/docs/tasks/configure-pod-container/pull-image-private-registry/",
    fix="type: kubernetes.io/dockerconfigjson, with the key .dockerconfigjson",
    base="job-pod",
    bad=_secret("Opaque"),
    good=_secret("kubernetes.io/dockerconfigjson"),
)
def pull_secret_differs(pod: Pod, context: Context) -> Iterator[Hit]:
    for index, item in enumerate(as_list(pod.spec.get("imagePullSecrets"))):
        path = (*pod.spec_path, "imagePullSecrets", index, "name")
        secret = context.index.find(SECRET, as_text(dig(item, "name")), pod.owner.namespace)
        if secret is None:
            continue
        kind = as_text(secret.body.get("type")) or "Opaque"
        if kind not in _PULL_TYPES:
            yield Hit(path, f"Secret {secret.name} is of type {kind}")
        hosts = _list_hosts(secret)
        images = [as_text(container.body.get("image")) for container in pod.containers]
        if hosts and not any(image.startswith(hosts) or "/" not in image for image in images):
            yield Hit(path, f"Secret {secret.name} is for {', '.join(hosts)}: no image is there")


def _list_hosts(secret: Object) -> tuple[str, ...]:
    """Returns the registries of a pull secret; none where its text does not show them."""
    text = as_text(dig(secret.body, "stringData", _PULL_KEY))
    encoded = as_text(dig(secret.body, "data", _PULL_KEY))
    try:
        text = text or b64decode(encoded[:_LONGEST], validate=True).decode()
        auths = as_map(as_map(json.loads(text)).get("auths"))
    except (ValueError, RecursionError):
        return ()
    names: list[str] = []
    for address in auths:
        host = address.partition("://")[2] or address
        name = host.partition("/")[0]
        if "docker.io" in name:
            return ()
        names.append(name)
    return tuple(names)


@rule(
    "HF493",
    "secret-not-encoded",
    Severity.ERROR,
    on=Object,
    kinds=(SECRET,),
    what="A value in `data` of a Secret is no base64, or its type needs another key.",
    why="The API server refuses the Secret, and the pods that name it do not start.",
    source="https://kubernetes.io/docs/concepts/configuration/secret/#restriction-names-data",
    fix="write plain text into stringData",
    bad="""\
apiVersion: v1
kind: Secret
metadata:
  name: a
data:
  token: hf_plain-text
""",
    good="""\
apiVersion: v1
kind: Secret
metadata:
  name: a
stringData:
  token: text
""",
)
def secret_not_encoded(obj: Object, context: Context) -> Iterator[Hit]:
    for key, value in as_map(obj.body.get("data")).items():
        text = re.sub(r"\s", "", as_text(value)[:100_000])
        if re.search(r"[$<{]", text):
            continue
        if len(text) % 4 or not re.fullmatch(r"[A-Za-z0-9+/]*={0,2}", text):
            yield Hit(("data", key), "is no base64")
    needed = {
        "kubernetes.io/dockerconfigjson": ".dockerconfigjson",
        "kubernetes.io/tls": "tls.crt",
        "kubernetes.io/basic-auth": "username",
        "kubernetes.io/ssh-auth": "ssh-privatekey",
    }
    key = needed.get(as_text(obj.body.get("type")), "")
    keys = as_map(obj.body.get("data")).keys() | as_map(obj.body.get("stringData")).keys()
    if key and keys and key not in keys and key != "username":
        message = f"needs the key {key}; it has {', '.join(sorted(keys)[:5])}"
        yield Hit(("type",), message, fix=f"name the key {key}")
