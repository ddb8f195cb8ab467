"""HF660 to HF662: users of containers, and what they may read and write."""

import re
from collections.abc import Iterator
from typing import Any

from holdfast.lint.finding import Hit, Severity
from holdfast.lint.folders import (
    find_volume,
    is_read_only,
    list_mount_options,
)
from holdfast.lint.known_values import load_table
from holdfast.lint.objects import Container, Pod, as_int, as_list, as_map, as_text, as_texts, dig
from holdfast.lint.registry import Context, rule

DOC_FUSE = (
    "https://cloud.google.com/kubernetes-engine/docs/how-to/cloud-storage-fuse-csi-driver-perf"
)
DOC_USER = "https://kubernetes.io/docs/tasks/configure-pod-container/security-context/"
_OWNER_OPTION = re.compile(r"(uid|gid)=(\d{1,9})")
_DISK_DRIVER = "pd.csi.storage.gke.io"
_DISK_CLASSES = ("standard-rwo", "premium-rwo", "standard", "regional-rwo")
_SETS_OWNER = re.compile(r"\bch(own|mod)\b")


def _bucket(options: str) -> str:
    return f"""\
metadata:
  annotations:
    gke-gcsfuse/volumes: 'true'
spec:
  securityContext:
    runAsNonRoot: true
    runAsUser: 1000
  containers:
    - name: main
      image: train
      resources:
        limits:
          nvidia.com/gpu: 1
      volumeMounts:
        - name: out
          mountPath: /out
  volumes:
    - name: out
      csi:
        driver: gcsfuse.csi.storage.gke.io
        volumeAttributes:
          bucketName: out
          mountOptions: {options}
"""


@rule(
    "HF660",
    "bucket-of-another-user",
    Severity.ERROR,
    on=Pod,
    what="A container writes to a mounted bucket whose files belong to another user.",
    why="Cloud Storage FUSE gives the files to root, or to the uid of its options: EACCES.",
    source=DOC_FUSE,
    fix="mountOptions: uid=USER,gid=GROUP of the container, or fsGroup",
    base="job-template",
    bad=_bucket("implicit-dirs"),
    good=_bucket("implicit-dirs,uid=1000,gid=1000"),
)
def check_bucket_owner(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers:
        user = _get_setting(container, "runAsUser")
        if not user:
            continue
        for path, mount in container.mounts:
            volume = find_volume(pod, mount.get("name"))
            if "csi" not in volume or is_read_only(container, mount):
                continue
            options = list_mount_options(volume)
            owners = dict(_list_owners(options))
            modes = [option for option in options if option.startswith(("file-mode", "dir-mode"))]
            if dig(volume, "csi", "driver") != "gcsfuse.csi.storage.gke.io" or modes:
                continue
            group = _get_setting(container, "runAsGroup")
            groups = {group, as_int(dig(pod.spec, "securityContext", "fsGroup"))} - {None}
            is_of_group = owners.get("gid") in groups
            if owners.get("uid") is None and not groups:
                message = f"the files belong to root, and the container runs as {user}"
                yield Hit((*path, "mountPath"), message)
            elif owners.get("uid") not in (None, user) and not is_of_group:
                message = f"the files belong to {owners['uid']}, and the container runs as {user}"
                yield Hit((*path, "mountPath"), message)


def _list_owners(options: list[str]) -> Iterator[tuple[str, int]]:
    for option in options:
        match = _OWNER_OPTION.fullmatch(option)
        if match:
            yield match[1], int(match[2])


def _get_setting(container: Container, name: str) -> int | None:
    """Returns a number of the security context of a container, or of its pod."""
    for body in (container.body, container.pod.spec):
        value = as_int(dig(body, "securityContext", name))
        if value is not None:
            return value
    return None


def _disk(group: str) -> str:
    return f"""\
apiVersion: apps/v1
kind: StatefulSet
metadata: {{name: db, namespace: serving}}
spec:
  serviceName: db
  selector: {{matchLabels: {{app: db}}}}
  template:
    metadata: {{labels: {{app: db}}}}
    spec:
      securityContext: {{runAsNonRoot: true, runAsUser: 999{group}}}
      containers:
      - name: db
        image: registry.example/db:1.4
        volumeMounts: [{{name: data, mountPath: /data}}]
  volumeClaimTemplates:
  - metadata: {{name: data}}
    spec:
      accessModes: [ReadWriteOnce]
      storageClassName: premium-rwo
      resources: {{requests: {{storage: 20Gi}}}}
"""


@rule(
    "HF661",
    "disk-of-root",
    Severity.ERROR,
    on=Pod,
    what="A container that is not root writes to a new disk, and the pod has no fsGroup.",
    why="The file system of a new disk belongs to root: the program ends with permission denied.",
    source=DOC_USER,
    fix="securityContext of the pod: fsGroup, with the group of the container",
    bad=_disk(""),
    good=_disk(", fsGroup: 999"),
)
def check_disk_owner(pod: Pod, context: Context) -> Iterator[Hit]:
    if as_int(dig(pod.spec, "securityContext", "fsGroup")) is not None:
        return
    if any(_SETS_OWNER.search(container.script) for container in pod.containers):
        return
    for container in pod.main_containers:
        user = _get_setting(container, "runAsUser")
        for path, mount in container.mounts if user else ():
            is_disk = _is_disk(_find_claim(pod, mount, context), context)
            if is_disk and not is_read_only(container, mount):
                message = f"the disk belongs to root, and {container.name} runs as {user}"
                yield Hit((*path, "mountPath"), message)


def _find_claim(pod: Pod, mount: dict[str, Any], context: Context) -> dict[str, Any]:
    """Returns the spec of the claim behind a mount; empty where the files do not have it."""
    name = mount.get("name")
    for claim in as_list(pod.owner.spec.get("volumeClaimTemplates")):
        if dig(claim, "metadata", "name") == name:
            return as_map(dig(claim, "spec"))
    volume = find_volume(pod, name)
    template = dig(volume, "ephemeral", "volumeClaimTemplate", "spec")
    if template:
        return as_map(template)
    claim_name = as_text(dig(volume, "persistentVolumeClaim", "claimName"))
    claim = context.index.find("PersistentVolumeClaim", claim_name, pod.owner.namespace)
    return claim.spec if claim and claim_name else {}


def _is_disk(claim: dict[str, Any], context: Context) -> bool:
    """Returns whether a claim is for a new disk of Google, which one node mounts."""
    modes = as_texts(claim.get("accessModes"))
    is_of_one = bool(modes) and set(modes) <= {"ReadWriteOnce", "ReadWriteOncePod"}
    storage_class = as_text(claim.get("storageClassName")) or "standard-rwo"
    is_new = not claim.get("volumeName") and not claim.get("dataSource")
    stated_class = context.index.find("StorageClass", storage_class)
    provisioner = stated_class.body.get("provisioner") if stated_class else ""
    is_disk = storage_class in _DISK_CLASSES or provisioner == _DISK_DRIVER
    return is_of_one and is_new and is_disk


@rule(
    "HF662",
    "image-of-root",
    Severity.ERROR,
    on=Pod,
    what="A container must not run as root, and its image runs as root unless a user is stated.",
    why="The kubelet does not start it: CreateContainerConfigError.",
    source=DOC_USER,
    fix="state runAsUser with a number above 0",
    base="serving-pod",
    bad="""\
securityContext:
  runAsNonRoot: true
containers:
- name: main
  image: vllm/vllm-openai:v0.9.2
  args:
  - --model=Qwen/Qwen2.5-7B-Instruct
  resources:
    limits:
      nvidia.com/gpu: 1
""",
    good="""\
securityContext:
  runAsNonRoot: true
  runAsUser: 1000
containers:
- name: main
  image: vllm/vllm-openai:v0.9.2
  args:
  - --model=Qwen/Qwen2.5-7B-Instruct
  resources:
    limits:
      nvidia.com/gpu: 1
""",
)
def check_image_user(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers:
        settings = as_map(pod.spec.get("securityContext")) | as_map(
            container.body.get("securityContext")
        )
        if settings.get("runAsNonRoot") is not True or settings.get("runAsUser") is not None:
            continue
        image = as_text(container.body.get("image")).partition("@")[0][:500]
        name = image.rpartition(":")[0] if ":" in image.rpartition("/")[2] else image
        name = name.removeprefix("docker.io/").removeprefix("library/")
        tables = load_table("root_images")
        is_root = name in tables["names"] or name.startswith(tuple(tables["prefixes"]))
        if is_root:
            yield Hit((*container.path, "image"), f"{name} runs as root, and runAsUser is not set")
        elif name in tables["named_users"]:
            message = f"{name} has a user without a number, and runAsUser is not set"
            yield Hit((*container.path, "image"), message)
