"""Mounts datasets, read-only, through Cloud Storage FUSE.

Checkpoints never go through it: a rename there is no commit.
"""

from collections.abc import Iterator

from kubernetes import client

from holdfast.manifests.render_context import Body, RenderContext, manifest, meta
from holdfast.vocabulary.kubernetes import ANNOTATION_FUSE, FUSE_DRIVER

CLAIM = "data"
PATH = "/data"
# Resources of the sidecar that GKE adds to serve the mount. Its defaults are small and count
# against no quota of the platform.
SIDECAR = {
    ANNOTATION_FUSE: "true",
    "gke-gcsfuse/cpu-request": "250m",
    "gke-gcsfuse/cpu-limit": "2",
    "gke-gcsfuse/memory-request": "256Mi",
    "gke-gcsfuse/memory-limit": "1Gi",
    "gke-gcsfuse/ephemeral-storage-request": "1Gi",
    "gke-gcsfuse/ephemeral-storage-limit": "5Gi",
}


# The driver's sidecar caches in a volume of this name, if the pod has one.
CACHE = "gke-gcsfuse-cache"
# https://cloud.google.com/kubernetes-engine/docs/how-to/cloud-storage-fuse-csi-driver-perf: large
# files come in several parts at once; and names of data that does not change are kept forever.
_CACHE_OPTIONS = ",file-cache:enable-parallel-downloads:true,metadata-cache:ttl-secs:-1"


def add_cache(attributes: dict[str, str], size_mib: int) -> dict[str, str]:
    """Returns the attributes of a mount that caches each file that it reads, as a whole."""
    return attributes | {
        "mountOptions": attributes["mountOptions"] + _CACHE_OPTIONS,
        # Never -1: the cache would grow until its volume is full, and then fail.
        "fileCacheCapacity": f"{size_mib}Mi",
        "fileCacheForRangeRead": "true",
    }


def cache_volume(size_mib: int, *, in_memory: bool) -> client.V1Volume:
    """Returns the volume of the cache. It is larger than what the cache may fill."""
    source = client.V1EmptyDirVolumeSource(
        medium="Memory" if in_memory else None, size_limit=f"{_pad(size_mib)}Mi"
    )
    return client.V1Volume(name=CACHE, empty_dir=source)


def size_sidecar(cache_mib: int, *, in_memory: bool) -> dict[str, str]:
    """Returns the sidecar's resources with those of its cache, which count against the sidecar."""
    if not cache_mib:
        return SIDECAR
    cache_mib = _pad(cache_mib)
    if in_memory:
        return SIDECAR | {
            "gke-gcsfuse/memory-request": f"{cache_mib + 256}Mi",
            "gke-gcsfuse/memory-limit": f"{cache_mib + 1024}Mi",
        }
    return SIDECAR | {
        "gke-gcsfuse/ephemeral-storage-request": f"{cache_mib + 1024}Mi",
        "gke-gcsfuse/ephemeral-storage-limit": f"{cache_mib + 5 * 1024}Mi",
    }


def _pad(size_mib: int) -> int:
    return size_mib + size_mib // 10


def volume() -> client.V1Volume:
    source = client.V1PersistentVolumeClaimVolumeSource(claim_name=CLAIM, read_only=True)
    return client.V1Volume(name=CLAIM, persistent_volume_claim=source)


def claim(context: RenderContext, namespace: str) -> Iterator[Body]:
    """Builds a volume and its claim for one namespace: a volume binds one claim only."""
    name = f"{CLAIM}-{namespace}"
    storage = {"storage": "1Ti"}
    spec = {
        "accessModes": ["ReadOnlyMany"],
        "capacity": storage,
        "claimRef": {
            "kind": "PersistentVolumeClaim",
            "name": CLAIM,
            "namespace": namespace,
        },
        "csi": {
            "driver": FUSE_DRIVER,
            "readOnly": True,
            "volumeAttributes": {"mountOptions": "implicit-dirs"},
            "volumeHandle": context.platform.buckets["data"],
        },
        "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": "",
    }
    yield manifest("v1", "PersistentVolume", meta(name), spec=spec)
    claim_spec = {
        "accessModes": ["ReadOnlyMany"],
        "resources": {"requests": storage},
        "storageClassName": "",
        "volumeName": name,
    }
    yield manifest("v1", "PersistentVolumeClaim", meta(CLAIM, namespace), spec=claim_spec)
