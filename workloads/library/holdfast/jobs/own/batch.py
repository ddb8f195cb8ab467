"""A batch with a predictor of one's own: every item of the dataset once, however often workers are evicted."""

from dataclasses import replace

from kubernetes import client

from holdfast.jobs.own.job_file import OwnJob
from holdfast.manifests import data, database
from holdfast.manifests.pods import Size, Work, container
from holdfast.manifests.render_context import RenderContext

_HOLDFAST = ("python", "-m", "holdfast", "batch")


def predicting(own: OwnJob, context: RenderContext, work: Work) -> Work:
    """Workers that take items from the results database's queue, and end when it is empty."""
    results = database.access(context, "batch")
    command = [*_HOLDFAST, "run", own.name, "--predictor", own.predictor, "--window", str(work.grace_s)]
    return replace(
        work,
        command=[*command, *own.command],
        env=results.env | work.env,
        sidecars=[*results.sidecars, _loader(own, context, work, results)],
        volumes=[*work.volumes, *results.volumes],
    )


def _loader(own: OwnJob, context: RenderContext, work: Work, results: database.Access) -> client.V1Container:
    """Fills the queue before a worker starts. In every pod: queueing is idempotent, and a worker that came first would
    find nothing to do and call the batch done."""
    command = [*_HOLDFAST, "enqueue", own.name, "--source", data.PATH]
    volumes = [*work.volumes, *results.volumes]
    loading = replace(
        work, command=command, size=Size(cpu="1", memory="2Gi"), env=results.env | work.env, volumes=volumes
    )
    return container(context, loading, name="load")
