"""HF840 to HF844: settings that are valid, and by which data is lost or nothing happens.

Why it is so: infra/decisions/0200.
"""

import re
from collections.abc import Iterator

from holdfast.lint.finding import Hit, Severity
from holdfast.lint.folders import find_mount, find_volume
from holdfast.lint.known_values import load_table
from holdfast.lint.objects import Object, Pod, as_list, as_map, as_maps, as_text, dig
from holdfast.lint.registry import Context, rule
from holdfast.lint.rules.contents import find_model, find_size
from holdfast.lint.rules.scripts import find_script
from holdfast.lint.rules.stock import get_repository
from holdfast.support.values import quantity

DOC_VOLUMES = "https://kubernetes.io/docs/concepts/storage/volumes/#emptydir"
DOC_SCALING = "https://cloud.google.com/kubernetes-engine/docs/how-to/horizontal-pod-autoscaling"
DOC_USERS = "https://kubernetes.io/docs/tasks/configure-pod-container/security-context/"
_DATABASES = ("postgres", "pgvector", "mysql", "mariadb", "mongo", "qdrant", "weaviate", "neo4j")
_SHARE_METRIC = re.compile(r"usage_perc|utilization_ratio|cache_usage|_ratio\b")
_INSTALLS = re.compile(r"(?:^|[\s;&|(])(?:sudo |apt-get install|apt install|apk add|yum install)")
_RETENTION = re.compile(r"--storage\.tsdb\.retention\.size[= ](\d{1,6})(GB|TB|MB|GiB|TiB)\b")
_BYTES = {"MB": 2**20, "GB": 2**30, "TB": 2**40, "GiB": 2**30, "TiB": 2**40}


def _write_database(volume: str) -> str:
    return f"""\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: results
  namespace: research
spec:
  replicas: 1
  strategy:
    type: Recreate
  selector:
    matchLabels:
      app: results
  template:
    metadata:
      labels:
        app: results
    spec:
      volumes:
      - name: data
        {volume}
      containers:
      - name: main
        image: postgres:17.2
        volumeMounts:
        - name: data
          mountPath: /var/lib/postgresql/data
"""


@rule(
    "HF840",
    "database-of-one-pod",
    Severity.WARNING,
    on=Object,
    kinds=("Deployment", "StatefulSet"),
    what="A database keeps its data in its own layer or in an emptyDir.",
    why="The data is gone with the pod: after each roll-out, drain or eviction.",
    source=DOC_VOLUMES,
    fix="mount a PersistentVolumeClaim at the folder of its data",
    bad=_write_database("emptyDir: {}"),
    good=_write_database("persistentVolumeClaim: {claimName: results}"),
)
def check_databases(obj: Object, context: Context) -> Iterator[Hit]:
    for pod in obj.pods:
        for container in pod.main_containers:
            name = get_repository(container).rpartition("/")[2]
            store = load_table("stores").get(name) if name in _DATABASES else None
            option = as_text(as_map(store).get("variable"))
            if store is None or option in container.env or container.words:
                continue
            mounts = [mount for _, mount in container.mounts if _holds(mount, store["folder"])]
            sources = [find_volume(pod, mount.get("name")) for mount in mounts]
            if not mounts or any("emptyDir" in source for source in sources):
                yield Hit(container.path, f"the data of {name} is gone with the pod")


def _holds(mount: dict[str, object], folder: str) -> bool:
    place = as_text(mount.get("mountPath")).rstrip("/")
    return bool(place) and (f"{place}/".startswith(f"{folder}/") or folder.startswith(f"{place}/"))


def _write_scaler(selector: str) -> str:
    return f"""\
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  name: worker
  namespace: research
spec:
  scaleTargetRef:
    apiVersion: apps/v1
    kind: Deployment
    name: worker
  minReplicas: 1
  maxReplicas: 4
  metrics:
  - type: External
    external:
      metric:
        name: pubsub.googleapis.com|subscription|num_undelivered_messages
{selector}
      target:
        type: AverageValue
        averageValue: "20"
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata:
  name: v1beta1.external.metrics.k8s.io
spec:
  group: external.metrics.k8s.io
  version: v1beta1
  groupPriorityMinimum: 100
  versionPriority: 100
"""


_SELECTOR = """\
        selector:
          matchLabels:
            resource.labels.subscription_id: work"""


@rule(
    "HF841",
    "target-never-met",
    Severity.WARNING,
    on=Object,
    kinds=("HorizontalPodAutoscaler",),
    what="An autoscaler waits for a share of 1 to become more than 1, or counts all subscriptions.",
    why="It never adds a pod, or adds pods for the work of others.",
    source=DOC_SCALING,
    fix="averageValue: 800m for 80 %; select the subscription by its label",
    bad=_write_scaler(""),
    good=_write_scaler(_SELECTOR),
)
def check_shares(obj: Object, context: Context) -> Iterator[Hit]:
    for index, metric in enumerate(as_maps(obj.spec.get("metrics"))):
        path = ("spec", "metrics", index)
        for field in ("pods", "external", "object"):
            name = as_text(dig(metric, field, "metric", "name"))
            target = as_map(dig(metric, field, "target"))
            value = quantity(target.get("averageValue") or target.get("value"))
            if _SHARE_METRIC.search(name[:300]) and value is not None and value > 1:
                yield Hit(
                    (*path, field, "target"), f"{name} is at most 1, and the target {value:g}"
                )
            is_backlog = name.startswith("pubsub.googleapis.com|subscription|")
            selector = dig(metric, field, "metric", "selector")
            if is_backlog and not selector:
                yield Hit((*path, field, "metric"), "adds up all subscriptions of the project")
            if is_backlog and field == "pods":
                yield Hit((*path, "pods"), "a metric of Pub/Sub is External, and not of pods")


def _write_user(command: str) -> str:
    return f"""\
securityContext:
  runAsNonRoot: true
  runAsUser: 1000
initContainers:
- name: prepare
  image: registry.example/prepare:1.4
  command:
  - sh
  - -c
  - {command}
"""


@rule(
    "HF842",
    "installs-without-rights",
    Severity.ERROR,
    on=Pod,
    what="A script installs packages of the system, and its container is not root or read-only.",
    why="The package manager ends with `Permission denied`, and so does the container.",
    source=DOC_USERS,
    fix="install them in the image",
    base="job-pod",
    bad=_write_user("apt-get install -y git"),
    good=_write_user("git --version"),
)
def check_installations(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers:
        script = find_script(container)
        settings = as_map(pod.spec.get("securityContext"))
        settings = settings | as_map(container.body.get("securityContext"))
        is_user = settings.get("runAsNonRoot") is True or bool(settings.get("runAsUser"))
        is_closed = settings.get("readOnlyRootFilesystem") is True
        match = _INSTALLS.search(script.text) if script else None
        if script and match and (is_user or is_closed):
            reason = "is not root" if is_user else "has a read-only layer"
            yield Hit(script.path, f"`{match[0].strip()}`, and the container {reason}")


def _write_model(size: str) -> str:
    return f"""\
volumes:
- name: models
  emptyDir:
    sizeLimit: {size}
containers:
- name: main
  image: vllm/vllm-openai:v0.10.2
  args:
  - --model=/models/qwen2.5-7b-instruct
  resources:
    limits:
      memory: 24Gi
      nvidia.com/gpu: 1
  volumeMounts:
  - name: models
    mountPath: /models
"""


@rule(
    "HF843",
    "model-larger-than-its-disk",
    Severity.ERROR,
    on=Pod,
    what="The weights of a model do not fit on the disk or into the folder that holds them.",
    why="The download ends with `No space left on device`, or the pod is evicted.",
    source=DOC_VOLUMES,
    fix="two bytes for each parameter, and some room",
    base="serving-pod",
    bad=_write_model("10Gi"),
    good=_write_model("20Gi"),
)
def check_model_disks(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.main_containers:
        model = find_model(container)
        mount = find_mount(container, model) if model.startswith("/") else None
        if mount is None:
            continue
        space = _find_space(pod, mount.get("name"), context)
        weights = find_size(container)
        if space and weights > space:
            message = f"about {weights / 1e9:.0f} GB of weights, and {space / 1e9:.0f} GB of disk"
            yield Hit(container.command_path, message)


def _find_space(pod: Pod, name: object, context: Context) -> float:
    """Returns the bytes of the folder or the claim behind a mount; 0 for an unknown size."""
    volume = find_volume(pod, name)
    if "emptyDir" in volume:
        return quantity(dig(volume, "emptyDir", "sizeLimit")) or 0.0
    claim_name = as_text(dig(volume, "persistentVolumeClaim", "claimName"))
    claim = context.index.find("PersistentVolumeClaim", claim_name, pod.owner.namespace)
    spec = claim.spec if claim and claim_name else {}
    for template in as_list(pod.owner.spec.get("volumeClaimTemplates")):
        if dig(template, "metadata", "name") == name:
            spec = as_map(dig(template, "spec"))
    # A volume that exists may be larger than the claim.
    is_existing = spec.get("volumeName") or spec.get("dataSource")
    if is_existing or "ReadOnlyMany" in as_list(spec.get("accessModes")):
        return 0.0
    return quantity(dig(spec, "resources", "requests", "storage")) or 0.0


def _write_metrics(size: str) -> str:
    return f"""\
volumes:
- name: data
  emptyDir:
    sizeLimit: 2Gi
containers:
- name: main
  image: prom/prometheus:v3.0.1
  args:
  - --storage.tsdb.path=/prometheus
  - --storage.tsdb.retention.size={size}
  resources:
    limits:
      nvidia.com/gpu: 1
  volumeMounts:
  - name: data
    mountPath: /prometheus
"""


@rule(
    "HF844",
    "keeps-more-than-its-disk",
    Severity.ERROR,
    on=Pod,
    what="Prometheus keeps more than its disk has.",
    why="The disk is full before the oldest data is removed: it stops, and starts no more.",
    source="https://prometheus.io/docs/prometheus/latest/storage/",
    fix="a retention of four fifths of the disk",
    base="serving-pod",
    bad=_write_metrics("4GB"),
    good=_write_metrics("1GB"),
)
def check_retentions(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.main_containers:
        match = _RETENTION.search(" ".join(container.words)[:8_000])
        folder = container.option("--storage.tsdb.path") or "/prometheus"
        mount = find_mount(container, folder) if match else None
        if match is None or mount is None:
            continue
        retention = int(match[1]) * _BYTES[match[2]]
        space = _find_space(pod, mount.get("name"), context)
        if space and retention >= space:
            yield Hit(
                container.command_path, f"keeps {match[1]} {match[2]} of {space / 2**30:.0f} GiB"
            )
