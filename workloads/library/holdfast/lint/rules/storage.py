"""HF2xx: where a pod keeps data, and whether the data survives an eviction."""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from holdfast.lint.document import Path
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.objects import Container, Object, Pod, as_list, as_map, as_text, dig
from holdfast.lint.registry import Context, rule
from holdfast.support.values import quantity
from holdfast.vocabulary.kubernetes import FUSE_DRIVER

DOC_VOLUMES = "https://kubernetes.io/docs/concepts/storage/volumes/"
DOC_FUSE = (
    "https://cloud.google.com/kubernetes-engine/docs/how-to/cloud-storage-fuse-csi-driver-setup"
)
_CHECKPOINT = re.compile(r"check.?points?|ckpts?", re.IGNORECASE)
_FOLDER_OPTION = re.compile(r"(checkpoints|ckpts|[-_](dir|directory|path|folder))$", re.IGNORECASE)
_RELATIVE = re.compile(r"[A-Za-z_][\w.-]*(/[\w.-]+)*/?")
_OUTPUTS = ("--output_dir", "--output-dir")
_IN_LAYER = ("./", "../", "~")  # nothing expands ~ in the arguments of a container
_LOCAL_SSD = re.compile(r"^/mnt/(disks|stateful_partition)|local-?ssd|nvme", re.IGNORECASE)
_FUSE = "{driver: gcsfuse.csi.storage.gke.io, readOnly: true, volumeAttributes: {bucketName: b}}"


def _volumes(pod: Pod) -> dict[str, tuple[Path, dict[str, Any]]]:
    listed = enumerate(as_list(pod.spec.get("volumes")))
    return {as_text(dig(v, "name")): ((*pod.at, "volumes", i), as_map(v)) for i, v in listed}


def _checkpoint_paths(
    container: Container, *, for_outputs: bool = False
) -> Iterator[tuple[str, Path]]:
    """Folders in which a container keeps checkpoints, with the place that names them.

    `for_outputs`: also the folder into which trainers of Hugging Face write checkpoints.
    """
    for index, item in enumerate(as_list(container.body.get("env"))):
        name = as_text(dig(item, "name"))
        value = as_text(dig(item, "value"))
        if _CHECKPOINT.search(name) and value.startswith(("/", "file:", *_IN_LAYER)):
            yield value.removeprefix("file://"), (*container.path, "env", index, "value")
    for key in ("command", "args"):
        words = [str(w) for w in as_list(container.body.get(key))]
        for index, (flag, value) in enumerate(pairwise([*words, ""])):
            name, equals, given = flag.partition("=")
            path = given if equals else value
            relative = _is_folder(name, path) and not container.body.get("workingDir")
            named = _CHECKPOINT.search(name) or (for_outputs and name in _OUTPUTS)
            if name.startswith("--") and named and (path.startswith("/") or relative):
                yield path, (*container.path, key, index if equals else index + 1)
    for index, mount in enumerate(as_list(container.body.get("volumeMounts"))):
        if _CHECKPOINT.search(as_text(dig(mount, "name")) + as_text(dig(mount, "mountPath"))):
            yield (
                as_text(dig(mount, "mountPath")),
                (*container.path, "volumeMounts", index, "mountPath"),
            )


def _is_folder(name: str, value: str) -> bool:
    """A relative path, given to an option for a folder; a model's name or a number is none."""
    if value.startswith(_IN_LAYER):
        return True
    return (
        bool(_FOLDER_OPTION.search(name) and _RELATIVE.fullmatch(value[:200]))
        and not value.isdecimal()
    )


def _volume_of(container: Container, path: str) -> dict[str, Any] | None:
    """The volume whose mount holds `path`; None means the container's own layer."""
    inside = []
    for m in container.mounts:
        if m and (path == m or path.startswith(m.rstrip("/") + "/")):
            inside.append(m)
    if inside:
        return _volumes(container.pod).get(container.mounts[max(inside, key=len)], ((), {}))[1]
    return None


@rule(
    "HF201",
    "checkpoint-on-lost-disk",
    Severity.ERROR,
    on=Pod,
    what=(
        "Checkpoints go to a disk that ends with the pod or the node: emptyDir, hostPath, local"
        " SSD, own layer."
    ),
    why="After an eviction another node starts with an empty disk, and the run starts at step 0.",
    source=DOC_VOLUMES,
    fix="write to a bucket: --checkpoints gs://BUCKET/PREFIX",
    base="container",
    bad="command: [python, -m, trainer, --checkpoints, /checkpoints]",
    good="command: [python, -m, trainer, --checkpoints, gs://bucket/runs]",
)
def checkpoint_on_lost_disk(pod: Pod, context: Context) -> Iterator[Hit]:
    trains = pod.job is not None and context.place(pod).interruptible
    for container in pod.containers:
        for path, at in _checkpoint_paths(container, for_outputs=trains):
            lost = _loss(path, _volume_of(container, path))
            if lost:
                yield Hit(at, f"{path} is {lost}")


def _loss(path: str, volume: dict[str, Any] | None) -> str:
    """What the path is, where that is lost; empty where it is kept."""
    if not path.startswith("/"):
        return "relative: the container's own layer"
    if volume is None:
        return "the container's own layer"
    if "hostPath" in volume:
        local = _LOCAL_SSD.search(as_text(dig(volume, "hostPath", "path")))
        return f"{'a local SSD' if local else 'a disk'} of the node, lost with it"
    if "emptyDir" in volume:
        kind = "an emptyDir"
    else:
        kind = "an ephemeral volume" if "ephemeral" in volume else ""
    return kind and f"{kind}, deleted with the pod"


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
    for container in pod.containers:
        for path, at in _checkpoint_paths(container):
            volume = _volume_of(container, path)
            if FUSE_DRIVER in (dig(volume, "csi", "driver"), _claimed_driver(volume, pod, context)):
                yield Hit(at, f"{path} is a bucket through FUSE")


def _claim(access: str, storage_class: str) -> str:
    """A claim, and a Job of two pods that use it."""
    return f"""\
spec: {{template: {{spec: {{volumes: [{{name: data, persistentVolumeClaim: {{claimName: data}}}}]}}}}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: data, namespace: training}}
spec: {{accessModes: [{access}], storageClassName: {storage_class}, resources: {{requests: {{storage: 10Gi}}}}}}
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
    for at, volume in _volumes(pod).values() if pod.replicas > 1 else []:
        claim = _claim_of(volume, pod, context)
        modes = as_list(claim.spec.get("accessModes")) if claim else []
        if claim and modes and all(mode in ("ReadWriteOnce", "ReadWriteOncePod") for mode in modes):
            message = f"{pod.replicas} pods share {claim.name}, which is {modes[0]}"
            yield Hit((*at, "persistentVolumeClaim", "claimName"), message)


def _claim_of(volume: dict[str, Any] | None, pod: Pod, context: Context) -> Object | None:
    name = as_text(dig(volume, "persistentVolumeClaim", "claimName"))
    if name:
        return context.world.named("PersistentVolumeClaim", name, pod.owner.namespace)
    return None


def _claimed_driver(volume: dict[str, Any] | None, pod: Pod, context: Context) -> str:
    """The CSI driver of the volume that a claim names; empty where the files do not show it."""
    claim = _claim_of(volume, pod, context)
    if claim:
        bound = context.world.named("PersistentVolume", as_text(claim.spec.get("volumeName")))
    else:
        bound = None
    return as_text(dig(bound.spec, "csi", "driver")) if bound else ""


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
    bad=f"spec: {{volumes: [{{name: data, csi: {_FUSE}}}]}}",
    good=(
        'metadata: {annotations: {gke-gcsfuse/volumes: "true"}}\n'
        f"spec: {{volumes: [{{name: data, csi: {_FUSE}}}]}}"
    ),
)
def fuse_without_annotation(pod: Pod, context: Context) -> Iterator[Hit]:
    if str(pod.annotations.get("gke-gcsfuse/volumes")).lower() == "true":
        return
    for at, volume in _volumes(pod).values():
        if dig(volume, "csi", "driver") == FUSE_DRIVER:
            yield Hit((*at, "csi"), "no sidecar will mount this volume")
        if _claimed_driver(volume, pod, context) == FUSE_DRIVER:
            yield Hit(
                (*at, "persistentVolumeClaim"), "no sidecar will mount this bucket through FUSE"
            )


@rule(
    "HF206",
    "zonal-disk-on-spot",
    Severity.WARNING,
    on=Object,
    kinds=("PersistentVolumeClaim",),
    what="A claim on a zonal disk class for work that moves between zones.",
    why="A zonal disk ties its pod to one zone, and Spot capacity moves between zones.",
    source="https://cloud.google.com/kubernetes-engine/docs/how-to/persistent-volumes/regional-pd",
    fix="use a regional disk class, or a bucket",
    base="job",
    bad=_claim("ReadOnlyMany", "standard-rwo"),
    good=_claim("ReadOnlyMany", "regional-rwo"),
)
def zonal_disk(obj: Object, context: Context) -> Iterator[Hit]:
    disk = obj.spec.get("storageClassName")
    if obj.namespace in ("training", "batch") and disk in (
        "standard",
        "standard-rwo",
        "premium-rwo",
    ):
        yield Hit(("spec", "storageClassName"), f"{disk} makes a disk in one zone")


@rule(
    "HF207",
    "scratch-above-limit",
    Severity.WARNING,
    on=Pod,
    what=(
        "An emptyDir may hold more than the pod's limit of ephemeral storage, or of memory where it"
        " is in memory."
    ),
    why=(
        "The kubelet evicts the pod when all that it wrote exceeds the limit, before the folder is"
        " full. A folder in memory counts as the memory of the containers: the kernel kills them."
    ),
    source="https://kubernetes.io/docs/concepts/storage/ephemeral-storage/",
    fix="raise the limit above the sizeLimit",
    base="job-pod",
    bad="volumes: [{name: tmp, emptyDir: {sizeLimit: 50Gi}}]",
    good="volumes: [{name: tmp, emptyDir: {sizeLimit: 1Gi}}]",
)
def scratch_above_limit(pod: Pod, context: Context) -> Iterator[Hit]:
    for at, volume in _volumes(pod).values():
        if dig(volume, "emptyDir", "medium") == "Memory":
            resource = "memory"
        else:
            resource = "ephemeral-storage"
        limits = [quantity(c.limit(resource)) for c in pod.containers if "containers" in c.path]
        most = sum(filter(None, limits))
        size = quantity(dig(volume, "emptyDir", "sizeLimit")) or 0.0
        if all(limits) and size > most:
            message = f"holds {size / 2**30:g} GiB, the pod has {most / 2**30:g} GiB of {resource}"
            yield Hit((*at, "emptyDir", "sizeLimit"), message)
