"""HF208 to HF214: volumes that are not where the program looks, or cannot be made."""

import re
from collections.abc import Iterator
from typing import Any

from holdfast.lint.document import Path
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.folders import list_mount_options
from holdfast.lint.known_values import load_table
from holdfast.lint.objects import Container, Object, Pod, as_list, as_map, as_text, as_texts, dig
from holdfast.lint.registry import Context, rule
from holdfast.lint.rules.storage import ONE_NODE_MODES, ZONAL_CLASSES
from holdfast.lint.spelling import count_differences, find_near, misspells
from holdfast.vocabulary.kubernetes import FUSE_DRIVER

DOC_MODES = "https://cloud.google.com/kubernetes-engine/docs/concepts/persistent-volumes"
DOC_FUSE = (
    "https://cloud.google.com/kubernetes-engine/docs/how-to/cloud-storage-fuse-csi-driver-setup"
)
_SHM = re.compile(r"^(d?shm|dev-shm|shared?-memory|shmem)$")
_SHM_PATH = "/dev/shm"
# Classes of GKE, and those of disks, which one node at a time can write.
_DISK_CLASSES = (*ZONAL_CLASSES, "regional-rwo")
_CLASSES = (
    *("standard", "standard-rwo", "premium-rwo", "standard-rwx", "premium-rwx", "enterprise-rwx"),
    *("enterprise-multishare-rwx", "zonal-rwx", "regional-rwx", "parallelstore-rwx"),
)
_DISK_DRIVER = "pd.csi.storage.gke.io"
_FOLDER_VARIABLE = re.compile(
    r"(_HOME|_CACHE|_CACHE_DIR|_DIR|_ROOT|CACHE_HOME|TMPDIR|_PATH|_FOLDER|_MODELS)$"
)
_FOLDER_OPTION = re.compile(
    r"--?[\w-]*(dir|directory|path|folder|root|cache|out|output|data|dataset|download-dir|model|model-id|repository|weights|tmp|scratch|pool)$"
)
_WRITES = re.compile(r"(HOME|CACHE|TMP|OUT|LOG|WANDB_DIR|CHECKPOINT|_MODELS)")
# Caches that may hold what was downloaded beforehand.
_READ_TOO = ("HF_HOME", "HF_HUB_CACHE", "TRANSFORMERS_CACHE", "HUGGINGFACE_HUB_CACHE")
_PLACEHOLDER = re.compile(r"[$<{]|^[A-Z][A-Z0-9_]+$|[A-Z]_[A-Z]")
_OUTPUT_OPTION = re.compile(
    r"--(out|output|results?|save|log|logs|logging|cache|tmp|work|tensorboard|profile|export)"
    r"([-_](dir|directory|path|folder|root|file))?"
)
# Folders that a trainer writes and a server reads.
_CHECKPOINT_OPTION = re.compile(r"--(checkpoints?|ckpts?)([-_]?(dir|directory|path|folder|root))?")
_SAVES = re.compile(r"--save[-_\w]*|--(checkpoint|ckpt)[-_](every|interval|freq\w*|steps)")
_READ_ONLY_SOURCES = ("configMap", "secret", "projected", "downwardAPI", "image")
_DATA_OPTION = re.compile(
    r"--(train|eval|work|hf)?[-_]?(data|dataset|datasets|input|inputs|corpus|scratch|cache|model"
    r"|models|weights|index|tmp)([-_](id|dir|directory|path|folder|root|repository|store|base))?"
)
_BROUGHT = {"csi", "emptyDir", "ephemeral", "persistentVolumeClaim"}
_ELSEWHERE = ("/", "/tmp", "/dev/null")
_BUCKET = re.compile(r"[a-z0-9]([a-z0-9._-]{0,220}[a-z0-9])?|_")


def _write_mount(path: str) -> str:
    return f"""\
volumes: [{{name: shm, emptyDir: {{medium: Memory, sizeLimit: 1Gi}}}}]
containers:
- name: main
  image: train
  resources: {{limits: {{nvidia.com/gpu: 1, memory: 8Gi}}}}
  volumeMounts: [{{name: shm, mountPath: {path}}}]
"""


@rule(
    "HF208",
    "shared-memory-elsewhere",
    Severity.ERROR,
    on=Pod,
    what="A folder in memory for shared memory is not mounted at /dev/shm.",
    why="/dev/shm then has 64 MiB: loaders of data and NCCL end with a bus error.",
    source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
    fix=f"mountPath: {_SHM_PATH}",
    base="job-pod",
    bad=_write_mount("/shm"),
    good=_write_mount("/dev/shm"),
)
def place_shared_memory(pod: Pod, context: Context) -> Iterator[Hit]:
    folders: set[str] = set()
    for path, volume in pod.volumes:
        name = as_text(volume.get("name"))
        folder = volume.get("emptyDir")
        if not isinstance(folder, dict):
            continue
        if _SHM.fullmatch(name[:60]):
            folders.add(name)
            if folder.get("medium") != "Memory":
                message = f"{name} is on the disk; shared memory needs medium: Memory"
                yield Hit((*path, "emptyDir"), message)
    for container in pod.containers:
        for path, mount in container.mounts:
            place = as_text(mount.get("mountPath")).rstrip("/")
            if as_text(mount.get("name")) in folders and place not in (_SHM_PATH, "/run/shm"):
                message = f"shared memory is at {place}, and programs use {_SHM_PATH}"
                yield Hit((*path, "mountPath"), message)


def _claim(mode: str, storage_class: str) -> str:
    return f"""\
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: data, namespace: serving}}
spec:
  accessModes: [{mode}]
  storageClassName: {storage_class}
  resources: {{requests: {{storage: 1Ti}}}}
"""


@rule(
    "HF209",
    "class-cannot-make-it",
    Severity.ERROR,
    on=Object,
    kinds=("PersistentVolumeClaim", "StatefulSet"),
    what="A claim asks a storage class for a mode that its disks do not have, or names no class.",
    why="Nothing is provisioned: the pods of the claim stay Pending.",
    source=DOC_MODES,
    fix="ReadWriteOnce on disks; a class of Filestore (standard-rwx) or a bucket for many nodes",
    bad=_claim("ReadWriteMany", "premium-rwo"),
    good=_claim("ReadWriteMany", "standard-rwx"),
)
def class_cannot_make_it(obj: Object, context: Context) -> Iterator[Hit]:
    for path, spec in obj.claims:
        name = as_text(spec.get("storageClassName"))
        modes = as_list(spec.get("accessModes"))
        if "accessModes" not in spec:
            yield Hit(path, "has no accessModes: the API server refuses it")
        if dig(spec, "resources", "requests", "storage") is None and not spec.get("volumeName"):
            yield Hit(path, "requests no storage: the API server refuses it")
        own_class = context.index.find("StorageClass", name)
        is_disk = name in _DISK_CLASSES
        if own_class:
            is_disk = own_class.body.get("provisioner") == _DISK_DRIVER
        is_many = "ReadWriteMany" in modes and spec.get("volumeMode") != "Block"
        if is_disk and is_many and not spec.get("volumeName"):
            yield Hit((*path, "storageClassName"), f"disks of {name} are not ReadWriteMany")
        if name and not own_class and name not in (*_CLASSES, *_DISK_CLASSES):
            class_names = context.index.list_names("StorageClass")
            near_name = find_near(name, [*_CLASSES, *class_names], 0.8)
            if near_name:
                message = f"no storage class {name}; did you mean {near_name}?"
                yield Hit((*path, "storageClassName"), message)


def _volume(handle: str) -> str:
    return f"""\
apiVersion: v1
kind: PersistentVolume
metadata: {{name: data}}
spec:
  accessModes: [ReadOnlyMany]
  capacity: {{storage: 1Ti}}
  csi: {{driver: {FUSE_DRIVER}, volumeHandle: '{handle}'}}
"""


def _fuse(attributes: str, driver: str = FUSE_DRIVER) -> str:
    return f"""\
metadata: {{annotations: {{gke-gcsfuse/volumes: "true"}}}}
spec:
  volumes: [{{name: data, csi: {{driver: {driver}, volumeAttributes: {attributes}}}}}]
  containers:
  - name: main
    image: train
    resources: {{limits: {{nvidia.com/gpu: 1}}}}
    volumeMounts: [{{name: data, mountPath: /data, readOnly: true}}]
"""


@rule(
    "HF210",
    "bucket-named-wrong",
    Severity.ERROR,
    on=Pod,
    what="A Cloud Storage FUSE volume has no bucket's name, or the driver's name is misspelt.",
    why="The mount fails, and the pod stays in ContainerCreating.",
    source=DOC_FUSE,
    fix="volumeAttributes: {bucketName: NAME}, without gs://; a folder by only-dir",
    base="job-template",
    bad=_fuse("{bucketName: 'gs://data'}"),
    good=_fuse("{bucketName: data}"),
)
def bucket_named_wrong(pod: Pod, context: Context) -> Iterator[Hit]:
    for volume_path, volume in pod.volumes:
        path = (*volume_path, "csi")
        driver = as_text(dig(volume, "csi", "driver"))
        if driver != FUSE_DRIVER:
            if driver.startswith("gcsfuse") or misspells(driver, FUSE_DRIVER):
                yield Hit((*path, "driver"), f"no driver {driver}; did you mean {FUSE_DRIVER}?")
            continue
        attributes = as_map(dig(volume, "csi", "volumeAttributes"))
        bucket = as_text(attributes.get("bucketName"))
        if not bucket:
            keys = ", ".join(attributes) or "nothing"
            yield Hit((*path, "volumeAttributes"), f"has no bucketName; it has {keys}")
        elif not _PLACEHOLDER.search(bucket) and not _BUCKET.fullmatch(bucket[:300]):
            message = f"{bucket} is no name of a bucket: no gs:// and no folder"
            yield Hit((*path, "volumeAttributes", "bucketName"), message)
        options = as_text(attributes.get("mountOptions"))
        if " " in options.strip() or "://" in options:
            message = "options are NAME or NAME=VALUE, joined by commas without spaces or URLs"
            yield Hit((*path, "volumeAttributes", "mountOptions"), message)
        for option in re.split(r"[,\s]+", options[:2_000]):
            name = option.partition("=")[0]
            known_options = load_table("fuse")["options"]
            section, _, setting = name.partition(":")
            if setting:
                name = section
            if name in known_options:
                continue
            dashed_name = name.replace("_", "-")
            near_option = find_near(dashed_name, known_options, 0.8)
            if near_option and count_differences(dashed_name, near_option) <= 2:
                message = f"no option {option}; did you mean {near_option}?"
                yield Hit((*path, "volumeAttributes", "mountOptions"), message)


@rule(
    "HF214",
    "volume-of-no-bucket",
    Severity.ERROR,
    on=Object,
    kinds=("PersistentVolume",),
    what="A PersistentVolume of Cloud Storage FUSE has no bucket's name as its handle.",
    why="The mount fails, and the pods of its claim stay in ContainerCreating.",
    source=DOC_FUSE,
    fix="volumeHandle: NAME, without gs://",
    bad=_volume("gs://data"),
    good=_volume("data"),
)
def require_bucket_handle(obj: Object, context: Context) -> Iterator[Hit]:
    handle = as_text(dig(obj.spec, "csi", "volumeHandle"))
    if dig(obj.spec, "csi", "driver") != FUSE_DRIVER or _PLACEHOLDER.search(handle):
        return
    if not _BUCKET.fullmatch(handle[:300]):
        message = f"{handle or 'nothing'} is no name of a bucket: no gs:// and no folder"
        yield Hit(("spec", "csi", "volumeHandle"), message)


def _folder(path: str, *, read_only: bool = False) -> str:
    mount = f"{{name: cache, mountPath: /cache, readOnly: {str(read_only).lower()}}}"
    return f"""\
volumes: [{{name: cache, emptyDir: {{sizeLimit: 1Gi}}}}]
containers:
- name: main
  image: train
  env: [{{name: HF_HOME, value: {path}}}]
  securityContext: {{readOnlyRootFilesystem: true}}
  resources: {{limits: {{nvidia.com/gpu: 1, ephemeral-storage: 4Gi}}}}
  volumeMounts: [{mount}]
"""


@rule(
    "HF211",
    "folder-not-writable",
    Severity.ERROR,
    on=Pod,
    what="A variable names a folder for files that is on no mount, or on a read-only one.",
    why="The root file system of the container is read-only: the program ends at its first write.",
    source="https://kubernetes.io/docs/tasks/configure-pod-container/security-context/",
    fix="mount a volume there, or name a folder of a mount",
    base="job-pod",
    bad=_folder("/root/hf"),
    good=_folder("/cache/hf"),
)
def folder_not_writable(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers:
        is_read_only = dig(container.body, "securityContext", "readOnlyRootFilesystem") is True
        for path, name, folder in container.variables:
            is_written = _FOLDER_VARIABLE.search(name) and _WRITES.search(name)
            if not is_written or not folder.startswith("/"):
                continue
            mount = _find_mount(container, folder)
            if mount is None and is_read_only:
                yield Hit(path, f"{folder} is on no mount, and the root is read-only")
            elif mount and _is_read_only(container, mount) and name not in _READ_TOO:
                yield Hit(path, f"{folder} is on a read-only mount")
        for path, folder in _list_outputs(container):
            mount = _find_mount(container, folder)
            if mount is None and is_read_only:
                yield Hit(path, f"{folder} is on no mount, and the root is read-only")
            elif mount and _is_read_only(container, mount):
                yield Hit(path, f"{folder} is on a read-only mount")


def _is_read_only(container: Container, mount: dict[str, Any]) -> bool:
    """Returns whether a mount, or the volume that it mounts, takes no writes."""
    flags = [mount.get("readOnly")]
    for _, volume in container.pod.volumes:
        if volume.get("name") == mount.get("name"):
            flags.append(dig(volume, "persistentVolumeClaim", "readOnly"))
            flags.append(dig(volume, "csi", "readOnly"))
            flags.append("ro" in list_mount_options(volume))
            flags.append(any(source in volume for source in _READ_ONLY_SOURCES))
    return True in flags


def _list_outputs(container: Container) -> Iterator[tuple[Path, str]]:
    """Yields the absolute paths of options that name a folder for results."""
    is_trainer = any(_SAVES.match(word) for word in container.arguments)
    for key in ("command", "args"):
        words = as_texts(container.body.get(key))
        for index, word in enumerate(words):
            option, equals, value = word.partition("=")
            folder = value if equals else (words[index + 1] if index + 1 < len(words) else "")
            is_output = _OUTPUT_OPTION.fullmatch(option)
            if is_trainer:
                is_output = is_output or _CHECKPOINT_OPTION.fullmatch(option)
            if is_output and folder.startswith("/"):
                yield (*container.path, key, index if equals else index + 1), folder


def _find_mount(container: Container, folder: str) -> dict[str, Any] | None:
    best: dict[str, Any] | None = None
    for _, mount in container.mounts:
        place = as_text(mount.get("mountPath")).rstrip("/")
        is_below = folder == place or folder.startswith(f"{place}/")
        if place and is_below and len(place) > len(as_text(best and best.get("mountPath"))):
            best = mount
    return best


@rule(
    "HF212",
    "folder-near-a-mount",
    Severity.WARNING,
    on=Pod,
    what="A path in a command or a variable is nearly that of a mount, and on none.",
    why="The program reads an empty folder, or writes to the container's own disk.",
    source="https://kubernetes.io/docs/concepts/storage/volumes/",
    fix="make the path and the mountPath the same",
    base="job-pod",
    bad=_folder("/caches/hf").replace("readOnlyRootFilesystem: true", "runAsNonRoot: true"),
    good=_folder("/cache/hf").replace("readOnlyRootFilesystem: true", "runAsNonRoot: true"),
)
def folder_beside_its_mount(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers:
        mounts = [as_text(mount.get("mountPath")) for mount in _mounts(container)]
        used = {mount: _is_used(container, mount) for mount in mounts}
        for path, folder in _list_folders(container):
            if _find_mount(container, folder) is not None or folder in _ELSEWHERE:
                continue
            depth = list(filter(None, folder.split("/")))
            unused = [mount for mount in mounts if not used[mount]]
            if (
                (_is_cache(container, path) or _is_data(container, path))
                and len(unused) == 1
                and _is_scratch(container, unused[0])
            ):
                yield Hit(path, f"{folder} is on no mount; {unused[0]} is one that nothing names")
                continue
            for mount in mounts:
                size = mount.rstrip("/").count("/")
                head = "/" + "/".join(depth[:size])
                is_near = head != mount and find_near(head, [mount], 0.75)
                is_typo = count_differences(head, mount.rstrip("/")) == 1
                if is_near and (not used[mount] or (is_typo and not head[-1:].isdecimal())):
                    yield Hit(path, f"{folder} is on no mount; {mount} is one")
                    break


def _is_cache(container: Container, path: Path) -> bool:
    """Returns whether a path is the value of a variable that names a folder for files."""
    if "env" not in path:
        return False
    name = as_text(dig(container.body, *path[len(container.path) : -1], "name"))
    return bool(_FOLDER_VARIABLE.search(name) and _WRITES.search(name))


def _is_data(container: Container, path: Path) -> bool:
    """Returns whether a path is the value of an option that names data of the program."""
    option = ""
    for word_path, word in container.list_words():
        if word_path == path:
            option = word.partition("=")[0] if "=" in word else option
            return bool(_DATA_OPTION.fullmatch(option))
        option = word
    return False


def _is_scratch(container: Container, folder: str) -> bool:
    """Returns whether a mount is a folder that the pod brings, a claim or a bucket."""
    for _, mount in container.mounts:
        if as_text(mount.get("mountPath")) == folder:
            for _, volume in container.pod.volumes:
                if volume.get("name") == mount.get("name"):
                    return bool(volume.keys() & _BROUGHT)
            # The claims of a StatefulSet are no volumes of the pod.
            return True
    return False


def _mounts(container: Container) -> list[dict[str, Any]]:
    mounts: list[dict[str, Any]] = []
    for _, mount in container.mounts:
        if as_text(mount.get("mountPath")) not in ("", "/", _SHM_PATH, "/tmp"):
            mounts.append(mount)
    return mounts


def _is_used(container: Container, folder: str) -> bool:
    """Returns whether a command or a variable names the path of a mount."""
    texts = [container.script, *(str(value) for value in container.env.values())]
    pattern = re.compile(rf"(?<![\w.-]){re.escape(folder.rstrip('/')[:200])}(?![\w-])")
    return any(pattern.search(text) for text in texts)


def _list_folders(container: Container) -> Iterator[tuple[Path, str]]:
    """Yields the absolute paths that variables and options name."""
    for path, _, value in container.variables:
        if value.startswith("/") and ":" not in value and " " not in value:
            yield path, value
    for key in ("command", "args"):
        words = as_texts(container.body.get(key))
        for index, word in enumerate(words):
            option, equals, value = word.partition("=")
            before = words[index - 1] if index else ""
            folder = value if equals and option.startswith("-") else word
            # An init container copies to the path that is the last word of its command.
            is_target = not container.is_main and index == len(words) - 1
            is_option = (
                is_target
                or (equals and _FOLDER_OPTION.fullmatch(option))
                or before.startswith("--")
            )
            if is_option and folder.startswith("/") and " " not in folder:
                yield (*container.path, key, index), folder


def _deployment(strategy: str) -> str:
    return f"""\
spec:
  replicas: 1
  strategy: {{type: {strategy}}}
  template:
    spec:
      volumes: [{{name: d, persistentVolumeClaim: {{claimName: data}}}}]
      containers:
      - name: main
        image: server
        resources: {{limits: {{nvidia.com/gpu: 1}}}}
        volumeMounts: [{{name: d, mountPath: /d}}]
---
{_claim("ReadWriteOnce", "regional-rwo")}"""


@rule(
    "HF213",
    "claim-held-by-the-old-pod",
    Severity.WARNING,
    on=Object,
    kinds=("Deployment",),
    what="A Deployment with a ReadWriteOnce claim starts its next pod before the last one ends.",
    why="The new pod waits for the disk, and the Deployment for the new pod: the roll-out hangs.",
    source="https://kubernetes.io/docs/concepts/workloads/controllers/deployment/#strategy",
    fix="strategy: {type: Recreate}",
    base="serving",
    bad=_deployment("RollingUpdate"),
    good=_deployment("Recreate"),
)
def claim_held_by_the_old_pod(obj: Object, context: Context) -> Iterator[Hit]:
    strategy = as_map(obj.spec.get("strategy"))
    surge = dig(strategy, "rollingUpdate", "maxSurge")
    if strategy.get("type") == "Recreate" or surge in (0, "0", "0%"):
        return
    for pod in obj.pods:
        for path, volume in pod.volumes:
            name = as_text(dig(volume, "persistentVolumeClaim", "claimName"))
            claim = context.index.find("PersistentVolumeClaim", name, obj.namespace)
            modes = set(as_texts(claim.spec.get("accessModes"))) if claim else set[str]()
            if name and modes and modes.issubset(ONE_NODE_MODES):
                claim_path = (*path, "persistentVolumeClaim", "claimName")
                message = f"the next pod cannot mount {name} while the last one has it"
                yield Hit(claim_path, message)
