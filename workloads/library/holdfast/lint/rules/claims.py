"""HF760 to HF767: claims against volumes, modes of files, stores of secrets, members of IAM."""

import re
from base64 import b64decode
from collections.abc import Iterator

from holdfast.lint.document import Path
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.known_values import load_table
from holdfast.lint.objects import (
    DEFAULT_NAMESPACE,
    Object,
    Pod,
    as_int,
    as_list,
    as_map,
    as_text,
    as_texts,
    dig,
)
from holdfast.lint.registry import Context, rule
from holdfast.lint.rules.references import is_near_file
from holdfast.lint.spelling import find_near
from holdfast.support.values import GIB, quantity

DOC_BINDING = "https://kubernetes.io/docs/concepts/storage/persistent-volumes/#binding"
DOC_FILESTORE = "https://cloud.google.com/filestore/docs/service-tiers"
DOC_MODES = "https://kubernetes.io/docs/concepts/configuration/secret/#secret-files-permissions"
DOC_STORES = "https://external-secrets.io/latest/api/externalsecret/"
DOC_IDENTITY = "https://cloud.google.com/kubernetes-engine/docs/how-to/workload-identity"
# Class of storage -> the least size that it makes, in GiB.
_LEAST_GIB = {
    "standard-rwx": 1_024,
    "premium-rwx": 2_560,
    "enterprise-rwx": 1_024,
    "zonal-rwx": 1_024,
    "regional-rwx": 1_024,
    "enterprise-multishare-rwx": 10,
}
# Modes of files as people say them, which are read as decimal numbers.
_SPOKEN_MODES = (400, 440, 444, 500, 550, 555, 600, 640, 644, 660, 664, 666, 700, 750, 755, 777)
_LONGEST_LINE = 2_000
_MEMBER = re.compile(
    r"serviceAccount:[\w.-]{1,100}\.svc\.id\.goog\[([\w-]{1,63})/([\w.-]{1,253})\]"
)


def _bound(storage_class: str, mode: str = "ReadOnlyMany") -> str:
    return f"""\
apiVersion: v1
kind: PersistentVolume
metadata: {{name: corpus}}
spec:
  storageClassName: gcs
  accessModes: [ReadOnlyMany]
  capacity: {{storage: 1Ti}}
  csi: {{driver: gcsfuse.csi.storage.gke.io, volumeHandle: corpus}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: corpus, namespace: research}}
spec:
  volumeName: corpus
  {storage_class}
  accessModes: [{mode}]
  resources: {{requests: {{storage: 1Ti}}}}
"""


@rule(
    "HF760",
    "claim-cannot-bind",
    Severity.ERROR,
    on=Object,
    kinds=("PersistentVolumeClaim",),
    what="A claim names a volume of another class, mode or size, or one that its file lacks.",
    why="The claim stays Pending, and its pods with it.",
    source=DOC_BINDING,
    fix='give both the same storageClassName, "" for none, and a mode that the volume has',
    bad=_bound("storageClassName: standard-rwo"),
    good=_bound("storageClassName: gcs"),
)
def claim_cannot_bind(obj: Object, context: Context) -> Iterator[Hit]:
    name = as_text(obj.spec.get("volumeName"))
    volume = context.index.find("PersistentVolume", name)
    if not name or "$" in name:
        return
    if volume is None:
        volumes = context.index.by_kind.get("PersistentVolume", [])
        neighbors = [item.name for item in volumes if item.file == obj.file]
        near_name = find_near(name, neighbors, 0.7)
        if near_name:
            message = f"no PersistentVolume {name}; did you mean {near_name}?"
            yield Hit(("spec", "volumeName"), message)
        return
    yield from _check_class(obj, volume)
    modes = as_texts(volume.spec.get("accessModes"))
    for index, mode in enumerate(as_texts(obj.spec.get("accessModes"))):
        if modes and mode not in modes:
            message = f"volume {name} has {', '.join(modes)}, and not {mode}"
            yield Hit(("spec", "accessModes", index), message)
    size = quantity(dig(volume.spec, "capacity", "storage"))
    path: Path = ("spec", "resources", "requests", "storage")
    request = quantity(dig(obj.body, *path))
    if size and request and request > size:
        yield Hit(path, f"asks for {request / GIB:.0f} GiB of a volume of {size / GIB:.0f} GiB")
    claim = as_map(volume.spec.get("claimRef"))
    namespace = as_text(claim.get("namespace"))
    home = obj.namespace or DEFAULT_NAMESPACE
    if claim.get("name") not in (None, obj.name) or namespace not in ("", home):
        message = f"volume {name} is kept for {namespace}/{claim.get('name')}"
        yield Hit(("spec", "volumeName"), message)


def _check_class(claim: Object, volume: Object) -> Iterator[Hit]:
    storage_class = claim.spec.get("storageClassName")
    other = as_text(volume.spec.get("storageClassName"))
    if storage_class is None:
        message = f"no storageClassName, so the default class: volume {volume.name} has '{other}'"
        yield Hit(("spec",), message)
    elif storage_class != other:
        message = (
            f"{storage_class or 'no class'}, and volume {volume.name} has {other or 'no class'}"
        )
        yield Hit(("spec", "storageClassName"), message)


def _share(size: str) -> str:
    return f"""\
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: share, namespace: research}}
spec:
  storageClassName: standard-rwx
  accessModes: [ReadWriteMany]
  resources: {{requests: {{storage: {size}}}}}
"""


@rule(
    "HF761",
    "share-below-the-least",
    Severity.WARNING,
    on=Object,
    what="A claim asks Filestore for less than its class makes.",
    why="The share is made with the least size, which is paid for, or the request is refused.",
    source=DOC_FILESTORE,
    fix="1Ti for standard-rwx, 2560Gi for premium-rwx; a bucket or one disk for less",
    bad=_share("100Gi"),
    good=_share("1Ti"),
)
def share_below_the_least(obj: Object, context: Context) -> Iterator[Hit]:
    for path, spec in obj.claims:
        storage_class = as_text(spec.get("storageClassName"))
        smallest_gib = _LEAST_GIB.get(storage_class)
        size = quantity(dig(spec, "resources", "requests", "storage"))
        if smallest_gib and size and size < smallest_gib * GIB and not spec.get("volumeName"):
            message = f"{storage_class} makes {smallest_gib} GiB at least"
            yield Hit((*path, "resources", "requests", "storage"), message)


def _mode(mode: str) -> str:
    return f"""\
volumes: [{{name: keys, secret: {{secretName: keys, defaultMode: {mode}}}}}]
containers:
- name: main
  image: registry.example/trainer:1.4
  resources: {{limits: {{nvidia.com/gpu: 1}}}}
  volumeMounts: [{{name: keys, mountPath: /keys}}]
"""


@rule(
    "HF762",
    "mode-in-decimal",
    Severity.ERROR,
    on=Pod,
    what="The mode of files is a decimal number whose digits are meant as octal ones.",
    why="400 is 0620: the owner may not read as meant, others may write. Above 511 it is refused.",
    source=DOC_MODES,
    fix="write it with a zero: 0400",
    base="job-pod",
    bad=_mode("400"),
    good=_mode("0400"),
)
def mode_in_decimal(pod: Pod, context: Context) -> Iterator[Hit]:
    for path, volume in pod.volumes:
        for field in ("configMap", "secret", "projected", "downwardAPI"):
            places: list[Path] = [(field, "defaultMode")]
            for index in range(len(as_list(dig(volume, field, "items")))):
                places.append((field, "items", index, "mode"))
            for place in places:
                mode = as_int(dig(volume, *place))
                if mode in _SPOKEN_MODES:
                    yield Hit((*path, *place), f"{mode} is 0{mode:o}; write 0{mode}")


def _external(kind: str) -> str:
    return f"""\
apiVersion: external-secrets.io/v1
kind: SecretStore
metadata:
  name: google
  namespace: research
spec:
  provider:
    gcpsm:
      projectID: acme
---
apiVersion: external-secrets.io/v1
kind: ExternalSecret
metadata:
  name: db
  namespace: research
spec:
  secretStoreRef:
    kind: {kind}
    name: google
  target:
    name: db
  data:
    - secretKey: password
      remoteRef:
        key: db-password
"""


@rule(
    "HF763",
    "secret-store-unknown",
    Severity.ERROR,
    on=Object,
    kinds=("ExternalSecret",),
    what="An ExternalSecret names a store that its files have as another kind or name.",
    why="The Secret is never written, and the pods that need it do not start.",
    source=DOC_STORES,
    fix="write kind and name of the store",
    bad=_external("ClusterSecretStore"),
    good=_external("SecretStore"),
)
def secret_store_unknown(obj: Object, context: Context) -> Iterator[Hit]:
    reference = as_map(obj.spec.get("secretStoreRef"))
    kind = as_text(reference.get("kind")) or "SecretStore"
    name = as_text(reference.get("name"))
    namespace = obj.namespace if kind == "SecretStore" else None
    if not name or context.index.find(kind, name, namespace):
        return
    other_kind = "ClusterSecretStore" if kind == "SecretStore" else "SecretStore"
    path: Path = ("spec", "secretStoreRef", "name")
    namesakes = [
        item for item in context.index.find_all(other_kind, name) if is_near_file(item, obj)
    ]
    homes = [item for item in context.index.find_all(kind, name) if is_near_file(item, obj)]
    if namesakes:
        yield Hit((*path[:-1], "kind"), f"{name} is a {other_kind}, not a {kind}")
    elif homes:
        yield Hit(path, f"{kind} {name} is in {homes[0].namespace}, not in {obj.namespace}")
    else:
        stores = context.index.by_kind.get(kind, [])
        neighbors = [item.name for item in stores if is_near_file(item, obj)]
        near_name = find_near(name, neighbors, 0.6)
        if near_name:
            yield Hit(path, f"no {kind} {name}; did you mean {near_name}?")


def _member(namespace: str) -> str:
    return f"""\
apiVersion: v1
kind: ServiceAccount
metadata:
  name: embed
  namespace: research
  annotations:
    iam.gke.io/gcp-service-account: embed@acme.iam.gserviceaccount.com
---
apiVersion: iam.cnrm.cloud.google.com/v1beta1
kind: IAMPolicyMember
metadata:
  name: embed
  namespace: research
spec:
  member: serviceAccount:acme.svc.id.goog[{namespace}/embed]
  role: roles/iam.workloadIdentityUser
"""


@rule(
    "HF764",
    "member-of-another-namespace",
    Severity.ERROR,
    on=Object,
    what="A right of IAM is given to an account of Kubernetes that the files have elsewhere.",
    why="The pods cannot act as the Google account: each call is refused with 403.",
    source=DOC_IDENTITY,
    fix="serviceAccount:PROJECT.svc.id.goog[NAMESPACE/ACCOUNT] of the account that the pods use",
    bad=_member("default"),
    good=_member("research"),
)
def check_member(obj: Object, context: Context) -> Iterator[Hit]:
    if not obj.kind.startswith("IAM"):
        return
    for path, member in _list_members(obj):
        match = _MEMBER.fullmatch(member[:500])
        if match is None or context.index.find("ServiceAccount", match[2], match[1]):
            continue
        accounts = context.index.find_all("ServiceAccount", match[2])
        homes = [item.namespace for item in accounts if is_near_file(item, obj)]
        neighbors: list[str] = []
        for item in context.index.list_namespace("ServiceAccount", match[1]):
            if item.file == obj.file:
                neighbors.append(item.name)
        near_name = find_near(match[2], neighbors, 0.7)
        if homes and all(homes):
            yield Hit(path, f"{match[2]} is an account of {homes[0]}, not of {match[1]}")
        elif near_name:
            yield Hit(path, f"no account {match[2]}; did you mean {near_name}?")


def _list_members(obj: Object) -> Iterator[tuple[Path, str]]:
    yield ("spec", "member"), as_text(obj.spec.get("member"))
    for index, binding in enumerate(as_list(obj.spec.get("bindings"))):
        for number, member in enumerate(as_list(dig(binding, "members"))):
            path = ("spec", "bindings", index, "members", number)
            yield path, as_text(member) or as_text(dig(member, "member"))


def _secret(value: str) -> str:
    return f"""\
apiVersion: v1
kind: Secret
metadata: {{name: hub, namespace: research}}
data: {{token: {value}}}
"""


@rule(
    "HF765",
    "secret-with-newline",
    Severity.WARNING,
    on=Object,
    kinds=("Secret",),
    what="A value of a Secret of one line ends with a newline.",
    why="`echo | base64` added it: the token or the password is refused.",
    source="https://kubernetes.io/docs/concepts/configuration/secret/",
    fix="encode it by `printf %s VALUE | base64`, or write stringData",
    bad=_secret("aGZfYWJjZGVmCg=="),
    good=_secret("aGZfYWJjZGVm"),
)
def secret_with_newline(obj: Object, context: Context) -> Iterator[Hit]:
    for key, value in as_map(obj.body.get("data")).items():
        text = _decode(as_text(value))
        is_file = "." in str(key) or text.count("\n") != 1
        if text.endswith("\n") and not is_file and 1 < len(text) < _LONGEST_LINE:
            yield Hit(("data", key), f"{key} ends with a newline")


def _decode(text: str) -> str:
    """Decodes base64; empty where it is none."""
    try:
        return b64decode(text[:4_000], validate=True).decode()
    except ValueError:
        return ""


def _write_block_claim(mode: str) -> str:
    return f"""\
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: db
  namespace: research
spec:
  selector:
    matchLabels:
      app: db
  template:
    metadata:
      labels:
        app: db
    spec:
      containers:
        - name: db
          image: a:1
          volumeMounts:
            - name: data
              mountPath: /data
  volumeClaimTemplates:
    - metadata:
        name: data
      spec:
        accessModes:
          - ReadWriteOnce
        storageClassName: standard-rwo
        volumeMode: {mode}
        resources:
          requests:
            storage: 10Gi
"""


def _storage(mode: str, kind: str = "pd-ssd") -> str:
    return f"""\
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {{name: fast}}
provisioner: pd.csi.storage.gke.io
parameters: {{type: {kind}}}
volumeBindingMode: {mode}
"""


@rule(
    "HF766",
    "disk-before-the-pod",
    Severity.WARNING,
    on=Object,
    kinds=("StorageClass",),
    what="A class makes disks before their pods have a node, or disks of an unknown type.",
    why="The disk may be in a zone without the GPU, and the pod can never go there.",
    source="https://kubernetes.io/docs/concepts/storage/storage-classes/#volume-binding-mode",
    fix="volumeBindingMode: WaitForFirstConsumer",
    bad=_storage("Immediate"),
    good=_storage("WaitForFirstConsumer"),
)
def disk_before_the_pod(obj: Object, context: Context) -> Iterator[Hit]:
    if obj.body.get("provisioner") != "pd.csi.storage.gke.io":
        return
    kind = as_text(dig(obj.body, "parameters", "type"))
    types = load_table("disks")["types"]
    if kind and kind not in types:
        near_kind = find_near(kind, types)
        hint = f"; did you mean {near_kind}?" if near_kind else ""
        yield Hit(("parameters", "type"), f"no disk {kind}{hint}")
    if obj.body.get("volumeBindingMode") in (None, "Immediate"):
        path: Path = ("volumeBindingMode",) if "volumeBindingMode" in obj.body else ("provisioner",)
        yield Hit(path, "Immediate: the disk chooses the zone, not the pod")


@rule(
    "HF767",
    "block-device-mounted",
    Severity.ERROR,
    on=Pod,
    what="A claim of a raw block device is mounted as a folder.",
    why="The kubelet cannot mount it: the pod stays in ContainerCreating.",
    source="https://kubernetes.io/docs/concepts/storage/persistent-volumes/#raw-block-volume-support",
    fix="volumeMode: Filesystem, or volumeDevices in the container",
    bad=_write_block_claim("Block"),
    good=_write_block_claim("Filesystem"),
)
def block_device_mounted(pod: Pod, context: Context) -> Iterator[Hit]:
    claims = as_list(pod.owner.spec.get("volumeClaimTemplates"))
    names: set[str] = set()
    for item in claims:
        if _is_block(dig(item, "spec")):
            names.add(as_text(dig(item, "metadata", "name")))
    for _, volume in pod.volumes:
        claim_name = as_text(dig(volume, "persistentVolumeClaim", "claimName"))
        claim = context.index.find("PersistentVolumeClaim", claim_name, pod.owner.namespace)
        if claim and _is_block(claim.spec):
            names.add(as_text(volume.get("name")))
    for container in pod.containers:
        for path, mount in container.mounts:
            if as_text(mount.get("name")) in names:
                yield Hit((*path, "name"), f"{mount.get('name')} is a block device")


def _is_block(spec: object) -> bool:
    return dig(spec, "volumeMode") == "Block"
