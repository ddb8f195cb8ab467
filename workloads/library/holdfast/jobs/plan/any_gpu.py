"""Places a job that takes any of several GPUs: the cheapest first, the next if it is sold out."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from holdfast.cost.prices import Table
from holdfast.jobs.file.job_fields import AUTO, MAX_HOURS
from holdfast.jobs.file.job_file import JobSpec
from holdfast.jobs.plan import placement
from holdfast.jobs.plan.offers import Offer, list_fitting
from holdfast.jobs.plan.placement import Beliefs, Placed
from holdfast.manifests.gpu_choices import GpuChoice, list_gpu_choices, shorten
from holdfast.place import output
from holdfast.place.matrix import decide
from holdfast.platform import Platform
from holdfast.support.errors import InputError
from holdfast.vocabulary.capacity import Capacity


@dataclass(frozen=True, slots=True)
class _Choice:
    offer: Offer
    usd: float
    """Price of a machine for an hour."""
    speed: float
    """Measured steps per second; 0 if unknown."""

    def usd_per_million_steps(self) -> float:
        return self.usd / (self.speed * 3600) * 1e6

    def __str__(self) -> str:
        price = f"${self.usd:.2f} an hour" if math.isfinite(self.usd) else "no price"
        if self.speed:
            price += f", ${self.usd_per_million_steps():.2f} per million steps"
        return f"{self.offer.machine.gpus}x{shorten(self.offer.accelerator)} ({price})"


def place(
    job: JobSpec,
    platform: Platform,
    prices: Table,
    beliefs: Beliefs | None = None,
) -> Placed:
    """Choose the machine of a job, or the order of its GPUs if it takes any of several.

    Raises InputError if the environment has no such GPUs, or not with this capacity, or if the job
    would not end there in time.
    """
    if len(job.gpu_choices) < 2:
        return placement.place(job, platform, prices, beliefs)
    _require_spot(job)
    choices = _sort([_find_choice(job, place, platform, prices) for place in job.gpu_choices])
    gpu_choice = GpuChoice(job.gpu_count, tuple(choice.offer.accelerator for choice in choices))
    if gpu_choice not in list_gpu_choices(platform):
        raise InputError(
            f"gpus: {platform.name} makes no machines of several GPUs for a job",
            got=job.gpus,
            allowed=", ".join(entry.name for entry in list_gpu_choices(platform))
            or "one kind of GPU",
            fix="name one GPU, or ask the platform team for auto_provisioning of each of them",
        )
    _require_quota(job, gpu_choice, platform)
    smallest = min(choices, key=lambda choice: _room(choice.offer))
    jobs = _split_by_gpu(job, choices)
    simulated = _simulate(jobs, choices, platform, prices, beliefs or Beliefs())
    limits_h = [placement.choose_limit(alone, None) for alone in jobs]
    limits_h += [placed.limit_h for placed in simulated]
    basis = "price per measured step" if all(choice.speed for choice in choices) else "price"
    return Placed(
        offer=replace(smallest.offer, pools=tuple(gpu_choice.select_pools(platform))),
        rule=decide(placement.find_traits(job)).id,
        reason=f"spot, by {basis}: {', else '.join(map(str, choices))}{_describe_end(simulated)}",
        # Late enough for each of its GPUs.
        limit_h=max(limits_h),
        gpu_choice=gpu_choice,
    )


def _require_quota(job: JobSpec, gpu_choice: GpuChoice, platform: Platform) -> None:
    """Raise InputError if the queue never lends the GPUs of all pods at once."""
    lent_gpus = gpu_choice.quota(platform)
    if job.gpu_count * job.pods <= lent_gpus:
        return
    raise InputError(
        f"{platform.name} lends fewer GPUs of any kind at once than {job.pods} x {job.gpu_count}",
        got=f"{job.gpus} in {job.pods} pods",
        allowed=f"at most {lent_gpus} GPUs in {gpu_choice.name}",
        fix="lower parallel" if job.sweep else "take fewer nodes",
    )


def _split_by_gpu(job: JobSpec, choices: Sequence[_Choice]) -> list[JobSpec]:
    """Return the job as it is on each of its GPUs alone, with its hours there.

    Its own hours are those on the fastest, if every speed is known. Raises InputError if its work
    on one of them is not done before `max_hours`.
    """
    speeds = [choice.speed for choice in choices]
    jobs: list[JobSpec] = []
    for choice in choices:
        factor = max(speeds) / choice.speed if all(speeds) else 1.0
        longest_h = MAX_HOURS // job.rounds
        # Never less than the file says, which the division of a sweep's hours may round down to.
        hours = max(job.hours, min(job.hours * factor, longest_h))
        gpus = f"{job.gpu_count}x{shorten(choice.offer.accelerator)}"
        _require_time(job, gpus, hours)
        jobs.append(
            replace(
                job,
                gpus=gpus,
                hours=hours,
                speeds={},
                capacity=Capacity.SPOT.value,
            )
        )
    return jobs


def _require_time(job: JobSpec, gpus: str, hours: float) -> None:
    """Raise InputError if undisturbed work on a GPU is not done before `max_hours`."""
    total_h = hours * job.rounds
    if not job.max_hours or total_h < job.max_hours:
        return
    raise InputError(
        f"max_hours: the work does not end before on {gpus}",
        got=f"max_hours {job.max_hours:g}; {total_h:.4g} h of work on {gpus}",
        allowed=f"more than {total_h:.4g} h",
        fix=f"raise max_hours, or leave {gpus} out",
    )


def _simulate(
    jobs: Sequence[JobSpec],
    choices: Sequence[_Choice],
    platform: Platform,
    prices: Table,
    beliefs: Beliefs,
) -> list[Placed]:
    """Return the places of a job on each of its GPUs alone; none if its hours are not known.

    Raises InputError if its bad end on one of them is after `max_hours`.
    """
    simulated: list[Placed] = []
    for job, choice in zip(jobs, choices, strict=True):
        if not job.hours:
            continue
        placed = placement.place_on(
            job,
            choice.offer,
            "any of several GPUs is for Spot",
            platform,
            prices,
            beliefs,
        )
        if placed is not None:
            simulated.append(placed)
    return simulated


def _describe_end(simulated: Sequence[Placed]) -> str:
    """Return the likely and the bad end on the GPU that ends last, or an empty text."""
    options = [placed.decision.option for placed in simulated if placed.decision]
    if not options:
        return ""
    latest = max(options, key=lambda option: option.finish_at(95))
    return f". {output.describe_end(latest).rstrip('.')}"


def _require_spot(job: JobSpec) -> None:
    if job.capacity in (AUTO, Capacity.SPOT) and job.resumes:
        return
    raise InputError(
        "gpus: any of several is for Spot",
        got=f"capacity: {job.capacity}, resumes: {str(job.resumes).lower()}",
        allowed="capacity auto or spot, and a job that resumes",
        fix="name one GPU",
    )


def _find_choice(
    job: JobSpec,
    gpus: tuple[int, str],
    platform: Platform,
    prices: Table,
) -> _Choice:
    count, accelerator = gpus
    offers: list[Offer] = []
    for offer in list_fitting(platform, accelerator, count, 1):
        if offer.capacity is Capacity.SPOT and offer.machine.gpus == count:
            offers.append(offer)
    if not offers:
        raise InputError(
            f"gpus: no Spot pool of {platform.name} has machines of this kind",
            got=f"{count}x{shorten(accelerator)}",
            allowed=", ".join(entry.name for entry in list_gpu_choices(platform))
            or "one kind of GPU",
            fix="leave it out, or ask the platform team for a node group",
        )
    offer = min(offers, key=lambda offer: offer.usd(platform, prices))
    return _Choice(offer, offer.usd(platform, prices), job.find_speed(accelerator))


def _sort(choices: Sequence[_Choice]) -> list[_Choice]:
    """Sort by the price of a step if every speed is known, else by the price of an hour."""
    if all(choice.speed for choice in choices):
        return sorted(choices, key=_Choice.usd_per_million_steps)
    return sorted(choices, key=lambda choice: choice.usd)


def _room(offer: Offer) -> tuple[int, int]:
    return offer.machine.vcpus, offer.machine.memory_gib
