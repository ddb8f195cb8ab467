"""HF808 to HF812: variables and files that a container does not get as it expects.

Why it is so: infra/decisions/0200.
"""

import re
from collections.abc import Iterator

from holdfast.lint.finding import Hit, Severity
from holdfast.lint.objects import (
    KNOWN_KINDS,
    Object,
    Pod,
    as_maps,
    as_text,
    dig,
)
from holdfast.lint.references import CONFIG_MAP, SECRET, list_keys
from holdfast.lint.registry import Context, rule

DOC_FIELDS = "https://kubernetes.io/docs/concepts/workloads/pods/downward-api/"
DOC_CONFIG = "https://kubernetes.io/docs/tasks/configure-pod-container/configure-pod-configmap/"
DOC_METADATA = "https://cloud.google.com/kubernetes-engine/docs/concepts/workload-identity"
DOC_SCRAPE = "https://github.com/prometheus/prometheus/blob/main/documentation/examples/prometheus-kubernetes.yml"
_LABEL_FIELD = re.compile(r"metadata\.(labels|annotations)\['([^']{1,300})'\]")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,300}")
_PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy", "ALL_PROXY")
_FILE_NAME = re.compile(
    r".*/[\w.-]*\w\.(?:ya?ml|json|toml|conf|cfg|ini|py|sh|env|txt|xml|properties|jinja|pem|crt|key)"
)


def _write_label(label: str) -> str:
    return f"""\
metadata:
  labels:
    team: vision
spec:
  containers:
  - name: main
    image: registry.example/trainer:1.4
    resources:
      limits:
        nvidia.com/gpu: 1
    env:
    - name: TEAM
      valueFrom:
        fieldRef:
          fieldPath: metadata.labels['{label}']
"""


@rule(
    "HF808",
    "label-of-no-pod",
    Severity.WARNING,
    on=Pod,
    what="A variable takes a label or an annotation that the pod template does not have.",
    why="The variable is empty: the program goes on without its value.",
    source=DOC_FIELDS,
    fix="add the label to the template, or correct its name",
    base="job-template",
    bad=_write_label("group"),
    good=_write_label("team"),
)
def check_labels(pod: Pod, context: Context) -> Iterator[Hit]:
    if pod.owner.kind not in KNOWN_KINDS:
        return
    for container in pod.containers:
        for index, item in enumerate(as_maps(container.body.get("env"))):
            field_path = as_text(dig(item, "valueFrom", "fieldRef", "fieldPath"))
            match = _LABEL_FIELD.fullmatch(field_path[:400])
            if match is None:
                continue
            field, key = match.groups()
            values = pod.all_labels if field == "labels" else pod.annotations
            # Controllers and webhooks add keys with a domain, and some without.
            is_added = "/" in key or key.endswith(("-hash", "-index", "-uid", "-name"))
            if key not in values and not is_added:
                path = (*container.path, "env", index, "valueFrom", "fieldRef", "fieldPath")
                yield Hit(path, f"the pod has no {field[:-1]} {key}")


def _write_keys(key: str) -> str:
    return f"""\
envFrom:
- configMapRef:
    name: settings
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: settings
  namespace: training
data:
  {key}: gemma
"""


@rule(
    "HF809",
    "key-is-no-variable",
    Severity.WARNING,
    on=Pod,
    what="All keys of a ConfigMap or Secret become variables, and one has no name of a variable.",
    why="No shell reads $a-b, older nodes skip the key, and a file becomes one long variable.",
    source=DOC_CONFIG,
    fix="use letters, digits and underscores; mount files as a volume",
    base="container",
    bad=_write_keys("model-name"),
    good=_write_keys("MODEL_NAME"),
)
def check_keys(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers:
        for index, item in enumerate(as_maps(container.body.get("envFrom"))):
            for kind, field in ((CONFIG_MAP, "configMapRef"), (SECRET, "secretRef")):
                name = as_text(dig(item, field, "name"))
                source = context.index.find(kind, name, pod.owner.namespace) if name else None
                keys = sorted(map(str, list_keys(source))) if source else []
                odd_keys = [key for key in keys if _is_odd(key)]
                if odd_keys:
                    path = (*container.path, "envFrom", index, field, "name")
                    yield Hit(path, f"{odd_keys[0]} of {name} is no name of a variable")


def _is_odd(key: str) -> bool:
    """Returns whether a key is meant as a variable but is no valid name of one."""
    return not _VARIABLE.fullmatch(key) and not _FILE_NAME.fullmatch(f"/{key}")


def _write_proxy(exception: str) -> str:
    return f"""\
env:
- name: HTTPS_PROXY
  value: http://proxy.example:3128
{exception}"""


@rule(
    "HF810",
    "proxy-for-everything",
    Severity.WARNING,
    on=Pod,
    what="A container has a proxy, and no list of addresses that it reaches without.",
    why="Calls to Services, to the API server and to the metadata server go to the proxy.",
    source=DOC_METADATA,
    fix="NO_PROXY: localhost,127.0.0.1,metadata.google.internal,169.254.169.254,.svc,10.0.0.0/8",
    base="container",
    bad=_write_proxy(""),
    good=_write_proxy("- name: NO_PROXY\n  value: metadata.google.internal,.svc\n"),
)
def check_proxies(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.main_containers:
        names = container.env.keys()
        is_whole = not container.body.get("envFrom") and not {"NO_PROXY", "no_proxy"} & names
        for path, name, value in container.variables if is_whole else ():
            if name in _PROXIES and value:
                yield Hit(path, f"{name} without NO_PROXY")
                break


def _write_file(sub_path: str) -> str:
    return f"""\
metadata: {{}}
spec:
  volumes:
  - name: config
    configMap:
      name: settings
  containers:
  - name: main
    image: registry.example/trainer:1.4
    resources:
      limits:
        nvidia.com/gpu: 1
    volumeMounts:
    - name: config
      mountPath: /app/train.yaml
{sub_path}"""


@rule(
    "HF811",
    "folder-in-place-of-a-file",
    Severity.ERROR,
    on=Pod,
    what="A ConfigMap or Secret is mounted at the path of a file, without subPath.",
    why="The path is a folder that holds the file: the program cannot open it.",
    source=DOC_CONFIG,
    fix="add subPath with the key, or mount it at the folder",
    base="job-template",
    bad=_write_file(""),
    good=_write_file("      subPath: train.yaml\n"),
)
def check_file_mounts(pod: Pod, context: Context) -> Iterator[Hit]:
    names: set[str] = set()
    for _, volume in pod.volumes:
        if {"configMap", "secret"} & volume.keys():
            names.add(as_text(volume.get("name")))
    for container in pod.containers:
        for path, mount in container.mounts:
            place = as_text(mount.get("mountPath"))[:500]
            is_whole = not mount.get("subPath") and not mount.get("subPathExpr")
            if is_whole and as_text(mount.get("name")) in names and _FILE_NAME.fullmatch(place):
                yield Hit((*path, "mountPath"), f"{place} is a folder without subPath")


def _write_scraped(port: str) -> str:
    return f"""\
spec:
  template:
    metadata:
      annotations:
        prometheus.io/scrape: "true"
        prometheus.io/port: "{port}"
    spec:
      containers:
      - name: main
        image: registry.example/server:1.4
        resources:
          limits:
            nvidia.com/gpu: 1
        ports:
        - containerPort: 8080
"""


@rule(
    "HF812",
    "scraped-elsewhere",
    Severity.WARNING,
    on=Object,
    what="An annotation names a port for metrics on which no container of the pod listens.",
    why="No metrics come: dashboards, alerts and scaling see nothing.",
    source=DOC_SCRAPE,
    fix="write the port of the container that has metrics, and declare it",
    base="serving",
    bad=_write_scraped("9090"),
    good=_write_scraped("8080"),
)
def check_scraping(obj: Object, context: Context) -> Iterator[Hit]:
    key = "prometheus.io/port"
    for pod in obj.pods:
        port = as_text(pod.annotations.get(key))
        numbers: set[int] = set()
        texts: list[str] = []
        for container in pod.containers:
            numbers |= container.ports.keys()
            texts += [text for _, text in container.list_texts()]
        is_told = any(port in text for text in texts)
        if port.isdecimal() and numbers and int(port[:6]) not in numbers and not is_told:
            path = (*pod.path, "metadata", "annotations", key)
            yield Hit(path, f"no container has the port {port}")
