"""What a pod of a job has in addition to its image: how its program starts, what it mounts, the
queue of a batch.
"""

import io
from dataclasses import replace

from kubernetes import client
from ruamel.yaml import YAML

from holdfast.jobs.file.formats import bucket, secret
from holdfast.jobs.file.job_file import OnNotice, OwnJob
from holdfast.manifests import data, database
from holdfast.manifests.pods import PodSettings, Size, annotation, container
from holdfast.manifests.policies import RENDEZVOUS_PORT
from holdfast.manifests.render_context import Body, RenderContext, meta, plain
from holdfast.manifests.training import HEAD
from holdfast.platform import Platform
from holdfast.support.errors import InputError
from holdfast.vocabulary.environment import ENV_KEY_FILE
from holdfast.vocabulary.exit_codes import EXIT_PREEMPTED
from holdfast.vocabulary.kubernetes import (
    ANNOTATION_INDEX,
    FUSE_DRIVER,
    SECRETS_API,
    SECRETS_DRIVER,
    SECRETS_PROVIDER,
)

RANKS = ["python", "-m", "holdfast", "train", "ranks", "--processes"]
DRAIN_HOOK = client.V1LifecycleHandler(
    _exec=client.V1ExecAction(command=["python", "-m", "holdfast.runtime.drain"])
)
# `wait` returns when the trap has run, so it is called again while the child is there. An end of 0
# after a notice would mark the index complete and lose the work.
WRAPPER = f"""\
noticed=
trap 'noticed=1; kill -TERM "$child" 2>/dev/null' TERM
"$@" &
child=$!
while wait "$child"; code=$?; kill -0 "$child" 2>/dev/null; do :; done
[ -n "$noticed" ] && exit {EXIT_PREEMPTED}
exit "$code"
"""


def started(own: OwnJob, work: PodSettings) -> PodSettings:
    if own.predictor:
        return work
    # torchrun's agent would end with 1, and each eviction of a node count as its crash.
    if own.sharded:
        kept = [
            "--sharded",
            "--copies",
            str(own.copies),
            "--wait",
            f"{own.wait_hours * 3600:.0f}",
        ]
        work = replace(
            work,
            command=[
                *RANKS,
                str(_processes(own)),
                *kept,
                "--",
                *work.command,
            ],
        )
    elif own.elastic and _processes(own) > 1:
        work = replace(
            work,
            command=[
                *RANKS,
                str(_processes(own)),
                "--",
                *work.command,
            ],
        )
    ranks = ("NODE_RANK", "PET_NODE_RANK") if own.gang else ()
    from_pod = work.from_pod | {name: annotation(ANNOTATION_INDEX) for name in ranks}
    work = replace(work, env=_torchrun(own) | work.env, from_pod=from_pod)
    if own.on_notice == OnNotice.DRAIN:
        return replace(work, pre_stop=DRAIN_HOOK)
    if own.on_notice == OnNotice.WRAP:
        return replace(
            work,
            command=[
                "/bin/sh",
                "-c",
                WRAPPER,
                "wrap",
                *work.command,
            ],
        )
    return work


def _torchrun(own: OwnJob) -> dict[str, str]:
    """What torchrun takes instead of options (PET_*), and what scripts read that start one process
    themselves.

    RANK and WORLD_SIZE are left to the launcher: a single process that found them would wait for
    peers.
    """
    processes = _processes(own)
    nodes = own.pods if own.gang or own.sharded else 1
    found: dict[str, object] = {"NNODES": nodes, "NPROC_PER_NODE": processes}
    found |= {f"PET_{name}": value for name, value in found.items()}
    if own.gang:
        head = {"MASTER_ADDR": HEAD, "MASTER_PORT": RENDEZVOUS_PORT}
        found |= head | {f"PET_{name}": value for name, value in head.items()}
    return {name: str(value) for name, value in found.items()}


def _processes(own: OwnJob) -> int:
    """Of a pod."""
    return own.processes or max(own.gpu_count, 1)


# The add-on mounts values and makes no Kubernetes Secret, so a program gets a path: VARIABLE_FILE,
# as images that take secrets from files name it.

SECRETS_PATH = "/etc/holdfast/secrets"
KEY = "checkpoint-key"
_LOGS_GIB = 2  # in addition to /tmp: logs and the container's own layer


def mounted(own: OwnJob, work: PodSettings) -> PodSettings:
    """With its claims, its data and its secrets."""
    volumes = []
    for number, (path, name) in enumerate(sorted(own.claims.items())):
        volumes.append((_claim(number, name), path))
    env: dict[str, str] = {}
    if own.data:
        volumes.append((_dataset(own), data.PATH))
    if secret_files(own):
        volumes.append((_secrets(own), SECRETS_PATH))
        env = {f"{variable}_FILE": f"{SECRETS_PATH}/{variable}" for variable in own.secrets}
        env |= {ENV_KEY_FILE: f"{SECRETS_PATH}/{KEY}"} if own.checkpoint_key else {}
    sidecar = data.SIDECAR if own.data else {}
    return replace(
        work,
        volumes=volumes,
        env=work.env | env,
        annotations=work.annotations | sidecar,
    )


def secret_files(own: OwnJob) -> dict[str, str]:
    """File -> secret."""
    return dict(own.secrets) | ({KEY: own.checkpoint_key} if own.checkpoint_key else {})


def disk(own: OwnJob) -> str:
    """Of the pod: /tmp, logs and the container's own layer."""
    number = int(own.scratch[:-2])
    unit = own.scratch[-2:]
    gib = number if unit == "Gi" else -(-number // 1024)
    return f"{gib + _LOGS_GIB}Gi"


def provider_class(own: OwnJob, context: RenderContext) -> Body | None:
    """Names the secrets; None where there are none. Their values never pass through the manifest."""
    if not secret_files(own):
        return None
    _require_add_on(own, context.platform)
    parts = ((file, *secret(named)) for file, named in sorted(secret_files(own).items()))
    project = f"projects/{context.platform.project}/secrets"
    listed = [
        {"resourceName": f"{project}/{name}/versions/{version}", "path": file}
        for file, name, version in parts
    ]
    stream = io.StringIO()
    YAML().dump(listed, stream)
    return {
        "apiVersion": SECRETS_API,
        "kind": "SecretProviderClass",
        "metadata": plain(meta(own.name, own.home)),
        "spec": {
            "provider": SECRETS_PROVIDER,
            "parameters": {"secrets": stream.getvalue()},
        },
    }


def _require_add_on(own: OwnJob, platform: Platform) -> None:
    """Without its driver the pod would wait for a volume that nothing mounts."""
    if not platform.security.secret_manager:
        raise InputError(
            "secrets by reference need GKE's Secret Manager add-on",
            got=(
                f"{', '.join(sorted(set(secret_files(own).values())))}, with the add-on off in"
                f" {platform.name}"
            ),
            allowed="an environment with security.secret_manager",
            fix=(
                f"the platform team sets secret_manager=True in Security of {platform.name}, then"
                " make deploy"
            ),
        )


def _dataset(own: OwnJob) -> client.V1Volume:
    name, folder = bucket("data", own.data)
    options = "implicit-dirs" + (f",only-dir={folder}" if folder else "")
    attributes = {"bucketName": name, "mountOptions": options}
    source = client.V1CSIVolumeSource(
        driver=FUSE_DRIVER,
        read_only=True,
        volume_attributes=attributes,
    )
    return client.V1Volume(name=data.CLAIM, csi=source)


def _secrets(own: OwnJob) -> client.V1Volume:
    attributes = {"secretProviderClass": own.name}
    source = client.V1CSIVolumeSource(
        driver=SECRETS_DRIVER,
        read_only=True,
        volume_attributes=attributes,
    )
    return client.V1Volume(name="secrets", csi=source)


def _claim(number: int, name: str) -> client.V1Volume:
    source = client.V1PersistentVolumeClaimVolumeSource(claim_name=name, read_only=True)
    return client.V1Volume(name=f"claim-{number}", persistent_volume_claim=source)


_HOLDFAST = ("python", "-m", "holdfast", "batch")


def predicting(own: OwnJob, context: RenderContext, work: PodSettings) -> PodSettings:
    """Workers that take items from the results database's queue, and end when it is empty."""
    results = database.access(context, context.platform.role_in(own.home, "batch"))
    command = [
        *_HOLDFAST,
        "run",
        own.name,
        "--predictor",
        own.predictor,
        "--window",
        str(work.grace_s),
    ]
    command += (
        ["--set", f"predict_timeout_s={own.predict_seconds:g}"] if own.predict_seconds else []
    )
    return replace(
        work,
        command=[*command, *own.command],
        env=results.env | work.env,
        sidecars=[*results.sidecars, _loader(own, context, work, results)],
        volumes=[*work.volumes, *results.volumes],
    )


def _loader(
    own: OwnJob,
    context: RenderContext,
    work: PodSettings,
    results: database.Access,
) -> client.V1Container:
    """Fills the queue before a worker starts. In every pod: queueing is idempotent, and a worker
    that came first would find nothing to do and call the batch done.
    """
    command = [
        *_HOLDFAST,
        "enqueue",
        own.name,
        "--source",
        data.PATH,
    ]
    volumes = [*work.volumes, *results.volumes]
    size = Size(cpu="1", memory="2Gi")
    env = results.env | work.env
    loading = replace(
        work,
        command=command,
        size=size,
        env=env,
        volumes=volumes,
    )
    return container(context, loading, name="load")
