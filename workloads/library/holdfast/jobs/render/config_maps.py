"""Builds ConfigMaps that never change: each is named by the digest of what it holds."""

import base64
import hashlib

from kubernetes import client

from holdfast.manifests.render_context import Body, manifest, meta
from holdfast.vocabulary.kubernetes import LABEL_NAME

DIGEST_LENGTH = 16


def immutable(prefix: str, namespace: str, key: str, data: bytes) -> Body:
    """Return a ConfigMap with one file.

    Jobs of the same content share it, so it is labeled by its prefix and by no job.
    """
    digest = hashlib.sha256(data).hexdigest()[:DIGEST_LENGTH]
    metadata = meta(f"{prefix}-{digest}", namespace, labels={LABEL_NAME: prefix})
    encoded = base64.b64encode(data).decode()
    return manifest(
        "v1",
        "ConfigMap",
        metadata,
        immutable=True,
        binaryData={key: encoded},
    )


def volume(name: str, body: Body) -> client.V1Volume:
    """Return the volume of a ConfigMap that `immutable` built."""
    source = client.V1ConfigMapVolumeSource(name=body["metadata"]["name"])
    return client.V1Volume(name=name, config_map=source)
