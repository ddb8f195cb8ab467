"""HF813 to HF816: settings of drivers and disks, and machines that cannot use them.

Why it is so: infra/decisions/0200.
"""

import re
from collections.abc import Iterator
from typing import Any

from holdfast.lint.document import Path
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.folders import list_mount_options
from holdfast.lint.known_values import load_table
from holdfast.lint.objects import Container, Object, Pod, as_list, as_map, as_text, dig
from holdfast.lint.registry import Context, rule
from holdfast.lint.spelling import find_near

DOC_CLASSES = (
    "https://cloud.google.com/kubernetes-engine/docs/how-to/persistent-volumes/gce-pd-csi-driver"
)
DOC_FUSE = (
    "https://cloud.google.com/kubernetes-engine/docs/how-to/cloud-storage-fuse-csi-driver-perf"
)
DOC_HYPERDISK = "https://cloud.google.com/kubernetes-engine/docs/concepts/hyperdisk"
DOC_GPUS = "https://developer.nvidia.com/cuda-gpus"
_NEAR = 0.75
_ACCELERATOR = "cloud.google.com/gke-accelerator"
_FAMILY = "cloud.google.com/machine-family"
_MACHINE = "node.kubernetes.io/instance-type"
_BFLOAT = re.compile(
    r"(?:^|\s)--(?:bf16|dtype[= ]bfloat16|mixed[-_]precision[= ]bf16)(?![\w=])"
    r"|(?:^|\s)--bf16[= ]true(?!\w)",
    re.IGNORECASE,
)
_FLASH = re.compile(r"flash_attention_2|flash-attn|--use[-_]flash[-_]attn", re.IGNORECASE)
_CUDA = re.compile(r"(?:cuda|cu)(\d{2})\.?(\d)", re.IGNORECASE)
_DISK_OF_CLASS = {"standard": "pd-standard", "standard-rwo": "pd-balanced", "premium-rwo": "pd-ssd"}


def _write_class(parameters: str) -> str:
    return f"""\
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata:
  name: fast
provisioner: pd.csi.storage.gke.io
volumeBindingMode: WaitForFirstConsumer
parameters:
  {parameters}
"""


@rule(
    "HF813",
    "setting-of-no-driver",
    Severity.ERROR,
    on=Object,
    what="A class, a volume or a mount has a setting that its driver does not know.",
    why="The driver refuses the volume, or makes one with its defaults.",
    source=DOC_CLASSES,
    fix="use the names and values of the driver's page",
    bad=_write_class("disk-type: pd-ssd"),
    good=_write_class("type: pd-ssd"),
)
def check_settings(obj: Object, context: Context) -> Iterator[Hit]:
    if obj.kind == "StorageClass":
        driver = as_text(obj.body.get("provisioner"))
        yield from _check_driver(("provisioner",), driver)
        parameters = as_map(obj.body.get("parameters"))
        yield from _check_names(("parameters",), parameters, f"class:{driver}")
    if obj.kind == "PersistentVolume":
        yield from _check_source(("spec", "csi"), as_map(obj.spec.get("csi")))
        handle = as_text(dig(obj.spec, "csi", "volumeHandle"))
        pattern = load_table("handles").get(as_text(dig(obj.spec, "csi", "driver")))
        is_given = not handle or handle.isupper() or any(mark in handle for mark in "$<{")
        if pattern and not is_given and not re.fullmatch(pattern, handle[:300]):
            yield Hit(("spec", "csi", "volumeHandle"), f"{handle} is no handle of this driver")
    for pod in obj.pods:
        for path, volume in pod.volumes:
            yield from _check_source((*path, "csi"), as_map(volume.get("csi")))
            yield from _check_bucket(path, volume)
    for path, claim in obj.claims:
        source = as_map(claim.get("dataSource"))
        if source.get("kind") == "VolumeSnapshot" and not source.get("apiGroup"):
            message = "a VolumeSnapshot is of snapshot.storage.k8s.io"
            yield Hit((*path, "dataSource"), message)


def _check_driver(path: Path, driver: str) -> Iterator[Hit]:
    drivers = load_table("drivers")["names"]
    near_driver = "" if driver in drivers else find_near(driver, drivers, _NEAR)
    if near_driver:
        yield Hit(path, f"no driver {driver}; did you mean {near_driver}?")


def _check_source(path: Path, source: dict[str, Any]) -> Iterator[Hit]:
    if source:
        driver = as_text(source.get("driver"))
        yield from _check_driver((*path, "driver"), driver)
        settings = as_map(source.get("volumeAttributes"))
        yield from _check_names((*path, "volumeAttributes"), settings, driver)


def _check_names(path: Path, settings: dict[str, Any], driver: str) -> Iterator[Hit]:
    table = as_map(load_table("driver_settings").get(driver))
    for key, value in settings.items() if table else ():
        name = str(key)
        if name.startswith("csi.storage.k8s.io/"):
            continue
        if name not in table:
            near_name = find_near(name, table, 0.6)
            hint = f"; did you mean {near_name}?" if near_name else ""
            if near_name or driver.startswith("class:"):
                yield Hit((*path, name), f"the driver reads no {name}{hint}", on_key=True)
        elif table[name] and not re.fullmatch(table[name], str(value)[:300]):
            yield Hit((*path, name), f"{name} takes {table[name]}, and is {value}")


def _check_bucket(path: Path, volume: dict[str, Any]) -> Iterator[Hit]:
    names = load_table("fuse")["volumes"]
    name = as_text(volume.get("name"))
    if name.startswith("gke-gcsfuse") and name not in names:
        message = f"the sidecar takes no volume {name}; it takes {', '.join(names)}"
        yield Hit((*path, "name"), message)
    place = (*path, "csi", "volumeAttributes", "mountOptions")
    for option in list_mount_options(volume):
        key, mark, value = option.replace("=", ":", 1).partition(":")
        if key == "only-dir" and value.startswith("/"):
            yield Hit(place, f"only-dir is {value}: no folder of a bucket begins with /")
        known_keys = load_table("fuse")["groups"].get(key)
        part = value.partition(":")[0]
        if mark and known_keys and part not in known_keys:
            near_key = find_near(part, known_keys, 0.7)
            hint = f"; did you mean {near_key}?" if near_key else ""
            if near_key:
                yield Hit(place, f"{key} has no {part}{hint}")


def _write_disk(family: str) -> str:
    return f"""\
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: data
  namespace: research
spec:
  storageClassName: premium-rwo
  accessModes:
  - ReadWriteOnce
  resources:
    requests:
      storage: 100Gi
---
apiVersion: v1
kind: Pod
metadata:
  name: a
  namespace: research
spec:
  nodeSelector:
    {_FAMILY}: {family}
  volumes:
  - name: data
    persistentVolumeClaim:
      claimName: data
  containers:
  - name: main
    image: registry.example/prepare:1.4
    volumeMounts:
    - name: data
      mountPath: /data
"""


@rule(
    "HF814",
    "disk-of-another-machine",
    Severity.ERROR,
    on=Pod,
    what="A pod has a disk of a type that the machines which it selects cannot attach.",
    why="The disk is made and never attached: the pod stays in ContainerCreating.",
    source=DOC_HYPERDISK,
    fix="use a class of type hyperdisk-balanced for these machines",
    bad=_write_disk("c4"),
    good=_write_disk("n2"),
)
def check_disks(pod: Pod, context: Context) -> Iterator[Hit]:
    selector = as_map(pod.spec.get("nodeSelector"))
    machine = as_text(selector.get(_MACHINE))
    family = as_text(selector.get(_FAMILY)) or machine.partition("-")[0]
    if family not in load_table("disks")["hyperdisk_families"]:
        return
    for path, name in _list_classes(pod, context):
        storage = context.index.find("StorageClass", name)
        disk = as_text(dig(storage.body, "parameters", "type")) if storage else ""
        disk = disk or _DISK_OF_CLASS.get(name, "")
        if disk.startswith("pd-"):
            yield Hit(path, f"{name} makes {disk}, and {family} takes Hyperdisk only")


def _list_classes(pod: Pod, context: Context) -> Iterator[tuple[Path, str]]:
    """Yields the storage classes of a pod's claims, each with a place of the pod's object."""
    for path, claim in pod.owner.claims:
        yield (*path, "storageClassName"), as_text(claim.get("storageClassName"))
    for path, volume in pod.volumes:
        name = as_text(dig(volume, "persistentVolumeClaim", "claimName"))
        claim = context.index.find("PersistentVolumeClaim", name, pod.owner.namespace)
        if name and claim:
            yield path, as_text(claim.spec.get("storageClassName"))


def _write_claim(name: str) -> str:
    return f"""\
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata:
  name: fast
provisioner: pd.csi.storage.gke.io
volumeBindingMode: WaitForFirstConsumer
parameters:
  type: pd-ssd
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: data
  namespace: research
spec:
  storageClassName: {name}
  accessModes:
  - ReadWriteOnce
  resources:
    requests:
      storage: 100Gi
"""


@rule(
    "HF833",
    "storage-class-unknown",
    Severity.ERROR,
    on=Object,
    what="A claim names a storage class that is none of GKE's, and its file has another one.",
    why="The claim stays Pending, and so do its pods.",
    source=DOC_CLASSES,
    fix="write the name of the class",
    bad=_write_claim("fast-ssd"),
    good=_write_claim("fast"),
)
def check_class_names(obj: Object, context: Context) -> Iterator[Hit]:
    classes = context.index.by_kind.get("StorageClass", [])
    near_names = [item.name for item in classes if item.file == obj.file]
    known_names = {item.name for item in classes} | set(load_table("drivers")["classes"])
    for path, claim in obj.claims if near_names else ():
        name = as_text(claim.get("storageClassName"))
        if name and name not in known_names and not claim.get("volumeName"):
            message = f"no class {name}; its file has {', '.join(near_names)}"
            yield Hit((*path, "storageClassName"), message)


def _serve_on(accelerator: str) -> str:
    return f"""\
apiVersion: v1
kind: Pod
metadata:
  name: chat
  namespace: research
spec:
  nodeSelector:
    {_ACCELERATOR}: {accelerator}
    cloud.google.com/gke-gpu-driver-version: latest
  containers:
  - name: main
    image: registry.example/chat:1.4
    command:
    - python
    - -m
    - chat
    - --dtype=bfloat16
    resources:
      limits:
        memory: 24Gi
        nvidia.com/gpu: 1
"""


@rule(
    "HF815",
    "precision-of-another-gpu",
    Severity.ERROR,
    on=Pod,
    what="A program uses bfloat16 or FlashAttention 2 on a GPU that has neither.",
    why="It ends at its start: both need an A100, an L4 or a newer GPU.",
    source=DOC_GPUS,
    fix="--dtype=half and another attention, or a newer GPU",
    bad=_serve_on("nvidia-tesla-t4"),
    good=_serve_on("nvidia-l4"),
)
def check_precisions(pod: Pod, context: Context) -> Iterator[Hit]:
    accelerator = as_text(dig(pod.spec, "nodeSelector", _ACCELERATOR))
    if accelerator not in load_table("old_gpus")["names"]:
        return
    for container in pod.main_containers:
        text = " ".join(container.words)[:20_000]
        backend = as_text(container.env.get("VLLM_ATTENTION_BACKEND"))
        if _BFLOAT.search(text):
            yield Hit(container.command_path, f"{accelerator} has no bfloat16")
        if _FLASH.search(text) or backend == "FLASH_ATTN":
            yield Hit(container.command_path, f"{accelerator} has no FlashAttention 2")


def _write_image(tag: str) -> str:
    return f"""\
apiVersion: v1
kind: Pod
metadata:
  name: train
  namespace: research
spec:
  nodeSelector:
    {_ACCELERATOR}: nvidia-l4
    cloud.google.com/gke-gpu-driver-version: latest
  containers:
  - name: main
    image: pytorch/pytorch:{tag}
    command:
    - python
    - -m
    - torch.utils.collect_env
    resources:
      limits:
        memory: 24Gi
        nvidia.com/gpu: 1
"""


@rule(
    "HF816",
    "cuda-older-than-the-gpu",
    Severity.ERROR,
    on=Pod,
    what="An image has a version of CUDA that is older than the GPU which the pod selects.",
    why="Its libraries have no code for the GPU: no kernel image is available.",
    source=DOC_GPUS,
    fix="use an image with CUDA 11.8 for H100 and 12.8 for B200, or newer",
    bad=_write_image("1.5.1-cuda10.2-cudnn7-runtime"),
    good=_write_image("2.5.1-cuda12.4-cudnn9-runtime"),
)
def check_cuda(pod: Pod, context: Context) -> Iterator[Hit]:
    accelerator = as_text(dig(pod.spec, "nodeSelector", _ACCELERATOR))
    first_version = as_list(load_table("cuda").get(accelerator))
    for container in pod.containers if first_version else ():
        match = _CUDA.search(_get_tag(container)) if container.gpus else None
        if match and [int(match[1]), int(match[2])] < first_version:
            version = f"{match[1]}.{match[2]}"
            message = f"CUDA {version}, and {accelerator} needs {_join(first_version)}"
            yield Hit((*container.path, "image"), message)


def _join(version: list[int]) -> str:
    return ".".join(map(str, version))


def _get_tag(container: Container) -> str:
    image = as_text(container.body.get("image"))[:500].partition("@")[0]
    return image.rpartition("/")[2]
