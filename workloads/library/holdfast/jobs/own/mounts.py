"""What a job mounts: the dataset and claims read-only, secrets as files of Secret Manager's add-on."""

# The add-on mounts values and makes no Kubernetes Secret, so a program gets a path: VARIABLE_FILE, as images that take
# secrets from files name it.
import io
from dataclasses import dataclass

from kubernetes import client
from ruamel.yaml import YAML

from holdfast.contract.environment import ENV_KEY_FILE
from holdfast.contract.errors import InputError
from holdfast.contract.kubernetes import FUSE_DRIVER, SECRETS_API, SECRETS_DRIVER, SECRETS_PROVIDER
from holdfast.jobs.own import forms
from holdfast.jobs.own.job_file import OwnJob
from holdfast.manifests import data
from holdfast.manifests.render_context import Body, RenderContext, meta, plain
from holdfast.platform import Platform

SECRETS_PATH = "/etc/holdfast/secrets"
KEY = "checkpoint-key"
_LOGS_GIB = 2  # beside /tmp: logs and the container's own layer


@dataclass(frozen=True, kw_only=True, slots=True)
class Mounted:
    volumes: list[tuple[client.V1Volume, str]]
    env: dict[str, str]
    annotations: dict[str, str]


def of(own: OwnJob) -> Mounted:
    volumes = [(_claim(number, name), path) for number, (path, name) in enumerate(sorted(own.claims.items()))]
    env: dict[str, str] = {}
    if own.data:
        volumes.append((_dataset(own), data.PATH))
    if files(own):
        volumes.append((_secrets(own), SECRETS_PATH))
        env = {f"{variable}_FILE": f"{SECRETS_PATH}/{variable}" for variable in own.secrets}
        env |= {ENV_KEY_FILE: f"{SECRETS_PATH}/{KEY}"} if own.checkpoint_key else {}
    return Mounted(volumes=volumes, env=env, annotations=data.SIDECAR if own.data else {})


def files(own: OwnJob) -> dict[str, str]:
    """File -> secret."""
    return dict(own.secrets) | ({KEY: own.checkpoint_key} if own.checkpoint_key else {})


def disk(own: OwnJob) -> str:
    """Of the pod: /tmp and what is written beside it."""
    number, unit = int(own.scratch[:-2]), own.scratch[-2:]
    gib = number if unit == "Gi" else -(-number // 1024)
    return f"{gib + _LOGS_GIB}Gi"


def provider_class(own: OwnJob, context: RenderContext) -> Body | None:
    """Names the secrets; None where there are none. Their values never pass through the manifest."""
    if not files(own):
        return None
    _require_add_on(own, context.platform)
    listed = [_entry(context.platform.project, file, secret) for file, secret in sorted(files(own).items())]
    stream = io.StringIO()
    YAML().dump(listed, stream)
    return {
        "apiVersion": SECRETS_API,
        "kind": "SecretProviderClass",
        "metadata": plain(meta(own.name, own.namespace)),
        "spec": {"provider": SECRETS_PROVIDER, "parameters": {"secrets": stream.getvalue()}},
    }


def _require_add_on(own: OwnJob, platform: Platform) -> None:
    """Without its driver the pod would wait for a volume that nothing mounts."""
    if not platform.security.secret_manager:
        raise InputError(
            "secrets by reference need GKE's Secret Manager add-on",
            got=f"{', '.join(sorted(set(files(own).values())))}, with the add-on off in {platform.name}",
            allowed="an environment with security.secret_manager",
            fix=f"the platform team sets secret_manager=True in Security of {platform.name}, then make deploy",
        )


def _entry(project: str, file: str, secret: str) -> dict[str, str]:
    name, version = forms.secret("secret", secret)
    return {"resourceName": f"projects/{project}/secrets/{name}/versions/{version}", "path": file}


def _dataset(own: OwnJob) -> client.V1Volume:
    bucket, folder = forms.bucket("data", own.data)
    options = "implicit-dirs" + (f",only-dir={folder}" if folder else "")
    attributes = {"bucketName": bucket, "mountOptions": options}
    source = client.V1CSIVolumeSource(driver=FUSE_DRIVER, read_only=True, volume_attributes=attributes)
    return client.V1Volume(name=data.CLAIM, csi=source)


def _secrets(own: OwnJob) -> client.V1Volume:
    source = client.V1CSIVolumeSource(
        driver=SECRETS_DRIVER, read_only=True, volume_attributes={"secretProviderClass": own.name}
    )
    return client.V1Volume(name="secrets", csi=source)


def _claim(number: int, name: str) -> client.V1Volume:
    source = client.V1PersistentVolumeClaimVolumeSource(claim_name=name, read_only=True)
    return client.V1Volume(name=f"claim-{number}", persistent_volume_claim=source)
