"""Chooses the machine of a job among those that its environment offers.

The job's file may state the capacity; else the planner chooses by price, or the decision matrix.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from holdfast.cost.prices import Table
from holdfast.jobs.file.file_text import make_question
from holdfast.jobs.file.job_file import AUTO, OwnJob
from holdfast.jobs.plan.pricing import rate
from holdfast.manifests.gpu_choices import GpuChoice
from holdfast.manifests.render_context import RenderContext
from holdfast.place import advice, recommendation
from holdfast.place.job import Job
from holdfast.place.matrix import RULES, Deadline, Kind, Workload, decide
from holdfast.place.options import Option, in_time
from holdfast.place.plan import Plan
from holdfast.place.recommendation import Answer, select_in_time
from holdfast.platform import Platform
from holdfast.support.errors import InputError
from holdfast.vocabulary.capacity import QUEUES, Capacity, Placement, PlacementRule
from holdfast.vocabulary.lifecycle import FLEX_MAX_RUN_S
from holdfast.vocabulary.machines import MACHINE_TYPES, MachineType, is_sold
from holdfast.vocabulary.pools import STAYING, Pool, Role

ROLES = (Role.BATCH, Role.TRAINING)
MAX_GPUS_PER_NODE = 8
_WITH_LOCAL_SSD = ("a2-ultragpu", "a3-", "a4-", "a4x-", "g4-")


@dataclass(frozen=True, slots=True)
class Offer:
    capacity: Capacity
    accelerator: str
    machine: MachineType
    """The smallest machine of its class, so that a pod fits all of them."""
    lent_gpus: int
    """The most GPUs for all jobs at once."""
    pool: Pool | None = None
    """The pool; None if auto-provisioning makes the node."""

    def __str__(self) -> str:
        name = self.accelerator.removeprefix("nvidia-").removeprefix("tesla-")
        return f"{self.machine.gpus}x{name} {self.capacity.value} (at most {self.lent_gpus} GPUs)"

    def usd(self, platform: Platform, prices: Table) -> float:
        """Return the price of a machine for an hour; infinite if the table has none."""
        own_usd = self.pool.own_usd_per_hour if self.pool else None
        usd = rate(self.machine, self.capacity, platform, prices, own_usd)
        return math.inf if usd is None else usd


def offers(platform: Platform) -> list[Offer]:
    return [*_list_pool_offers(platform), *_list_auto_provisioning(platform)]


def _list_pool_offers(platform: Platform) -> Iterator[Offer]:
    """Yield an offer for each class of pools, except flex-start groups.

    A pod on flex-start takes a node of a group or one that NAP makes.
    """
    for name, pools in platform.classes.items():
        first = pools[0]
        lent_gpus = platform.quota(name)
        is_offered = first.capacity in (Capacity.SPOT, *STAYING)
        if first.gpus_per_node and lent_gpus and first.role in ROLES and is_offered:
            smallest = min(pools, key=lambda pool: _room(MACHINE_TYPES[pool.machine_type]))
            machine = MACHINE_TYPES[smallest.machine_type]
            yield Offer(first.capacity, first.accelerator, machine, lent_gpus, smallest)


def _list_auto_provisioning(platform: Platform) -> Iterator[Offer]:
    context = RenderContext(platform)
    for accelerator in platform.auto_provisioning:
        flex_gpus = context.flex_gpus(accelerator)
        queued_gpus = context.queued_gpus(accelerator)
        for capacity, lent in ((Capacity.FLEX_START, flex_gpus), (Capacity.QUEUED, queued_gpus)):
            for machine in _smallest_machines(platform, accelerator, capacity, lent):
                yield Offer(capacity, accelerator, machine, lent)


def _smallest_machines(
    platform: Platform, accelerator: str, capacity: Capacity, lent_gpus: int
) -> list[MachineType]:
    """Return the smallest machine of each number of GPUs that is sold on this capacity."""
    by_gpus: dict[int, list[MachineType]] = {}
    sizes: set[int] = set()
    for machine in MACHINE_TYPES.values():
        if machine.accelerator != accelerator or machine.gpus > min(lent_gpus, MAX_GPUS_PER_NODE):
            continue
        by_gpus.setdefault(machine.gpus, []).append(machine)
        if is_sold(machine, capacity, platform.region):
            sizes.add(machine.gpus)
    return [min(by_gpus[gpus], key=_room) for gpus in sorted(sizes)]


def _room(machine: MachineType) -> tuple[int, int]:
    return machine.vcpus, machine.memory_gib


def list_fitting(platform: Platform, accelerator: str, gpus: int, nodes: int) -> list[Offer]:
    """Return the machines with at least that many GPUs, the smallest of each capacity.

    Raises InputError if there is none.
    """
    all_offers = offers(platform)
    of_accelerator = [offer for offer in all_offers if offer.accelerator == accelerator]
    large = [offer for offer in of_accelerator if offer.machine.gpus >= gpus]
    fitting = [offer for offer in large if offer.lent_gpus >= gpus * nodes]
    if not fitting:
        problem = f"no pool of {platform.name} has {gpus} such GPUs on a node"
        if large:
            problem = f"{platform.name} lends fewer GPUs at once than {nodes} x {gpus}"
        elif not of_accelerator:
            problem = f"no pool of {platform.name} has this GPU"
        raise InputError(
            problem,
            got=f"{gpus} x {accelerator} on {nodes} nodes",
            allowed="; ".join(map(str, of_accelerator or all_offers)) or "CPU only",
            fix=(
                "take fewer GPUs or nodes, or ask the platform team for a node group in"
                f" {platform.name}"
            ),
        )
    smallest: dict[Capacity, int] = {}
    for offer in fitting:
        size = offer.machine.gpus
        smallest[offer.capacity] = min(size, smallest.get(offer.capacity, size))
    return [offer for offer in fitting if offer.machine.gpus == smallest[offer.capacity]]


def cheapest_spot(platform: Platform, prices: Table) -> Offer:
    """Return the Spot machine with the lowest price.

    Raises InputError if the environment has no Spot group.
    """
    spot = [offer for offer in offers(platform) if offer.capacity is Capacity.SPOT]
    if not spot:
        raise InputError(
            f"no Spot group in {platform.name}",
            got="none",
            allowed="one of role training or batch",
            fix=(
                "ask the platform team for a NodeGroup with capacity=Capacity.SPOT in"
                f" {platform.name}"
            ),
        )
    return min(spot, key=lambda offer: offer.usd(platform, prices))


_CHEAPEST_FIRST = (
    Capacity.RESERVED,
    Capacity.SPOT,
    Capacity.FLEX_START,
    Capacity.QUEUED,
    Capacity.ON_DEMAND,
)
_CAPACITIES = {
    Placement.SPOT: (Capacity.SPOT,),
    Placement.HYBRID: (Capacity.SPOT,),
    Placement.FLEX_START: (Capacity.FLEX_START, Capacity.QUEUED),
    Placement.ON_DEMAND: (Capacity.ON_DEMAND, Capacity.RESERVED),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Placed:
    offer: Offer | None
    """The machine; None for a job without GPUs."""
    rule: PlacementRule
    reason: str
    plan: Plan | None = None
    """The plan that was priced, if the job may be moved."""
    gpu_choice: GpuChoice | None = None
    """The GPUs of which GKE takes one; the offer is then the smallest of their machines."""


def place(job: OwnJob, platform: Platform, prices: Table) -> Placed:
    """Choose the machine of a job.

    Raises InputError if the environment has no such GPUs, or not with this capacity.
    """
    if not job.gpu_count:
        return _place_without_gpus(job)
    fitting = list_fitting(platform, job.accelerator, job.gpu_count, job.pods)
    refusals = [(offer, _refuse(job, offer)) for offer in fitting]
    usable = [offer for offer, reason in refusals if not reason]
    usable.sort(
        key=lambda offer: (_CHEAPEST_FIRST.index(offer.capacity), offer.usd(platform, prices))
    )
    if job.capacity != AUTO:
        reasons = {offer.capacity: reason for offer, reason in refusals}
        return _place_by_capacity(job, usable, reasons)
    if not usable:
        raise InputError(
            "no capacity for this job",
            got="; ".join(f"{offer.capacity.value}: {reason}" for offer, reason in refusals),
            allowed="another number of nodes, or GPUs",
            fix="change what the reason names: --nodes, or --set scratch=SIZE",
        )
    if usable[0].capacity is Capacity.RESERVED:
        return Placed(
            offer=usable[0],
            rule=_find_rule(job, Capacity.RESERVED),
            reason="reserved: it is paid for whether it runs or not",
        )
    # The planner counts a gang as lost with one of its nodes.
    if job.hours and not job.in_place:
        return _place_by_price(job, platform, usable)
    return _place_by_matrix(job, usable)


def workload(job: OwnJob) -> Workload:
    """Return the traits of the job that the matrix asks for."""
    return Workload(
        kind=Kind.BATCH if job.predictor else Kind.TRAINING,
        resumable=job.resumes,
        nodes=job.pods if job.gang or job.in_place else 1,
        elastic=job.elastic,
        sharded=job.sharded,
        deadline=Deadline.of(job.hours, job.deadline_hours or math.inf),
        beyond_flex=job.hours * 3600 > FLEX_MAX_RUN_S,
    )


def _place_without_gpus(job: OwnJob) -> Placed:
    if job.capacity not in (AUTO, Capacity.ON_DEMAND):
        raise InputError(
            "capacity of a job without GPUs",
            got=job.capacity,
            allowed="auto, on-demand",
            fix="leave it out",
        )
    return Placed(
        offer=None,
        rule=PlacementRule.PLATFORM,
        reason="on demand: without a GPU it costs little, and is not preempted",
    )


def _refuse(job: OwnJob, offer: Offer) -> str:
    """Return why an offer cannot serve this job, or an empty text if it can."""
    capacity = offer.capacity
    if capacity is Capacity.SPOT and not job.resumes:
        return "each eviction starts a job that cannot resume over"
    if job.in_place and capacity in (Capacity.FLEX_START, Capacity.QUEUED):
        other = "no sharded" if job.sharded else "a fixed number of nodes"
        return f"a lost node comes back after hours in a queue, or never: take spot, or {other}"
    if capacity is Capacity.FLEX_START and job.gang:
        return "its nodes come one by one, and a gang pays for those that wait: take queued"
    if capacity is Capacity.QUEUED and not job.gang:
        return "it is for nodes that must come together: take flex-start"
    return _refuse_by_disk(job, offer) or _refuse_by_calendar(job, offer)


def _refuse_by_disk(job: OwnJob, offer: Offer) -> str:
    """Return why no pod of the job fits the disk of a node, or an empty text.

    Nothing is refused if the disk is not known: that of a node that auto-provisioning makes, and
    of a machine whose local SSDs hold what pods write.
    """
    if offer.pool is None or offer.machine.name.startswith(_WITH_LOCAL_SSD):
        return ""
    free_gib = offer.pool.free_disk_gib
    if job.pod_disk_gib <= free_gib:
        return ""
    return (
        f"a pod takes {job.pod_disk_gib} GiB of disk ({_describe_disk(job)}), and a node of"
        f" {offer.pool.name} has {free_gib} GiB for pods: lower scratch or cache, or mount a claim"
    )


def warn_of_disk(job: OwnJob, platform: Platform) -> str:
    """Return a warning if no known disk holds what a pod takes, or an empty text.

    The disks of nodes that auto-provisioning makes are not in the platform's document.
    """
    largest_gib = max((pool.free_disk_gib for pool in platform.pools), default=0)
    if job.pod_disk_gib <= largest_gib:
        return ""
    return (
        f"not checked: a pod takes {job.pod_disk_gib} GiB of disk ({_describe_disk(job)}), and no node"
        f" pool of {platform.name} has more than {largest_gib} GiB for pods; on a node without"
        " larger disks the job waits for ever"
    )


def _describe_disk(job: OwnJob) -> str:
    cache = f", cache {job.cache}" if job.pod_disk_gib > job.disk_gib else ""
    return f"scratch {job.scratch}{cache}"


def _refuse_by_calendar(job: OwnJob, offer: Offer) -> str:
    """Return why a reservation in calendar mode cannot serve this job, or an empty text."""
    first_day, last_day = offer.pool.reserved_days if offer.pool else ("", "")
    now = datetime.now(UTC)
    if first_day and now.date() < date.fromisoformat(first_day):
        return f"the reservation begins on {first_day}"
    end = now + timedelta(hours=job.hours)
    if last_day and end.date() > date.fromisoformat(last_day):
        return f"the reservation ends on {last_day}, before {job.hours:g} h of work are done"
    return ""


def _place_by_capacity(
    job: OwnJob, usable: Sequence[Offer], reasons: Mapping[Capacity, str]
) -> Placed:
    for offer in usable:
        if offer.capacity == job.capacity:
            return Placed(
                offer=offer,
                rule=_find_rule(job, offer.capacity),
                reason="as stated",
            )
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


def _place_by_matrix(job: OwnJob, usable: Sequence[Offer]) -> Placed:
    rule = decide(workload(job))
    offer = _find_offer(usable, rule.placement)
    if offer is not None:
        return Placed(
            offer=offer,
            rule=rule.id,
            reason=f"{offer.capacity.value}: {rule.reason}",
        )
    offer = usable[0]
    return Placed(
        offer=offer,
        rule=_find_rule(job, offer.capacity),
        reason=(
            f"{offer.capacity.value}: {job.environment} does not offer {rule.placement.value}, the"
            " matrix's choice"
        ),
    )


def _find_offer(usable: Sequence[Offer], placement: Placement) -> Offer | None:
    for offer in usable:
        if offer.capacity in _CAPACITIES[placement]:
            return offer
    return None


def _place_by_price(job: OwnJob, platform: Platform, usable: Sequence[Offer]) -> Placed:
    """Choose by the planner's dollars and hours, over the machines that the environment has."""
    machines = frozenset(offer.machine.name for offer in usable)
    question = make_question(job, usable[0].machine.gpus * job.pods, machines)
    world = recommendation.make_world(question)
    answer = recommendation.answer(question, world, platform.price_region)
    options = select_in_time(question, answer.options)
    options.sort(key=lambda option: (option is not answer.recommended, option.mean_usd))
    for option in options:
        offer = _find_offer(usable, option.placement)
        # A switch to on-demand in time needs the mover.
        moves = option.placement is Placement.HYBRID or in_time(option) is not None
        if offer is None or (moves and not _can_move(offer, usable, option)):
            continue
        reason = f"{option.policy}: the cheapest that {platform.name} offers"
        if option is answer.recommended:
            reason = answer.reason
        return Placed(
            offer=offer,
            rule=_find_rule(job, offer.capacity),
            reason=reason,
            plan=_make_plan(question, answer, option, offer.capacity) if moves else None,
        )
    if job.deadline_hours:
        raise InputError(
            f"nothing that {platform.name} offers keeps the deadline",
            got=f"{job.deadline_hours:g} h for {job.hours:g} h of work",
            allowed="on-demand or flex-start machines of this GPU, or both Spot and on-demand",
            fix=(
                "add a NodeGroup with capacity=Capacity.ON_DEMAND and role=Role.TRAINING, or move"
                " the deadline"
            ),
        )
    return _place_by_matrix(job, usable)


def _can_move(offer: Offer, usable: Sequence[Offer], option: Option) -> bool:
    """Return whether the mover can take the job between this offer and on-demand.

    Both must be offered, and the policy must be one of the mover's, not of a ComputeClass.
    """
    # A gang that was provisioned at once is bound to those nodes by its ProvisioningRequest.
    if offer.capacity is Capacity.QUEUED or in_time(option) is None:
        return False
    return any(other.capacity is Capacity.ON_DEMAND for other in usable)


def _make_plan(
    question: Job,
    answer: Answer,
    option: Option,
    cheaper: Capacity,
) -> Plan:
    policy = in_time(option)
    price = advice.quote(question, answer.world, option.region, cheaper)
    demand = advice.quote(question, answer.world, option.region, Capacity.ON_DEMAND)
    assert policy is not None and price is not None and demand is not None, (
        "an option without a price is refused"
    )
    interval_h = 0.0
    checkpoint_h = 0.0
    # The end of a flex-start node is announced, so nothing is lost and no checkpoint is paid for.
    if cheaper is Capacity.SPOT:
        churn = advice.job_churn(question, answer.world.churn.per_hour)
        interval_h = min(advice.interval_h(question, churn), question.hours)
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


def _find_rule(job: OwnJob, capacity: Capacity) -> PlacementRule:
    """Return the row of the matrix that fits the job and places it so, or the row that fits it."""
    traits = workload(job)
    first = decide(traits)
    for rule in (first, *RULES):
        if rule.when(traits) and capacity in _CAPACITIES[rule.placement]:
            return rule.id
    return first.id
