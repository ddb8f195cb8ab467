"""Adds to a pod what a job needs: the start of its program, its volumes, a batch's queue."""

import io
from dataclasses import replace

from kubernetes import client
from ruamel.yaml import YAML

from holdfast.jobs.file.formats import parse_bucket, parse_secret
from holdfast.jobs.file.job_fields import OnNotice
from holdfast.jobs.file.job_file import JobSpec
from holdfast.manifests import data, database
from holdfast.manifests.batch import queue_options
from holdfast.manifests.pods import PodSettings, Size, annotation, container
from holdfast.manifests.policies import RENDEZVOUS_PORT
from holdfast.manifests.render_context import Body, RenderContext, meta, plain
from holdfast.manifests.training import HEAD
from holdfast.platform import Platform
from holdfast.support.errors import InputError
from holdfast.vocabulary.environment import ENV_KEY_FILE, ENV_POINT
from holdfast.vocabulary.exit_codes import EXIT_PREEMPTED
from holdfast.vocabulary.kubernetes import (
    ANNOTATION_INDEX,
    FUSE_DRIVER,
    SECRETS_API,
    SECRETS_DRIVER,
    SECRETS_PROVIDER,
)
from holdfast.vocabulary.roles import KSA_NAMESPACES

COPIES_PATH = "/copies"
RANKS = ["python", "-m", "holdfast", "train", "ranks", "--processes"]
DRAIN_HOOK = client.V1LifecycleHandler(
    _exec=client.V1ExecAction(command=["python", "-m", "holdfast.runtime.drain"])
)
# `wait` returns when the trap has run, so it is called again while the child is there. Exit code 0
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


def add_start(job: JobSpec, work: PodSettings) -> PodSettings:
    """Wrap the command as the job's kind and its handling of notices need it."""
    if job.predictor:
        return work
    # torchrun's agent would exit with 1, and each eviction of a node would count as a crash.
    if job.sharded:
        options = [
            "--sharded",
            "--copies",
            str(job.copies),
            "--wait",
            f"{job.wait_s:.0f}",
        ]
        if job.elastic:
            options += ["--min-nodes", str(job.min_nodes)]
        if job.copies_gib:
            options += ["--copies-folder", COPIES_PATH]
        command = [
            *RANKS,
            str(_processes(job)),
            *options,
            "--",
            *work.command,
        ]
        work = replace(work, command=command)
    elif job.elastic and _processes(job) > 1:
        command = [
            *RANKS,
            str(_processes(job)),
            "--",
            *work.command,
        ]
        work = replace(work, command=command)
    ranks = ("NODE_RANK", "PET_NODE_RANK") if job.gang else ()
    from_pod = work.from_pod | {name: annotation(ANNOTATION_INDEX) for name in ranks}
    work = replace(work, env=_torchrun(job) | work.env, from_pod=from_pod)
    if job.on_notice == OnNotice.DRAIN:
        return replace(work, pre_stop=DRAIN_HOOK)
    if job.on_notice == OnNotice.WRAP:
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


def _torchrun(job: JobSpec) -> dict[str, str]:
    """Return the variables that torchrun takes instead of options (PET_*), and their plain names.

    Scripts that start one process themselves read the plain names. RANK and WORLD_SIZE are left to
    the launcher: a single process that found them would wait for peers.
    """
    nodes = job.pods if job.gang or job.sharded else 1
    sizes = {
        "NNODES": str(nodes),
        "NPROC_PER_NODE": str(_processes(job)),
    }
    head: dict[str, str] = {}
    if job.gang:
        head = {
            "MASTER_ADDR": HEAD,
            "MASTER_PORT": str(RENDEZVOUS_PORT),
        }
    return sizes | _with_prefix(sizes) | head | _with_prefix(head)


def _with_prefix(variables: dict[str, str]) -> dict[str, str]:
    return {f"PET_{name}": value for name, value in variables.items()}


def _processes(job: JobSpec) -> int:
    """Return the number of processes of a pod."""
    return job.processes or max(job.gpu_count, 1)


# The add-on mounts values and makes no Kubernetes Secret, so a program gets a path: VARIABLE_FILE,
# as images that take secrets from files name it.

SECRETS_PATH = "/etc/holdfast/secrets"
KEY = "checkpoint-key"


def add_volumes(job: JobSpec, work: PodSettings) -> PodSettings:
    """Mount the claims, the data and the secrets of the job."""
    volumes: list[tuple[client.V1Volume, str]] = []
    for number, (path, name) in enumerate(sorted(job.claims.items())):
        volumes.append((_claim(number, name), path))
    env: dict[str, str] = {}
    other_volumes: list[client.V1Volume] = []
    if job.data:
        volumes.append((_dataset(job), data.PATH))
    if job.copies_gib:
        # On a node with local SSDs, the folder is on them.
        folder = client.V1EmptyDirVolumeSource(size_limit=f"{job.copies_gib}Gi")
        volumes.append((client.V1Volume(name="copies", empty_dir=folder), COPIES_PATH))
    if job.cache:
        other_volumes.append(data.cache_volume(job.cache_mib, in_memory=job.caches_in_memory))
    if secret_files(job):
        volumes.append((_secrets(job), SECRETS_PATH))
        for variable in job.secrets:
            env[f"{variable}_FILE"] = f"{SECRETS_PATH}/{variable}"
        if job.checkpoint_key:
            env[ENV_KEY_FILE] = f"{SECRETS_PATH}/{KEY}"
    sidecar: dict[str, str] = {}
    if job.data:
        sidecar = data.size_sidecar(job.cache_mib, in_memory=job.caches_in_memory)
    return replace(
        work,
        volumes=volumes,
        other_volumes=other_volumes,
        env=work.env | env,
        annotations=work.annotations | sidecar,
    )


def secret_files(job: JobSpec) -> dict[str, str]:
    """Return the secret behind each file of the mounted folder."""
    files = dict(job.secrets)
    if job.checkpoint_key:
        files[KEY] = job.checkpoint_key
    return files


def list_secrets(job: JobSpec) -> list[str]:
    """Return each secret that the job mounts once, although several files may hold it."""
    return sorted(set(secret_files(job).values()))


def find_output(job: JobSpec, platform: Platform) -> str:
    """Return the URL of the folder for the results of a run, which no other run has."""
    run = f"{job.name}-$({ENV_POINT})" if job.sweep else job.name
    if job.output:
        return f"{job.output.rstrip('/')}/{run}"
    base = job.checkpoints.rstrip("/") or platform.checkpoints_of(job.name, job.home)
    return f"{base}/{run}/output"


def disk(job: JobSpec) -> str:
    """Return the disk of the pod: /tmp, logs and the container's own layer."""
    return f"{job.disk_gib}Gi"


def provider_class(job: JobSpec, context: RenderContext) -> Body | None:
    """Return the object that names the secrets, or None if the job has none.

    Their values never pass through the manifest.
    """
    if not secret_files(job):
        return None
    _require_add_on(job, context.platform)
    folder = f"projects/{context.platform.project}/secrets"
    resources: list[dict[str, str]] = []
    for file, secret in sorted(secret_files(job).items()):
        name, version = parse_secret(secret)
        resources.append({"resourceName": f"{folder}/{name}/versions/{version}", "path": file})
    stream = io.StringIO()
    YAML().dump(resources, stream)
    return {
        "apiVersion": SECRETS_API,
        "kind": "SecretProviderClass",
        "metadata": plain(meta(job.name, job.home)),
        "spec": {
            "provider": SECRETS_PROVIDER,
            "parameters": {"secrets": stream.getvalue()},
        },
    }


def _require_add_on(job: JobSpec, platform: Platform) -> None:
    """Raise InputError without the add-on: the pod would wait for a volume that nothing mounts."""
    if not platform.security.secret_manager:
        secrets = ", ".join(list_secrets(job))
        raise InputError(
            "secrets by reference need GKE's Secret Manager add-on",
            got=f"{secrets}, with the add-on off in {platform.name}",
            allowed="an environment with security.secret_manager",
            fix=f"ask the platform team to set security.secret_manager of {platform.name}",
        )


def _dataset(job: JobSpec) -> client.V1Volume:
    name, folder = parse_bucket("data", job.data)
    options = "implicit-dirs" + (f",only-dir={folder}" if folder else "")
    attributes = {"bucketName": name, "mountOptions": options}
    if job.cache:
        attributes = data.add_cache(attributes, job.cache_mib)
    source = client.V1CSIVolumeSource(
        driver=FUSE_DRIVER,
        read_only=True,
        volume_attributes=attributes,
    )
    return client.V1Volume(name=data.CLAIM, csi=source)


def _secrets(job: JobSpec) -> client.V1Volume:
    attributes = {"secretProviderClass": job.name}
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


def add_batch(job: JobSpec, context: RenderContext, work: PodSettings) -> PodSettings:
    """Make the pods workers of a batch.

    They take items from the results database's queue, and end when it is empty.
    """
    require_lane(job, context.platform)
    results = database.access(context, context.platform.role_in(job.home, "batch"))
    command = [
        *_HOLDFAST,
        "run",
        job.name,
        *queue_options(context, job.lane),
    ]
    command += ["--predictor", job.predictor]
    command += ["--window", str(work.grace_s)]
    if job.predict_seconds:
        command += ["--set", f"predict_timeout_s={job.predict_seconds:g}"]
    return replace(
        work,
        command=[*command, *job.command],
        env=results.env | work.env,
        sidecars=[*work.sidecars, *results.sidecars, _make_loader(job, context, work, results)],
        volumes=[*work.volumes, *results.volumes],
    )


def require_lane(job: JobSpec, platform: Platform) -> None:
    """Raise InputError if the environment has no such lane, or not for this namespace."""
    if not job.lane:
        return
    if job.lane > platform.lanes:
        raise InputError(
            f"lane: {platform.name} has no such lane on Pub/Sub",
            got=job.lane,
            allowed=f"0 to {platform.lanes}",
            fix=(
                "leave it out: items queue in the results database; or the platform team sets"
                f" lanes={job.lane} in Queue of {platform.name}"
            ),
        )
    if platform.role_in(job.home, job.role) != job.role:
        raise InputError(
            "lane: the account of this namespace has no rights to it",
            got=f"lane {job.lane} in {job.home}",
            allowed=f"0, or the namespace {KSA_NAMESPACES[job.role]}",
            fix="leave it out: items queue in the results database",
        )


def _source_options(job: JobSpec) -> list[str]:
    """Return the options of `batch enqueue` that name the items."""
    if not job.rows:
        return ["--source", data.PATH]
    pattern, *columns = job.rows.split(" ")
    options = ["--source", f"{data.PATH}/{pattern}"]
    for option, column in zip(("--id-column", "--body-column"), columns, strict=False):
        options += [option, column]
    return options


def _make_loader(
    job: JobSpec,
    context: RenderContext,
    work: PodSettings,
    results: database.Access,
) -> client.V1Container:
    """Return the container that fills the queue before a worker starts.

    Every pod has it: queueing is idempotent, and a worker that came first would find nothing to do
    and call the batch done.
    """
    settings = replace(
        work,
        command=[
            *_HOLDFAST,
            "enqueue",
            job.name,
            *_source_options(job),
            *queue_options(context, job.lane),
        ],
        size=Size(cpu="1", memory="2Gi"),
        env=results.env | work.env,
        volumes=[*work.volumes, *results.volumes],
    )
    return container(context, settings, name="load")
