"""Lists the objects that a pod names: ConfigMaps, Secrets, claims, its account."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from holdfast.lint.document import Path
from holdfast.lint.objects import Object, Pod, as_list, as_map, as_text, dig

CONFIG_MAP = "ConfigMap"
SECRET = "Secret"
EXTERNAL_SECRET = "ExternalSecret"
CLAIM = "PersistentVolumeClaim"
ACCOUNT = "ServiceAccount"
# Made by Kubernetes in each namespace.
_EVERYWHERE = {(ACCOUNT, "default"), (CONFIG_MAP, "kube-root-ca.crt")}


@dataclass(frozen=True, slots=True)
class Reference:
    """A pod's reference to an object of its namespace, or to one key of it."""

    kind: str
    name: str
    path: Path
    """Path of the name."""
    key: str = ""
    key_path: Path = ()


def list_references(pod: Pod) -> list[Reference]:
    """Lists what a pod names and cannot start without."""
    references = [*_list_in_volumes(pod), *_list_named_by_pod(pod)]
    for container in pod.containers:
        references += _list_in_variables(container.body, container.path)
    return [reference for reference in references if _is_required(reference)]


def _is_required(reference: Reference) -> bool:
    name = reference.name
    if not name or "$" in name:
        return False
    return (reference.kind, name) not in _EVERYWHERE


def _list_named_by_pod(pod: Pod) -> Iterator[Reference]:
    path = (*pod.spec_path, "serviceAccountName")
    yield Reference(ACCOUNT, pod.account, path)
    for index, item in enumerate(as_list(pod.spec.get("imagePullSecrets"))):
        path = (*pod.spec_path, "imagePullSecrets", index, "name")
        yield Reference(SECRET, as_text(dig(item, "name")), path)


def _list_in_volumes(pod: Pod) -> Iterator[Reference]:
    for path, volume in pod.volumes:
        claim_fields = ("persistentVolumeClaim", "claimName")
        claim = as_text(dig(volume, *claim_fields))
        yield Reference(CLAIM, claim, (*path, *claim_fields))
        yield from _list_in_source(volume, path, "secretName")
        for number, source in enumerate(as_list(dig(volume, "projected", "sources"))):
            source_path = (*path, "projected", "sources", number)
            yield from _list_in_source(as_map(source), source_path, "name")


def _list_in_source(volume: dict[str, Any], path: Path, secret_field: str) -> Iterator[Reference]:
    """Yields the ConfigMap or Secret of a volume, and the keys that it takes."""
    fields = (
        (CONFIG_MAP, "configMap", "name"),
        (SECRET, "secret", secret_field),
    )
    for kind, field, name_field in fields:
        source = volume.get(field)
        if not isinstance(source, dict) or source.get("optional") is True:
            continue
        name = as_text(source.get(name_field))
        name_path = (*path, field, name_field)
        yield Reference(kind, name, name_path)
        for index, item in enumerate(as_list(source.get("items"))):
            key = as_text(dig(item, "key"))
            key_path = (*path, field, "items", index, "key")
            yield Reference(kind, name, name_path, key, key_path)


def _list_in_variables(body: dict[str, Any], path: Path) -> Iterator[Reference]:
    fields = ((CONFIG_MAP, "configMapRef"), (SECRET, "secretRef"))
    for index, item in enumerate(as_list(body.get("envFrom"))):
        for kind, field in fields:
            if dig(item, field, "optional") is True:
                continue
            name = as_text(dig(item, field, "name"))
            name_path = (*path, "envFrom", index, field, "name")
            yield Reference(kind, name, name_path)
    key_fields = ((CONFIG_MAP, "configMapKeyRef"), (SECRET, "secretKeyRef"))
    for index, item in enumerate(as_list(body.get("env"))):
        for kind, field in key_fields:
            source = as_map(dig(item, "valueFrom", field))
            if source.get("optional") is True:
                continue
            source_path = (*path, "env", index, "valueFrom", field)
            key = as_text(source.get("key"))
            key_path = (*source_path, "key")
            name = as_text(source.get("name"))
            name_path = (*source_path, "name")
            yield Reference(kind, name, name_path, key, key_path)


def list_keys(obj: Object) -> set[str]:
    """Returns the keys of a ConfigMap or Secret, or of the Secret that an ExternalSecret makes."""
    keys: set[str] = set()
    if obj.kind == EXTERNAL_SECRET:
        # Other sources may add keys that the file does not show.
        is_whole = not obj.spec.get("dataFrom") and not dig(obj.spec, "target", "template")
        for item in as_list(obj.spec.get("data")) if is_whole else ():
            keys.add(as_text(dig(item, "secretKey")))
        return keys
    for field in ("data", "stringData", "binaryData"):
        keys |= as_map(obj.body.get(field)).keys()
    return keys
