"""Builds the token of a pod's account for its sidecars alone.

Kubernetes mounts a token in all containers of a pod or in none. The container that reads the
requests of clients gets none, so that a fault in it cannot use the rights of a sidecar.
"""

from kubernetes import client

from holdfast.vocabulary.kubernetes import ACCOUNT_FOLDER

_VOLUME = "token"
_TOKEN_S = 3600
"""Lifetime of a token, which the kubelet replaces in time."""
_AUTHORITY = "kube-root-ca.crt"
"""ConfigMap that Kubernetes puts into each namespace."""


def token_volume() -> client.V1Volume:
    """Builds the volume of a pod with `PodSettings.sidecars_call_kubernetes`."""
    token = client.V1ServiceAccountTokenProjection(
        path="token",
        expiration_seconds=_TOKEN_S,
    )
    certificate = client.V1KeyToPath(key="ca.crt", path="ca.crt")
    authority = client.V1ConfigMapProjection(
        name=_AUTHORITY,
        items=[certificate],
    )
    projected = client.V1ProjectedVolumeSource(
        sources=[
            client.V1VolumeProjection(service_account_token=token),
            client.V1VolumeProjection(config_map=authority),
        ]
    )
    return client.V1Volume(name=_VOLUME, projected=projected)


def token_mount() -> client.V1VolumeMount:
    """Builds the mount of a sidecar that calls the API server."""
    return client.V1VolumeMount(
        name=_VOLUME,
        mount_path=ACCOUNT_FOLDER,
        read_only=True,
    )
