"""HF2xx: the places where a pod keeps data that has to survive an eviction."""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from holdfast.lint.document import Path
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.folders import list_mount_options
from holdfast.lint.objects import (
    MAX_SCRIPT,
    SHELLS,
    Container,
    Object,
    Pod,
    as_int,
    as_list,
    as_text,
    dig,
)
from holdfast.lint.registry import Context, rule
from holdfast.lint.rules.serving import find_services
from holdfast.support.values import GIB, quantity
from holdfast.vocabulary.kubernetes import FUSE_DRIVER

DOC_VOLUMES = "https://kubernetes.io/docs/concepts/storage/volumes/"
DOC_FUSE = (
    "https://cloud.google.com/kubernetes-engine/docs/how-to/cloud-storage-fuse-csi-driver-setup"
)
_CHECKPOINT = re.compile(r"check.?points?|ckpts?", re.IGNORECASE)
_FOLDER_OPTION = re.compile(r"(checkpoints|ckpts|[-_](dir|directory|path|folder))$", re.IGNORECASE)
_RELATIVE = re.compile(r"[A-Za-z_][\w.-]*(/[\w.-]+)*/?")
_OUTPUTS = ("--output_dir", "--output-dir")
# Paths in the container's own layer: nothing expands ~ in the arguments of a container.
_IN_LAYER = ("./", "../", "~")
LOCAL_SSD = re.compile(r"^/mnt/(disks|stateful_partition)|local-?ssd|nvme", re.IGNORECASE)
ZONAL_CLASSES = ("standard", "standard-rwo", "premium-rwo")
ONE_NODE_MODES = ("ReadWriteOnce", "ReadWriteOncePod")
_SIDECAR_LIMITS = "gke-gcsfuse/"
_READS = (
    "containers: [{name: main, image: a, resources: {limits: {nvidia.com/gpu: 1}}, volumeMounts:"
    " [{name: data, mountPath: /data, readOnly: true}]}]"
)
_FUSE = "{driver: gcsfuse.csi.storage.gke.io, volumeAttributes: {bucketName: b}}"


def _volumes(pod: Pod) -> dict[str, tuple[Path, dict[str, Any]]]:
    """Volume name -> its path in the object, and the volume."""
    volumes: dict[str, tuple[Path, dict[str, Any]]] = {}
    for path, volume in pod.volumes:
        volumes[as_text(volume.get("name"))] = (path, volume)
    return volumes


def _find_checkpoint_folders(
    container: Container, *, with_outputs: bool = False
) -> Iterator[tuple[str, Path]]:
    """Yields the folders in which a container keeps checkpoints, with the path that names them.

    `with_outputs` adds the folder into which trainers of Hugging Face write checkpoints.
    """
    for path, name, value in container.variables:
        if _CHECKPOINT.search(name) and value.startswith(("/", "file:", *_IN_LAYER)):
            yield value.removeprefix("file://"), path
    yield from _find_folder_options(container, with_outputs)
    for path, mount in container.mounts:
        mount_path = as_text(mount.get("mountPath"))
        if _CHECKPOINT.search(as_text(mount.get("name")) + mount_path):
            yield mount_path, (*path, "mountPath")


def _find_folder_options(container: Container, with_outputs: bool) -> Iterator[tuple[str, Path]]:
    for key in ("command", "args"):
        words = list(map(str, as_list(container.body.get(key))))
        is_shell = bool(words) and container.programs[0] in SHELLS
        for index, (word, successor) in enumerate(pairwise([*words, ""])):
            flag, equals, value = word.partition("=")
            folder = value if equals else successor
            if _names_folder(flag, folder, container, with_outputs):
                yield folder, (*container.path, key, index if equals else index + 1)
            if not is_shell or " " not in word:
                continue
            for part, following in pairwise([*word[:MAX_SCRIPT].split(), ""]):
                flag, equals, value = part.partition("=")
                folder = value if equals else following
                # A script may change its folder first, so only absolute paths count.
                if folder.startswith("/") and _names_folder(flag, folder, container, with_outputs):
                    yield folder, (*container.path, key, index)


def _names_folder(flag: str, folder: str, container: Container, with_outputs: bool) -> bool:
    """Returns whether an option names a folder for checkpoints."""
    is_output = with_outputs and flag in _OUTPUTS
    if not flag.startswith("--") or not (is_output or _CHECKPOINT.search(flag)):
        return False
    is_relative = _is_relative_folder(flag, folder)
    return folder.startswith("/") or (is_relative and not container.body.get("workingDir"))


def _is_relative_folder(flag: str, value: str) -> bool:
    """Returns whether a value is a relative path for an option that takes a folder.

    A number is no path, and neither is the name of a model.
    """
    if value.startswith(_IN_LAYER):
        return True
    if value.isdecimal() or not _FOLDER_OPTION.search(flag):
        return False
    return bool(_RELATIVE.fullmatch(value[:200]))


def _find_mount(container: Container, path: str) -> dict[str, Any] | None:
    """Returns the mount that holds `path`; None means the container's own layer."""
    best_mount: dict[str, Any] | None = None
    longest = 0
    for _, mount in container.mounts:
        folder = as_text(mount.get("mountPath"))
        is_inside = path == folder or path.startswith(folder.rstrip("/") + "/")
        if is_inside and len(folder) > longest:
            best_mount = mount
            longest = len(folder)
    return best_mount


def _find_volume(container: Container, path: str) -> dict[str, Any] | None:
    """Returns the volume whose mount holds `path`; None means the container's own layer."""
    mount = _find_mount(container, path)
    if mount is None:
        return None
    _, volume = _volumes(container.pod).get(as_text(mount.get("name")), ((), {}))
    return volume


def _find_written_folders(
    pod: Pod, context: Context, *, with_outputs: bool = False
) -> Iterator[tuple[Container, str, Path]]:
    """Yields the folders to which a pod writes checkpoints, with their containers and paths.

    A server reads weights, and nothing is written to a read-only mount.
    """
    if _is_server(pod, context):
        return
    for container in pod.containers:
        for folder, path in _find_checkpoint_folders(container, with_outputs=with_outputs):
            if not _is_read_only(container, folder, context):
                yield container, folder, path


def _is_server(pod: Pod, context: Context) -> bool:
    """Returns whether a pod answers requests: it has a readiness probe or is behind a Service."""
    if pod.job:
        return False
    if any(container.body.get("readinessProbe") for container in pod.containers):
        return True
    return bool(find_services(pod, context))


def _is_read_only(container: Container, folder: str, context: Context) -> bool:
    mount = _find_mount(container, folder)
    volume = _find_volume(container, folder)
    flags = (
        dig(mount, "readOnly"),
        dig(volume, "csi", "readOnly"),
        dig(volume, "persistentVolumeClaim", "readOnly"),
    )
    if True in flags or "ro" in list_mount_options(volume or {}):
        return True
    claim = _find_claim(volume, container.pod, context)
    return claim is not None and claim.spec.get("accessModes") == ["ReadOnlyMany"]


@rule(
    "HF201",
    "checkpoint-on-lost-disk",
    Severity.ERROR,
    on=Pod,
    what=(
        "Checkpoints go to a disk that ends with the pod or the node: emptyDir, hostPath,"
        " local SSD, or the container's own layer."
    ),
    why="After an eviction another node starts with an empty disk, and the run starts at step 0.",
    source=DOC_VOLUMES,
    fix="write to a bucket: --checkpoints gs://BUCKET/PREFIX",
    base="container",
    bad="command: [python, -m, trainer, --checkpoints, /checkpoints]",
    good="command: [python, -m, trainer, --checkpoints, gs://bucket/runs]",
)
def checkpoint_on_lost_disk(pod: Pod, context: Context) -> Iterator[Hit]:
    is_training = pod.job is not None and context.place(pod).interruptible
    folders = _find_written_folders(pod, context, with_outputs=is_training)
    for container, folder, path in folders:
        disk = _describe_lost_disk(folder, _find_volume(container, folder))
        if disk:
            yield Hit(path, f"{folder} is {disk}")


def _describe_lost_disk(path: str, volume: dict[str, Any] | None) -> str:
    """Describes the disk behind a path if it is lost with the pod or node; else empty."""
    if not path.startswith("/"):
        return "relative: the container's own layer"
    if volume is None:
        return "the container's own layer"
    if "hostPath" in volume:
        is_local_ssd = LOCAL_SSD.search(as_text(dig(volume, "hostPath", "path")))
        return f"{'a local SSD' if is_local_ssd else 'a disk'} of the node, lost with it"
    if "emptyDir" in volume:
        return "an emptyDir, deleted with the pod"
    if "ephemeral" in volume:
        return "an ephemeral volume, deleted with the pod"
    return ""


@rule(
    "HF202",
    "checkpoint-through-fuse",
    Severity.WARNING,
    on=Pod,
    what="The pod writes checkpoints through Cloud Storage FUSE.",
    why=(
        "A file is in the bucket only after close, the flush runs inside the window, and SIGTERM"
        " during a write can hang the sidecar."
    ),
    source="https://github.com/GoogleCloudPlatform/gcs-fuse-csi-driver/issues/257",
    fix="write checkpoints through the SDK; keep FUSE for reading data",
    base="job-template",
    bad=(
        'metadata: {annotations: {gke-gcsfuse/volumes: "true"}}\n'
        f"spec:\n  volumes: [{{name: store, csi: {_FUSE}}}]\n"
        "  containers: [{name: main, image: trainer, args: [--checkpoints, /store/runs],"
        " volumeMounts: [{name: store, mountPath: /store}]}]"
    ),
    good='metadata: {annotations: {gke-gcsfuse/volumes: "true"}}',
)
def checkpoint_through_fuse(pod: Pod, context: Context) -> Iterator[Hit]:
    for container, folder, path in _find_written_folders(pod, context):
        volume = _find_volume(container, folder)
        drivers = (dig(volume, "csi", "driver"), _find_claim_driver(volume, pod, context))
        if FUSE_DRIVER in drivers:
            yield Hit(path, f"{folder} is a bucket through FUSE")


def _claim(access: str, storage_class: str) -> str:
    """Writes a claim, and a Job of two pods that use it."""
    return f"""\
spec:
  template:
    spec:
      volumes: [{{name: data, persistentVolumeClaim: {{claimName: data}}}}]
      containers:
      - name: main
        image: registry.example/trainer:1.4
        resources: {{limits: {{nvidia.com/gpu: 1}}}}
        volumeMounts: [{{name: data, mountPath: /data}}]
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: data, namespace: training}}
spec:
  accessModes: [{access}]
  storageClassName: {storage_class}
  resources: {{requests: {{storage: 10Gi}}}}
"""


@rule(
    "HF203",
    "rwo-volume-shared",
    Severity.ERROR,
    on=Pod,
    what="Several pods of one workload use a ReadWriteOnce claim.",
    why="One node at a time can mount it. The pods on other nodes wait for ever.",
    source="https://kubernetes.io/docs/concepts/storage/persistent-volumes/#access-modes",
    fix="use a bucket, ReadOnlyMany, or one claim for each pod",
    base="job",
    bad=_claim("ReadWriteOnce", "regional-rwo"),
    good=_claim("ReadOnlyMany", "regional-rwo"),
)
def rwo_volume_shared(pod: Pod, context: Context) -> Iterator[Hit]:
    for path, volume in _volumes(pod).values():
        claim = _find_claim(volume, pod, context)
        modes = as_list(claim.spec.get("accessModes")) if claim else []
        if not claim or not modes or any(mode not in ONE_NODE_MODES for mode in modes):
            continue
        claim_path = (*path, "persistentVolumeClaim", "claimName")
        pods = sum(_count_pods(other, context) for other in pod.owner.pods if _uses(other, claim))
        if pods > 1:
            yield Hit(claim_path, f"{pods} pods share {claim.name}, which is {modes[0]}")
        elif pod.owner.kind == "DaemonSet":
            yield Hit(claim_path, f"each node has a pod with {claim.name}, which is {modes[0]}")


def _uses(pod: Pod, claim: Object) -> bool:
    return any(
        dig(volume, "persistentVolumeClaim", "claimName") == claim.name for _, volume in pod.volumes
    )


def _count_pods(pod: Pod, context: Context) -> int:
    """Counts the pods of a template, those that an autoscaler may add included."""
    pods = pod.replicas
    for scaler in context.index.find_scalers(pod.owner):
        pods = max(pods, as_int(scaler.spec.get("maxReplicas")) or 0)
    return pods


def _find_claim(volume: dict[str, Any] | None, pod: Pod, context: Context) -> Object | None:
    name = as_text(dig(volume, "persistentVolumeClaim", "claimName"))
    if name:
        return context.index.find("PersistentVolumeClaim", name, pod.owner.namespace)
    return None


def _find_claim_driver(volume: dict[str, Any] | None, pod: Pod, context: Context) -> str:
    """Returns the CSI driver of a claim's volume; empty where the files do not show it."""
    claim = _find_claim(volume, pod, context)
    if claim is None:
        return ""
    bound_volume = context.index.find("PersistentVolume", as_text(claim.spec.get("volumeName")))
    return as_text(dig(bound_volume.spec, "csi", "driver")) if bound_volume else ""


@rule(
    "HF204",
    "fuse-without-annotation",
    Severity.ERROR,
    on=Pod,
    what="A pod has a Cloud Storage FUSE volume and not the annotation that injects its sidecar.",
    why="Without the sidecar the mount fails, and the pod does not start.",
    source=DOC_FUSE,
    fix='annotate the pod template: gke-gcsfuse/volumes: "true"',
    base="job-template",
    bad=f"spec: {{volumes: [{{name: data, csi: {_FUSE}}}], {_READS}}}",
    good=(
        'metadata: {annotations: {gke-gcsfuse/volumes: "true"}}\n'
        f"spec: {{volumes: [{{name: data, csi: {_FUSE}}}], {_READS}}}"
    ),
)
def fuse_without_annotation(pod: Pod, context: Context) -> Iterator[Hit]:
    if str(pod.annotations.get("gke-gcsfuse/volumes")).lower() == "true":
        return
    for path, volume in _volumes(pod).values():
        if dig(volume, "csi", "driver") == FUSE_DRIVER:
            yield Hit((*path, "csi"), "no sidecar will mount this volume")
        if _find_claim_driver(volume, pod, context) == FUSE_DRIVER:
            message = "no sidecar will mount this bucket through FUSE"
            yield Hit((*path, "persistentVolumeClaim"), message)


@rule(
    "HF206",
    "zonal-disk-on-spot",
    Severity.WARNING,
    on=Object,
    kinds=("PersistentVolumeClaim",),
    what="A claim uses a zonal disk class for work that moves between zones.",
    why="A zonal disk ties its pod to one zone, and Spot capacity moves between zones.",
    source="https://cloud.google.com/kubernetes-engine/docs/how-to/persistent-volumes/regional-pd",
    fix="use a regional disk class, or a bucket",
    base="job",
    bad=_claim("ReadOnlyMany", "standard-rwo"),
    good=_claim("ReadOnlyMany", "regional-rwo"),
)
def zonal_disk(obj: Object, context: Context) -> Iterator[Hit]:
    storage_class = obj.spec.get("storageClassName")
    if obj.namespace in ("training", "batch") and storage_class in ZONAL_CLASSES:
        yield Hit(("spec", "storageClassName"), f"{storage_class} makes a disk in one zone")


def _scratch(size: str) -> str:
    return f"""\
volumes: [{{name: tmp, emptyDir: {{sizeLimit: {size}}}}}]
containers:
- name: main
  image: registry.example/trainer:1.4
  resources: {{limits: {{memory: 8Gi, ephemeral-storage: 4Gi, nvidia.com/gpu: 1}}}}
  volumeMounts: [{{name: tmp, mountPath: /tmp}}]
"""


@rule(
    "HF207",
    "scratch-above-limit",
    Severity.WARNING,
    on=Pod,
    what=(
        "An emptyDir may hold more than the pod's limit of ephemeral storage, or of memory for"
        " a folder in memory."
    ),
    why=(
        "The kubelet evicts the pod when all that it wrote exceeds the limit, before the folder is"
        " full. A folder in memory counts as the memory of the containers: the kernel kills them."
    ),
    source="https://kubernetes.io/docs/concepts/storage/ephemeral-storage/",
    fix="raise the limit above the sizeLimit",
    base="job-pod",
    bad=_scratch("50Gi"),
    good=_scratch("1Gi"),
)
def scratch_above_limit(pod: Pod, context: Context) -> Iterator[Hit]:
    for path, volume in _volumes(pod).values():
        in_memory = dig(volume, "emptyDir", "medium") == "Memory"
        resource = "memory" if in_memory else "ephemeral-storage"
        limits = [quantity(container.limit(resource)) for container in pod.main_containers]
        # GKE adds the sidecar of FUSE with the limits of annotations.
        if f"{_SIDECAR_LIMITS}{resource}-limit" in pod.annotations:
            limits.append(quantity(pod.annotations[f"{_SIDECAR_LIMITS}{resource}-limit"]))
        limit = sum(filter(None, limits))
        size = quantity(dig(volume, "emptyDir", "sizeLimit")) or 0.0
        if all(limits) and size > limit:
            message = f"holds {size / GIB:g} GiB, the pod has {limit / GIB:g} GiB of {resource}"
            yield Hit((*path, "emptyDir", "sizeLimit"), message)
