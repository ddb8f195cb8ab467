"""Finds the mount and the volume behind a path of a container."""

from typing import Any

from holdfast.lint.objects import Container, Pod, as_list, as_text, dig

FUSE_DRIVER = "gcsfuse.csi.storage.gke.io"
_DISK_DRIVERS = ".csi.storage.gke.io"


def is_below(path: str, folder: str) -> bool:
    """Returns whether a path is a folder, or a path in it."""
    folder = folder.rstrip("/")
    return bool(folder) and (path.rstrip("/") == folder or path.startswith(f"{folder}/"))


def find_mount(container: Container, path: str) -> dict[str, Any] | None:
    """Returns the mount that holds a path; None for the container's own layer."""
    best_mount: dict[str, Any] | None = None
    longest = 0
    for _, mount in container.mounts:
        folder = as_text(mount.get("mountPath"))
        if is_below(path, folder) and len(folder) > longest:
            best_mount = mount
            longest = len(folder)
    return best_mount


def find_volume(pod: Pod, name: object) -> dict[str, Any]:
    """Returns a volume of the pod; empty where the pod has none of this name."""
    for _, volume in pod.volumes:
        if volume.get("name") == name:
            return volume
    return {}


def list_mount_options(volume: dict[str, Any]) -> list[str]:
    """Lists the mount options of a volume of Cloud Storage FUSE."""
    if dig(volume, "csi", "driver") != FUSE_DRIVER:
        return []
    options = as_text(dig(volume, "csi", "volumeAttributes", "mountOptions"))
    return [option.strip() for option in options[:2_000].split(",") if option.strip()]


def is_read_only(container: Container, mount: dict[str, Any]) -> bool:
    """Returns whether a mount, or the volume that it mounts, takes no writes."""
    volume = find_volume(container.pod, mount.get("name"))
    flags = (
        mount.get("readOnly"),
        dig(volume, "csi", "readOnly"),
        dig(volume, "persistentVolumeClaim", "readOnly"),
    )
    return True in flags or "ro" in list_mount_options(volume)


def outlives_pod(container: Container, mount: dict[str, Any]) -> bool:
    """Returns whether a mount is a claim, a bucket or another disk that stays after the pod."""
    name = mount.get("name")
    volume = find_volume(container.pod, name)
    if {"persistentVolumeClaim", "nfs"} & volume.keys():
        return True
    # Other drivers bring secrets and certificates, which are no disks.
    if as_text(dig(volume, "csi", "driver")).endswith(_DISK_DRIVERS):
        return True
    claims = as_list(container.pod.owner.spec.get("volumeClaimTemplates"))
    return any(dig(claim, "metadata", "name") == name for claim in claims)
