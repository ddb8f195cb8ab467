"""Gives a job the code of its source folder: an archive, and the container that unpacks it.

A small archive is a ConfigMap. A larger one is an object in the bucket of the checkpoints, below
the folder of the run, where the job's account may read.
"""

# Why it is so: infra/decisions/0126.

from dataclasses import replace

from kubernetes import client

from holdfast.jobs.file.formats import SOURCE, parse_bucket
from holdfast.jobs.file.job_file import JobSpec
from holdfast.jobs.render import config_maps
from holdfast.jobs.render.programs import make_program
from holdfast.jobs.source import unpack
from holdfast.jobs.source.archive import Archive, Upload
from holdfast.manifests import data
from holdfast.manifests.pods import PodSettings, Size, container
from holdfast.manifests.render_context import Body, RenderContext
from holdfast.platform import Platform
from holdfast.vocabulary.environment import ENV_SOURCE
from holdfast.vocabulary.job_identity import run_name
from holdfast.vocabulary.kubernetes import ANNOTATION_SOURCE, FUSE_DRIVER

FOLDER = "/run/holdfast-source"
FILE = "source.tar.gz"
UNPACK = make_program(unpack)


def find_upload(job: JobSpec, platform: Platform, archive: Archive) -> Upload | None:
    """Return what must be uploaded, or None if a ConfigMap has the archive."""
    if archive.fits_config_map:
        return None
    return Upload(url=f"{_find_folder(job, platform)}/{_name(archive)}", data=archive.data)


def add_source(
    job: JobSpec,
    context: RenderContext,
    work: PodSettings,
    archive: Archive,
) -> tuple[PodSettings, list[Body]]:
    """Return the pod with the code in its working directory, and the objects that it needs.

    The code is there before any other container starts, and no container can write to it.
    """
    digest = f"sha256:{archive.digest}"
    objects: list[Body] = []
    if archive.fits_config_map:
        file = FILE
        config_map = config_maps.immutable("source", job.home, FILE, archive.data)
        objects.append(config_map)
        packed = config_maps.volume("source-archive", config_map)
        annotations = work.annotations
    else:
        file = _name(archive)
        packed = _make_bucket_volume(_find_folder(job, context.platform))
        annotations = work.annotations | data.SIDECAR
    size_mib = 2 * archive.size // (1 << 20) + 16  # files take whole blocks
    folder = client.V1Volume(
        name="source", empty_dir=client.V1EmptyDirVolumeSource(size_limit=f"{size_mib}Mi")
    )
    mounts = [_mount(packed, FOLDER, read_only=True), _mount(folder, SOURCE)]
    unpacker = _make_unpacker(context, work, mounts, [f"{FOLDER}/{file}", archive.digest])
    work = replace(
        work,
        sidecars=[unpacker, *work.sidecars],
        other_volumes=[*work.other_volumes, packed, folder],
        mounts=[*work.mounts, _mount(folder, SOURCE, read_only=True)],
        working_dir=SOURCE,
        env=work.env | {ENV_SOURCE: digest},
        annotations=annotations | {ANNOTATION_SOURCE: digest},
    )
    return work, objects


def _make_unpacker(
    context: RenderContext,
    work: PodSettings,
    mounts: list[client.V1VolumeMount],
    arguments: list[str],
) -> client.V1Container:
    """Return the container that unpacks the archive, with the image of the job itself."""
    settings = replace(
        work,
        command=[
            "python",
            "-c",
            UNPACK,
            *arguments,
            SOURCE,
        ],
        size=Size(cpu="500m", memory="1Gi", disk="1Gi", scratch="16Mi"),
        sidecars=[],
        volumes=[],
        mounts=mounts,
        env={},
        from_pod={},
        pre_stop=None,
        calls_kubernetes=False,
    )
    return container(context, settings, name="source")


def _mount(
    volume: client.V1Volume, path: str, *, read_only: bool | None = None
) -> client.V1VolumeMount:
    return client.V1VolumeMount(
        name=volume.name,
        mount_path=path,
        read_only=read_only,
    )


def _name(archive: Archive) -> str:
    return f"{archive.digest}.tar.gz"


def _find_folder(job: JobSpec, platform: Platform) -> str:
    """Return the URL of the folder with the archives of a run."""
    base = job.checkpoints.rstrip("/") or platform.checkpoints_of(job.name, job.home)
    # A listed run may use only its own folder; a listed sweep has a folder for each point.
    run = run_name(job.name, 0 if job.sweep else None)
    return f"{base}/{run}/source"


def _make_bucket_volume(url: str) -> client.V1Volume:
    bucket, folder = parse_bucket("checkpoints", url)
    attributes = {"bucketName": bucket, "mountOptions": f"implicit-dirs,only-dir={folder}"}
    source = client.V1CSIVolumeSource(
        driver=FUSE_DRIVER,
        read_only=True,
        volume_attributes=attributes,
    )
    return client.V1Volume(name="source-archive", csi=source)
