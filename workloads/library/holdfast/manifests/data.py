"""Datasets, read-only, through Cloud Storage FUSE. Checkpoints never go through it: a rename there is no commit."""

from collections.abc import Iterator

from kubernetes import client

from holdfast.contract.kubernetes import ANNOTATION_FUSE, FUSE_DRIVER
from holdfast.manifests.render_context import Body, RenderContext, meta, plain

CLAIM, PATH = "data", "/data"
# GKE adds the sidecar that serves the mount; unstated, its limits are small and it takes from no quota of ours.
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
    """A volume for each namespace: one binds one claim."""
    name = f"{CLAIM}-{namespace}"
    driver = client.V1CSIPersistentVolumeSource(
        driver=FUSE_DRIVER,
        volume_handle=context.platform.buckets["data"],
        read_only=True,
        volume_attributes={"mountOptions": "implicit-dirs"},
    )
    spec = client.V1PersistentVolumeSpec(
        access_modes=["ReadOnlyMany"],
        capacity={"storage": "1Ti"},
        persistent_volume_reclaim_policy="Retain",
        storage_class_name="",
        claim_ref=client.V1ObjectReference(kind="PersistentVolumeClaim", name=CLAIM, namespace=namespace),
        csi=driver,
    )
    yield plain(client.V1PersistentVolume(api_version="v1", kind="PersistentVolume", metadata=meta(name), spec=spec))
    wanted = client.V1PersistentVolumeClaimSpec(
        access_modes=["ReadOnlyMany"],
        storage_class_name="",
        volume_name=name,
        resources=client.V1VolumeResourceRequirements(requests={"storage": "1Ti"}),
    )
    yield plain(
        client.V1PersistentVolumeClaim(
            api_version="v1", kind="PersistentVolumeClaim", metadata=meta(CLAIM, namespace), spec=wanted
        )
    )
