"""A job file to what is sent: everything that can be wrong with it is found here, before anything is written."""

from dataclasses import dataclass, replace

from holdfast.contract.errors import Stopped
from holdfast.jobs.own import images, outside, placing, rendered
from holdfast.jobs.own.job_file import LOSES, OnNotice, OwnJob
from holdfast.jobs.own.placing import Placed
from holdfast.manifests import database
from holdfast.manifests.render_context import Body, RenderContext
from holdfast.place import prices
from holdfast.platform import Platform


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    job: OwnJob
    """With its image by digest."""
    platform: Platform
    placed: Placed
    bodies: list[Body]
    text: str
    notes: list[str]
    """For whoever starts it: why it runs there, what it loses, what was not checked."""


def prepare(job: OwnJob, platform: Platform) -> Prepared:
    """Raises InputError, and Stopped for a job of another environment: nothing was written and nothing sent."""
    if job.environment != platform.name:
        raise Stopped(
            f"{job.name} is a job of another environment", got=job.environment, allowed=str(platform),
            fix="choose the cluster of its environment, or change `environment` in its file",
        )  # fmt: skip
    context = RenderContext(platform)
    placed = placing.place(job, platform, prices.load())
    image = images.resolve(job.image, context)
    if job.predictor and platform.database:
        images.require(context, database.PROXY)
    fixed = replace(job, image=image.image)
    found = rendered.bodies(fixed, context, placed)
    text = rendered.text(fixed, found)
    rendered.judge(f"{job.name}.yaml", text, platform)
    notes = [f"placed on {placed.reason}", image.warning, _loses(job), _in_no_queue(job), *outside.check(job, platform)]
    return Prepared(
        job=fixed, platform=platform, placed=placed, bodies=found, text=text, notes=[note for note in notes if note]
    )


def _in_no_queue(job: OwnJob) -> str:
    return "steady: in no queue, so neither its share nor its turn is kept for it" if job.steady else ""


def _loses(job: OwnJob) -> str:
    lost = LOSES[OnNotice(job.on_notice)]
    return f"on_notice {job.on_notice}: {lost}" if lost else ""
