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
