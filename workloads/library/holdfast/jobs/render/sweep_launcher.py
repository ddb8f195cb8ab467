"""Gives each pod of a sweep its parameters, and a run of its own."""

from dataclasses import replace

from holdfast.jobs.file import sweep_points
from holdfast.jobs.file.job_file import JobSpec
from holdfast.jobs.render import config_maps, sweep_point
from holdfast.jobs.render.programs import make_program
from holdfast.manifests.pods import PodSettings, annotation
from holdfast.manifests.render_context import Body
from holdfast.vocabulary.environment import ENV_POINT, ENV_RUN
from holdfast.vocabulary.kubernetes import ANNOTATION_INDEX

FOLDER = "/run/holdfast-sweep"
FILE = "points.json"
LAUNCH = make_program(sweep_point)


def add_sweep(job: JobSpec, work: PodSettings) -> tuple[PodSettings, list[Body]]:
    """Return the pod that starts the command with the parameters of its point, and the table."""
    table = config_maps.immutable("sweep", job.home, FILE, sweep_points.encode(job.points))
    volume = config_maps.volume("sweep", table)
    work = replace(
        work,
        command=[
            "python",
            "-c",
            LAUNCH,
            f"{FOLDER}/{FILE}",
            *work.command,
        ],
        # The controller's own variable comes last in a pod, so no other can refer to it.
        from_pod=work.from_pod | {ENV_POINT: annotation(ANNOTATION_INDEX)},
        env=work.env | {ENV_RUN: f"{job.name}-$({ENV_POINT})"},
        volumes=[*work.volumes, (volume, FOLDER)],
        run_per_index=True,
    )
    return work, [table]
