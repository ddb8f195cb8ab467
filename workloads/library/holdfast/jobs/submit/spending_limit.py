"""Judges the `max_usd` of a job file by the price of its machines."""

from holdfast.cost import prices
from holdfast.jobs.file.job_file import JobSpec
from holdfast.jobs.submit import submission
from holdfast.manifests.render_context import Body
from holdfast.platform import Platform
from holdfast.support.errors import InputError

LEAST_H = 0.5
"""The start of a machine, some work and a save: less buys nothing that is kept."""


def describe(job: JobSpec, bodies: list[Body], platform: Platform) -> str:
    """Return what the limit buys.

    Raises InputError if the machines have no price, if it buys nothing that is kept, or if the work
    costs more even undisturbed.
    """
    usd_per_hour = submission.plan(bodies, platform, prices.load()).usd_per_hour
    if usd_per_hour is None:
        raise InputError(
            "max_usd: the machines of the job have no price in the table",
            got=job.max_usd,
            allowed="0, or GPUs with a price",
            fix="leave it out: max_hours limits the job",
        )
    work_h = job.hours * job.rounds
    least_usd = max(LEAST_H, work_h) * usd_per_hour
    if job.max_usd <= least_usd:
        work = f"{work_h:g} h of undisturbed work" if work_h > LEAST_H else f"{LEAST_H:g} h"
        raise InputError(
            f"max_usd: {work} cost more",
            got=f"${job.max_usd:,.2f} at ${usd_per_hour:,.2f} an hour",
            allowed=f"more than ${least_usd:,.2f}, and room for restarts",
            fix="raise max_usd, or leave it out",
        )
    hours = job.max_usd / usd_per_hour
    return (
        f"max_usd: stopped with a last save before it has cost ${job.max_usd:,.2f}, after about"
        f" {hours:,.1f} h on its machines"
    )
