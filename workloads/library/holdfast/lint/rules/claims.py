"""HF760 to HF764: claims against volumes, modes of files, stores of secrets, members of IAM."""

import re
from collections.abc import Iterator

from holdfast.lint.document import Path
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.objects import Object, Pod, as_int, as_list, as_map, as_text, as_texts, dig
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
# Modes of files as one says them, read as decimal numbers.
_SPOKEN_MODES = (400, 440, 444, 500, 550, 555, 600, 640, 644, 660, 664, 666, 700, 750, 755, 777)
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
        neighbours = [item.name for item in volumes if item.file == obj.file]
        near_name = find_near(name, neighbours, 0.7)
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
    asked = quantity(dig(obj.body, *path))
    if size and asked and asked > size:
        yield Hit(path, f"asks for {asked / GIB:.0f} GiB of a volume of {size / GIB:.0f} GiB")
    claim = as_map(volume.spec.get("claimRef"))
    namespace = as_text(claim.get("namespace"))
    if claim.get("name") not in (None, obj.name) or namespace not in ("", obj.namespace):
        message = f"volume {name} is kept for {namespace}/{claim.get('name')}"
        yield Hit(("spec", "volumeName"), message)


def _check_class(claim: Object, volume: Object) -> Iterator[Hit]:
    own = claim.spec.get("storageClassName")
    other = as_text(volume.spec.get("storageClassName"))
    if own is None:
        message = f"no storageClassName, so the default class: volume {volume.name} has '{other}'"
        yield Hit(("spec",), message)
    elif own != other:
        message = f"{own or 'no class'}, and volume {volume.name} has {other or 'no class'}"
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
        least = _LEAST_GIB.get(storage_class)
        size = quantity(dig(spec, "resources", "requests", "storage"))
        if least and size and size < least * GIB and not spec.get("volumeName"):
            message = f"{storage_class} makes {least} GiB at least"
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
metadata: {{name: google, namespace: research}}
spec: {{provider: {{gcpsm: {{projectID: acme}}}}}}
---
apiVersion: external-secrets.io/v1
kind: ExternalSecret
metadata: {{name: db, namespace: research}}
spec:
  secretStoreRef: {{kind: {kind}, name: google}}
  target: {{name: db}}
  data: [{{secretKey: password, remoteRef: {{key: db-password}}}}]
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
    others = [item for item in context.index.find_all(other_kind, name) if is_near_file(item, obj)]
    homes = [item for item in context.index.find_all(kind, name) if is_near_file(item, obj)]
    if others:
        yield Hit((*path[:-1], "kind"), f"{name} is a {other_kind}, not a {kind}")
    elif homes:
        yield Hit(path, f"{kind} {name} is in {homes[0].namespace}, not in {obj.namespace}")
    else:
        stores = context.index.by_kind.get(kind, [])
        neighbours = [item.name for item in stores if is_near_file(item, obj)]
        near_name = find_near(name, neighbours, 0.6)
        if near_name:
            yield Hit(path, f"no {kind} {name}; did you mean {near_name}?")


def _member(namespace: str) -> str:
    return f"""\
apiVersion: v1
kind: ServiceAccount
metadata:
  name: embed
  namespace: research
  annotations: {{iam.gke.io/gcp-service-account: embed@acme.iam.gserviceaccount.com}}
---
apiVersion: iam.cnrm.cloud.google.com/v1beta1
kind: IAMPolicyMember
metadata: {{name: embed, namespace: research}}
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
def member_of_another_namespace(obj: Object, context: Context) -> Iterator[Hit]:
    if not obj.kind.startswith("IAM"):
        return
    for path, member in _list_members(obj):
        match = _MEMBER.fullmatch(member[:500])
        if match is None or context.index.find("ServiceAccount", match[2], match[1]):
            continue
        accounts = context.index.find_all("ServiceAccount", match[2])
        homes = [item.namespace for item in accounts if is_near_file(item, obj)]
        neighbours = [
            item.name
            for item in context.index.list_namespace("ServiceAccount", match[1])
            if item.file == obj.file
        ]
        near_name = find_near(match[2], neighbours, 0.7)
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
