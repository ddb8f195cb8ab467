"""Decides where a job runs: the one function behind `place`, `new-job` and `submit`.

It chooses among the machines that the environment offers. The job's file may state the capacity;
else the simulation chooses by price and time, or for a job without hours the decision matrix.
"""

# Why it is so: infra/decisions/0123, and for the shapes of a job infra/decisions/0142.

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from holdfast.cost.prices import Table
from holdfast.jobs.file.file_text import make_question
from holdfast.jobs.file.job_fields import AUTO
from holdfast.jobs.file.job_file import JobSpec
from holdfast.jobs.plan.eligible_offers import Candidates, collect_offers, sort_offers
from holdfast.jobs.plan.offers import RESTART_H, Offer, find_cpu_offer, list_offers
from holdfast.manifests.gpu_choices import GpuChoice
from holdfast.place import losses, recommendation
from holdfast.place.job import Job
from holdfast.place.matrix import RULES, Deadline, Kind, Traits, decide
from holdfast.place.options import Option, in_time
from holdfast.place.plan import Plan
from holdfast.place.recommendation import Answer
from holdfast.platform import Platform
from holdfast.support.errors import InputError, Unjudged
from holdfast.vocabulary.capacity import QUEUE_ANY, QUEUES, Capacity, Placement, PlacementRule
from holdfast.vocabulary.lifecycle import FLEX_MAX_RUN_S

DAYS_30_H = 720.0
WEEK_H = 168.0
_CAPACITIES = {
    Placement.SPOT: (Capacity.SPOT,),
    Placement.HYBRID: (Capacity.SPOT,),
    Placement.FLEX_START: (Capacity.FLEX_START, Capacity.QUEUED),
    Placement.ON_DEMAND: (Capacity.ON_DEMAND, Capacity.RESERVED),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The simulated answer to a job on a platform, and the option that was chosen."""

    question: Job
    answer: Answer

    @property
    def option(self) -> Option:
        return self.answer.recommended


@dataclass(frozen=True, kw_only=True, slots=True)
class Placed:
    offer: Offer | None
    """The machine; None for a job without GPUs that runs on demand."""
    rule: PlacementRule
    reason: str
    plan: Plan | None = None
    """The plan that was priced, if the job may be moved."""
    avoided_classes: tuple[str, ...] = ()
    """Pool classes of the same GPU for which a job with a plan was not priced."""
    limit_h: float = DAYS_30_H
    """The hours from its last start after which the job is stopped."""
    decision: Decision | None = None
    """The figures; None if none were needed or known."""
    gpu_choice: GpuChoice | None = None
    """The GPUs of which GKE takes one; the offer is then the smallest of their machines."""

    @property
    def queue(self) -> str:
        """The Kueue queue, which lends GPUs; empty for a job that needs none."""
        if self.gpu_choice is not None:
            return QUEUE_ANY
        if self.offer is None or not self.offer.accelerator:
            return ""
        return QUEUES[self.offer.capacity]


@dataclass(frozen=True, kw_only=True, slots=True)
class Beliefs:
    """Statements of a user about capacity and the job, in place of what is assumed."""

    churn: str = ""
    spot_wait_h: float | None = None
    checkpoint_h: float | None = None
    """The time for which a save blocks."""


def place(
    job: JobSpec,
    platform: Platform,
    prices: Table,
    beliefs: Beliefs | None = None,
) -> Placed:
    """Choose the machine of a job.

    Raises InputError if the environment has no such GPUs, or not with this capacity, or if the job
    would not end there in time.
    """
    if not job.gpu_count:
        return _place_without_gpus(job, platform)
    candidates = sort_offers(job, platform, prices)
    first = candidates.usable[0]
    if first.capacity is Capacity.RESERVED:
        return _place_on_reservation(job, first)
    if job.hours:
        placed = _place_by_price(candidates, beliefs or Beliefs())
        if placed is not None:
            return placed
    if job.capacity != AUTO:
        return Placed(
            offer=first,
            rule=_find_rule(job, first.capacity),
            reason="as stated",
            limit_h=choose_limit(job, None),
        )
    return _place_by_matrix(job, candidates.usable)


def _place_on_reservation(job: JobSpec, offer: Offer) -> Placed:
    # It runs there undisturbed: one start, then the work.
    _require_time(job, job.hours * job.rounds + RESTART_H)
    reason = "as stated" if job.capacity != AUTO else "reserved: it is paid for whether it runs"
    return Placed(
        offer=offer,
        rule=_find_rule(job, Capacity.RESERVED),
        reason=reason,
        limit_h=choose_limit(job, None),
    )


def find_traits(job: JobSpec) -> Traits:
    """Return the traits of the job that the matrix asks for."""
    return Traits(
        kind=Kind.BATCH if job.predictor else Kind.TRAINING,
        resumable=job.resumes,
        nodes=job.pods if job.gang or job.in_place else 1,
        elastic=job.elastic and not job.sharded,
        sharded=job.sharded,
        deadline=Deadline.of(job.hours, job.deadline_hours or math.inf),
        beyond_flex=job.hours * 3600 > FLEX_MAX_RUN_S,
    )


def _place_without_gpus(job: JobSpec, platform: Platform) -> Placed:
    if job.capacity not in (AUTO, Capacity.ON_DEMAND, Capacity.SPOT):
        raise InputError(
            "capacity of a job without GPUs",
            got=job.capacity,
            allowed="auto, spot, on-demand",
            fix="leave it out",
        )
    limit_h = choose_limit(job, None)
    offer = find_cpu_offer(job, platform)
    may_be_preempted = job.capacity == AUTO and job.resumes
    if job.capacity == Capacity.SPOT or may_be_preempted:
        if offer is not None:
            return Placed(
                offer=offer,
                rule=_find_rule(job, Capacity.SPOT),
                reason="spot: a preemption costs the work since the last save",
                limit_h=limit_h,
            )
        if job.capacity == Capacity.SPOT:
            raise InputError(
                "capacity: no Spot machine without GPUs holds a pod of this job",
                got=f"{job.cpus:g} cpus, {job.memory} memory, {job.scratch} scratch",
                allowed=f"what a Spot group without GPUs of {platform.name} has",
                fix=f"--capacity {AUTO}, or ask the platform team for such a group",
            )
    return Placed(
        offer=None,
        rule=PlacementRule.PLATFORM,
        reason="on demand: without a GPU it costs little, and is not preempted",
        limit_h=limit_h,
    )


def _place_by_matrix(job: JobSpec, usable: Sequence[Offer]) -> Placed:
    rule = decide(find_traits(job))
    offer = _find_offer(usable, rule.placement)
    if offer is not None:
        return Placed(
            offer=offer,
            rule=rule.id,
            reason=f"{offer.capacity.value}: {rule.reason}",
            limit_h=choose_limit(job, None),
        )
    offer = usable[0]
    return Placed(
        offer=offer,
        rule=_find_rule(job, offer.capacity),
        reason=(
            f"{offer.capacity.value}: {job.environment} does not offer {rule.placement.value}, the"
            " matrix's choice"
        ),
        limit_h=choose_limit(job, None),
    )


def _find_offer(usable: Sequence[Offer], placement: Placement) -> Offer | None:
    for offer in usable:
        if offer.capacity in _CAPACITIES[placement]:
            return offer
    return None


def place_on(
    job: JobSpec,
    offer: Offer,
    others_refused: str,
    platform: Platform,
    prices: Table,
    beliefs: Beliefs,
) -> Placed | None:
    """Place a job on one offer; None if it has no price.

    others_refused: why the job takes no other capacity. Raises InputError if the job would not end
    there in time.
    """
    refusals: dict[Offer, str] = {}
    for other in list_offers(platform):
        if other.accelerator != job.accelerator or other.machine.gpus < job.gpu_count:
            continue
        if other.capacity is not offer.capacity:
            refusals[other] = others_refused
    refusals[offer] = ""
    return _place_by_price(Candidates(job, platform, prices, refusals, [offer]), beliefs)


def _place_by_price(candidates: Candidates, beliefs: Beliefs) -> Placed | None:
    """Choose by simulated dollars and hours; None if nothing that the job may take has a price."""
    job = candidates.job
    offers = collect_offers(candidates)
    if all(offered.refused or offered.quote is None for offered in offers.values()):
        if job.deadline_hours:
            raise _no_price(candidates)
        return None
    question = make_question(job, offers)
    # A job that cannot resume saves nothing, whatever a save would take.
    if beliefs.checkpoint_h is not None and job.resumes:
        question = replace(question, checkpoint_h=beliefs.checkpoint_h)
    platform = candidates.platform
    world = recommendation.make_world(question, beliefs.churn, beliefs.spot_wait_h, platform.zones)
    try:
        answer = recommendation.answer(
            question, replace(world, prices=candidates.prices), platform.price_region
        )
    except Unjudged as error:
        raise _explain_refusal(candidates, question, str(error)) from error
    option = answer.recommended
    offer = _find_offer(candidates.usable, option.placement)
    assert offer is not None, "an option without an offer is not available"
    moves = option.placement is Placement.HYBRID or in_time(option) is not None
    plan = _make_plan(question, answer, option, offer.capacity) if moves else None
    return Placed(
        offer=offer,
        rule=_find_rule(job, offer.capacity),
        reason=answer.reason,
        plan=plan,
        avoided_classes=_list_other_classes(candidates, offer) if moves else (),
        limit_h=choose_limit(job, option),
        decision=Decision(question=question, answer=answer),
    )


def _list_other_classes(candidates: Candidates, offer: Offer) -> tuple[str, ...]:
    """Return the classes of this GPU whose machines are other than those that were priced.

    Kueue counts GPUs: it would admit eight of them on machines of one.
    """
    priced = {pool.pool_class or pool.name for pool in offer.pools}
    on_demand = _find_offer(candidates.usable, Placement.ON_DEMAND)
    if on_demand is not None:
        priced |= {pool.pool_class or pool.name for pool in on_demand.pools}
    classes: list[str] = []
    for name, pools in candidates.platform.classes.items():
        if pools[0].accelerator == offer.accelerator and name not in priced:
            classes.append(name)
    return tuple(classes)


def choose_limit(job: JobSpec, option: Option | None) -> float:
    """Return the hours after which the job is stopped: as the file says, else by its bad end."""
    if job.max_hours:
        return job.max_hours
    if option is None:
        # A job that hangs must not hold its machines for ever.
        return max(DAYS_30_H, 2 * job.hours * job.rounds, job.deadline_hours)
    bad_end_h = max(case.finish_at(95) for case in option.cases)
    return math.ceil(max(WEEK_H, 2 * bad_end_h, job.deadline_hours))


def _require_time(job: JobSpec, end_h: float) -> None:
    """Raise InputError if undisturbed work ends after the deadline, or after the job is stopped."""
    for name, limit_h in (("deadline_hours", job.deadline_hours), ("max_hours", job.max_hours)):
        if job.hours and limit_h and end_h >= limit_h:
            raise InputError(
                f"{name}: {job.hours:g} h of work do not end before",
                got=f"{limit_h:g} h",
                allowed=f"more than {end_h:.4g} h",
                fix=f"a larger {name}, or more GPUs so that hours shrinks",
            )


def _no_price(candidates: Candidates) -> InputError:
    return InputError(
        f"no price of what {candidates.platform.name} offers, so nothing is known of the deadline",
        got=f"{candidates.job.gpus} in {candidates.platform.price_region}",
        allowed="a GPU and region of `holdfast place prices`",
        fix="leave deadline_hours out, or state prices.region of the platform",
    )


def _explain_refusal(candidates: Candidates, question: Job, reasons: str) -> InputError:
    """Return the error of a job that does not end in time on anything that is offered."""
    job = candidates.job
    name = candidates.platform.name
    _, _, reason = reasons.partition(": ")
    got = f"{job.gpus}, {job.hours:g} h of work; {reason}"
    if job.deadline_hours:
        return InputError(
            f"nothing that {name} offers keeps the deadline",
            got=f"deadline_hours {job.deadline_hours:g}, {got}",
            allowed="on-demand or flex-start machines of this GPU, or both Spot and on-demand",
            fix=(
                "move the deadline, or ask the platform team for a NodeGroup with"
                " capacity=Capacity.ON_DEMAND and role=Role.TRAINING"
            ),
        )
    if math.isfinite(question.limit_h):
        return InputError(
            f"nothing that {name} offers ends before max_hours",
            got=f"max_hours {question.limit_h:g}, {got}",
            allowed="a bad end (p95) before it",
            fix="leave max_hours out, or raise it",
        )
    return InputError(
        f"the job does not end on what {name} offers",
        got=got,
        allowed="a capacity on which it ends",
        fix="change what the reason names: fewer nodes, shorter hours, or --capacity auto",
    )


def _make_plan(
    question: Job,
    answer: Answer,
    option: Option,
    cheaper: Capacity,
) -> Plan:
    policy = in_time(option)
    price = answer.world.quote(question, option.region, cheaper)
    demand = answer.world.quote(question, option.region, Capacity.ON_DEMAND)
    assert policy is not None and price is not None and demand is not None, (
        "an option without a price is refused"
    )
    interval_h = 0.0
    checkpoint_h = 0.0
    # The end of a flex-start node is announced, so nothing is lost and no checkpoint is paid for.
    if cheaper is Capacity.SPOT:
        churn = losses.job_churn(question, answer.world.churn.per_hour)
        interval_h = min(losses.find_interval(question, churn), question.hours)
        checkpoint_h = min(question.checkpoint_h, question.hours)
    return Plan(
        policy=policy.name,
        work_h=question.hours,
        deadline_h=question.deadline_h,
        restart_h=question.restart_h,
        interval_h=interval_h,
        checkpoint_h=checkpoint_h,
        spot_usd=price.usd,
        on_demand_usd=demand.usd,
        spot_queue=QUEUES[cheaper],
    )


def _find_rule(job: JobSpec, capacity: Capacity) -> PlacementRule:
    """Return the row of the matrix that fits the job and places it so, or the row that fits it."""
    traits = find_traits(job)
    first = decide(traits)
    for rule in (first, *RULES):
        if rule.when(traits) and capacity in _CAPACITIES[rule.placement]:
            return rule.id
    return first.id
