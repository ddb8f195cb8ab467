"""Sorts the offers of a platform for a job: those that it may take, and why it takes no other.

The simulation gets an offer on each capacity of the price list, also on those that the job cannot
have: people ask what these would cost.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from holdfast.cost.prices import Quote, Table
from holdfast.jobs.file.job_fields import AUTO
from holdfast.jobs.file.job_file import JobSpec
from holdfast.jobs.plan.offers import Offer, list_fitting, list_offers, list_too_small, refuse
from holdfast.place.job import Offered
from holdfast.platform import Platform
from holdfast.support.errors import InputError
from holdfast.vocabulary.capacity import Capacity

_CHEAPEST_FIRST = (
    Capacity.RESERVED,
    Capacity.SPOT,
    Capacity.FLEX_START,
    Capacity.QUEUED,
    Capacity.ON_DEMAND,
)


@dataclass(frozen=True, slots=True)
class Candidates:
    """A job on a platform, with the offers that have enough GPUs and what speaks against each."""

    job: JobSpec
    platform: Platform
    prices: Table
    refusals: Mapping[Offer, str]
    usable: Sequence[Offer] = field(default=())
    """The offers that the job may take, the cheapest capacity first."""


def sort_offers(job: JobSpec, platform: Platform, prices: Table) -> Candidates:
    """Sort the offers for a job. Raises InputError if it may take none."""
    fitting = list_fitting(platform, job.accelerator, job.gpu_count, job.pods)
    refusals = {offer: refuse(job, offer) for offer in fitting}
    usable = [offer for offer, reason in refusals.items() if not reason]
    usable.sort(
        key=lambda offer: (_CHEAPEST_FIRST.index(offer.capacity), offer.usd(platform, prices))
    )
    if job.capacity != AUTO:
        usable = _select_offers(job, usable, refusals)
    if not usable:
        raise InputError(
            "no capacity for this job",
            got="; ".join(
                [
                    *list_too_small(platform, job),
                    *(f"{offer.capacity.value}: {text}" for offer, text in refusals.items()),
                ]
            ),
            allowed="another number of nodes, or GPUs",
            fix="change what the reason names: --nodes, or --set scratch=SIZE",
        )
    return Candidates(job, platform, prices, refusals, usable)


def _select_offers(
    job: JobSpec, usable: Sequence[Offer], refusals: Mapping[Offer, str]
) -> list[Offer]:
    """Return the usable offers of the capacity that the file states."""
    stated_offers = [offer for offer in usable if offer.capacity == job.capacity]
    if stated_offers:
        return stated_offers
    reasons = {offer.capacity: reason for offer, reason in refusals.items()}
    reason = reasons.get(Capacity(job.capacity))
    if not reason:
        reason = f"{job.environment} has no such machines with this capacity"
    capacities = sorted({offer.capacity.value for offer in usable})
    raise InputError(
        f"capacity: {reason}",
        got=job.capacity,
        allowed=", ".join(capacities) or "none for this job",
        fix=f"--capacity {AUTO}, or other GPUs",
    )


def collect_offers(candidates: Candidates) -> dict[Capacity, Offered]:
    """Return what the platform has on each capacity of the price list."""
    offers: dict[Capacity, Offered] = {}
    for capacity in (Capacity.ON_DEMAND, Capacity.FLEX_START, Capacity.SPOT):
        usable = [offer for offer in candidates.usable if offer.capacity.product is capacity]
        fitting = [offer for offer in candidates.refusals if offer.capacity.product is capacity]
        if usable:
            offers[capacity] = _make_offered(candidates, usable[0], "")
        elif fitting:
            offer = _choose_unusable(candidates.job, fitting)
            reason = (
                candidates.refusals[offer] or f"the file states capacity: {candidates.job.capacity}"
            )
            offers[capacity] = _make_offered(candidates, offer, reason)
        else:
            offers[capacity] = _make_missing(candidates, capacity)
    return offers


def _choose_unusable(job: JobSpec, fitting: Sequence[Offer]) -> Offer:
    """Return the offer whose reason fits the job: queued nodes are for gangs only."""
    capacity = Capacity.QUEUED if job.gang else Capacity.FLEX_START
    for offer in fitting:
        if offer.capacity is capacity:
            return offer
    return fitting[0]


def _make_offered(candidates: Candidates, offer: Offer, refused: str) -> Offered:
    bound = ""
    if offer.capacity is Capacity.QUEUED:
        bound = "a gang that was provisioned at once is bound to those nodes"
    return Offered(
        machine=offer.machine,
        quote=offer.quote(candidates.job, candidates.platform, candidates.prices),
        refused=refused,
        bound=bound,
    )


def _make_missing(candidates: Candidates, capacity: Capacity) -> Offered:
    """Return the price of a capacity that the platform does not have, for comparison."""
    machine = next(iter(candidates.refusals)).machine
    quote: Quote | None = candidates.prices.quote(
        machine, candidates.platform.price_region, capacity
    )
    if quote is not None:
        share = candidates.job.gpu_count / machine.gpus
        quote = replace(quote, usd=quote.usd * share * candidates.job.pods)
    return Offered(
        machine=machine,
        quote=quote,
        refused=_explain_missing(candidates, capacity),
    )


def _explain_missing(candidates: Candidates, capacity: Capacity) -> str:
    job = candidates.job
    for offer in list_offers(candidates.platform):
        is_same = offer.accelerator == job.accelerator and offer.capacity.product is capacity
        if is_same and offer.machine.gpus >= job.gpu_count:
            return (
                f"{candidates.platform.name} lends at most {offer.lent_gpus} GPUs {capacity.value}"
            )
    return f"{candidates.platform.name} has no group of {job.gpus} {capacity.value} for jobs"
