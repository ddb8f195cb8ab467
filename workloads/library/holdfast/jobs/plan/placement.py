"""Which machines an environment offers, and which of them a job takes: as stated, as planned, or as
the matrix says.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from holdfast.cost.prices import Table
from holdfast.jobs.file.file_text import question
from holdfast.jobs.file.job_file import AUTO, OwnJob
from holdfast.jobs.plan.pricing import rate
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
from holdfast.vocabulary.machines import MACHINE_TYPES, MachineType, sold
from holdfast.vocabulary.pools import STAYING, Pool, Role

ROLES = (Role.BATCH, Role.TRAINING)


@dataclass(frozen=True, slots=True)
class Offer:
    capacity: Capacity
    accelerator: str
    machine: MachineType
    """The smallest of its class, so that a pod fits all of them."""
    lent_gpus: int
    """To all jobs at once."""
    pool: Pool | None = None
    """None: auto-provisioning makes the node."""

    def __str__(self) -> str:
        name = self.accelerator.removeprefix("nvidia-").removeprefix("tesla-")
        return f"{self.machine.gpus}x{name} {self.capacity.value} (at most {self.lent_gpus} GPUs)"

    def usd(self, platform: Platform, prices: Table) -> float:
        """Of a machine for an hour; infinite where the table has no price."""
        found = rate(
            self.machine,
            self.capacity,
            platform,
            prices,
            self.pool.own_usd_per_hour if self.pool else None,
        )
        return math.inf if found is None else found


def offers(platform: Platform) -> list[Offer]:
    return [*_of_groups(platform), *_provisioned(platform)]


def _of_groups(platform: Platform) -> Iterator[Offer]:
    """Flex-start groups are not among them: a pod on flex-start takes a node of a group or one that
    NAP makes.
    """
    for name, pools in platform.classes.items():
        first = pools[0]
        lent = platform.quota(name)
        bought = first.capacity in (Capacity.SPOT, *STAYING)
        if first.gpus_per_node and lent and first.role in ROLES and bought:
            smallest = min(pools, key=lambda p: _room(MACHINE_TYPES[p.machine_type]))
            machine = MACHINE_TYPES[smallest.machine_type]
            yield Offer(first.capacity, first.accelerator, machine, lent, smallest)


def _provisioned(platform: Platform) -> Iterator[Offer]:
    context = RenderContext(platform)
    for accelerator in platform.auto_provisioning:
        flex = context.flex_gpus(accelerator)
        queued = context.queued_gpus(accelerator)
        for capacity, lent in ((Capacity.FLEX_START, flex), (Capacity.QUEUED, queued)):
            machines = [
                m
                for m in MACHINE_TYPES.values()
                if m.accelerator == accelerator and m.gpus <= min(lent, 8)
            ]
            for gpus in sorted({m.gpus for m in machines if sold(m, capacity, platform.region)}):
                smallest = min((m for m in machines if m.gpus == gpus), key=_room)
                yield Offer(capacity, accelerator, smallest, lent)


def _room(machine: MachineType) -> tuple[int, int]:
    return machine.vcpus, machine.memory_gib


def fitting(platform: Platform, accelerator: str, gpus: int, nodes: int) -> list[Offer]:
    """Machines with at least that many GPUs, the smallest of each capacity. InputError where there
    is none.
    """
    known = offers(platform)
    same = [offer for offer in known if offer.accelerator == accelerator]
    large = [offer for offer in same if offer.machine.gpus >= gpus]
    found = [offer for offer in large if offer.lent_gpus >= gpus * nodes]
    if not found:
        what = f"no pool of {platform.name} has {gpus} such GPUs on a node"
        if large:
            what = f"{platform.name} lends fewer GPUs at once than {nodes} x {gpus}"
        elif not same:
            what = f"no pool of {platform.name} has this GPU"
        raise InputError(
            what,
            got=f"{gpus} x {accelerator} on {nodes} nodes",
            allowed="; ".join(map(str, same or known)) or "CPU only",
            fix=(
                "take fewer GPUs or nodes, or ask the platform team for a node group in"
                f" {platform.name}"
            ),
        )
    smallest = {}
    for c in {o.capacity for o in found}:
        smallest[c] = min(o.machine.gpus for o in found if o.capacity is c)
    return [offer for offer in found if offer.machine.gpus == smallest[offer.capacity]]


def cheapest_spot(platform: Platform, prices: Table) -> Offer:
    """The Spot machine with the lowest price; InputError where the environment has no Spot group."""
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
_OF = {
    Placement.SPOT: (Capacity.SPOT,),
    Placement.HYBRID: (Capacity.SPOT,),
    Placement.FLEX_START: (Capacity.FLEX_START, Capacity.QUEUED),
    Placement.ON_DEMAND: (Capacity.ON_DEMAND, Capacity.RESERVED),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Placed:
    offer: Offer | None
    """None: CPU only."""
    rule: PlacementRule
    reason: str
    plan: Plan | None = None
    """It may be moved: what was priced."""


def place(job: OwnJob, platform: Platform, prices: Table) -> Placed:
    """InputError where the environment has no such GPUs, or not with this capacity."""
    if not job.gpu_count:
        if job.capacity not in (AUTO, Capacity.ON_DEMAND):
            allowed = "auto, on-demand"
            raise InputError(
                "capacity of a job without GPUs",
                got=job.capacity,
                allowed=allowed,
                fix="leave it out",
            )
        reason = "on demand: without a GPU it costs little, and is not preempted"
        return Placed(
            offer=None,
            rule=PlacementRule.PLATFORM,
            reason=reason,
        )
    found = fitting(platform, job.accelerator, job.gpu_count, job.pods)
    refusals = [(offer, _refused(job, offer.capacity) or _closed(job, offer)) for offer in found]
    usable = [offer for offer, why in refusals if not why]
    by_price = sorted(
        usable,
        key=lambda offer: (_CHEAPEST_FIRST.index(offer.capacity), offer.usd(platform, prices)),
    )
    if job.capacity != AUTO:
        return _as_asked(job, by_price, dict((offer.capacity, why) for offer, why in refusals))
    if not by_price:
        why = "; ".join(f"{offer.capacity.value}: {why}" for offer, why in refusals)
        allowed = "another number of nodes, or GPUs"
        raise InputError(
            "no capacity for this job",
            got=why,
            allowed=allowed,
            fix="change --nodes",
        )
    if by_price[0].capacity is Capacity.RESERVED:
        reason = "reserved: it is paid for whether it runs or not"
        return Placed(
            offer=by_price[0],
            rule=_rule(job, Capacity.RESERVED),
            reason=reason,
        )
    # The planner counts a gang as lost with one of its nodes.
    if job.hours and not job.in_place:
        return _planned(job, platform, by_price)
    return _by_matrix(job, by_price)


def workload(job: OwnJob) -> Workload:
    """The job as the matrix sees it."""
    return Workload(
        kind=Kind.BATCH if job.predictor else Kind.TRAINING,
        resumable=job.resumes,
        nodes=job.pods if job.gang or job.in_place else 1,
        elastic=job.elastic,
        sharded=job.sharded,
        deadline=Deadline.of(job.hours, job.deadline_hours or math.inf),
        beyond_flex=job.hours * 3600 > FLEX_MAX_RUN_S,
    )


def _refused(job: OwnJob, capacity: Capacity) -> str:
    """Why a capacity cannot serve this job; empty where it can."""
    if capacity is Capacity.SPOT and not job.resumes:
        return "each eviction starts a job that cannot resume over"
    if job.in_place and capacity in (Capacity.FLEX_START, Capacity.QUEUED):
        other = "no sharded" if job.sharded else "a fixed number of nodes"
        return f"a lost node comes back after hours in a queue, or never: take spot, or {other}"
    if capacity is Capacity.FLEX_START and job.gang:
        return "its nodes come one by one, and a gang pays for those that wait: take queued"
    if capacity is Capacity.QUEUED and not job.gang:
        return "it is for nodes that must come together: take flex-start"
    return ""


def _closed(job: OwnJob, offer: Offer) -> str:
    """Why a reservation in calendar mode cannot serve this job; empty where it can."""
    begins, ends = offer.pool.reserved_days if offer.pool else ("", "")
    now = datetime.now(UTC)
    if begins and now.date() < date.fromisoformat(begins):
        return f"the reservation begins on {begins}"
    if ends and (now + timedelta(hours=job.hours)).date() > date.fromisoformat(ends):
        return f"the reservation ends on {ends}, before {job.hours:g} h of work are done"
    return ""


def _as_asked(job: OwnJob, usable: Sequence[Offer], refusals: Mapping[Capacity, str]) -> Placed:
    chosen = next((offer for offer in usable if offer.capacity == job.capacity), None)
    if chosen is None:
        why = (
            refusals.get(Capacity(job.capacity))
            or f"{job.environment} has no such machines with this capacity"
        )
        allowed = (
            ", ".join(sorted({offer.capacity.value for offer in usable})) or "none for this job"
        )
        fix = f"--capacity {AUTO}, or other GPUs"
        raise InputError(
            f"capacity: {why}",
            got=job.capacity,
            allowed=allowed,
            fix=fix,
        )
    return Placed(
        offer=chosen,
        rule=_rule(job, chosen.capacity),
        reason="as stated",
    )


def _by_matrix(job: OwnJob, usable: Sequence[Offer]) -> Placed:
    rule = decide(workload(job))
    chosen = next((offer for offer in usable if offer.capacity in _OF[rule.placement]), None)
    if chosen is not None:
        return Placed(
            offer=chosen,
            rule=rule.id,
            reason=f"{chosen.capacity.value}: {rule.reason}",
        )
    chosen = usable[0]
    reason = (
        f"{chosen.capacity.value}: {job.environment} does not offer {rule.placement.value}, the"
        " matrix's choice"
    )
    return Placed(
        offer=chosen,
        rule=_rule(job, chosen.capacity),
        reason=reason,
    )


def _planned(job: OwnJob, platform: Platform, usable: Sequence[Offer]) -> Placed:
    """By the planner's dollars and hours, over the machines that the environment has."""
    asked = question(
        job, usable[0].machine.gpus * job.pods, frozenset(offer.machine.name for offer in usable)
    )
    answer = recommendation.answer(asked, recommendation.make_world(asked), platform.price_region)
    for option in sorted(
        select_in_time(asked, answer.options), key=lambda o: (o is not answer.recommended, o.mean_usd)
    ):
        chosen = next((offer for offer in usable if offer.capacity in _OF[option.placement]), None)
        # A switch to on-demand in time needs the mover.
        moves = option.placement is Placement.HYBRID or in_time(option) is not None
        if chosen is None or (moves and not _movable(chosen, usable, option)):
            continue
        first = option is answer.recommended
        if first:
            reason = answer.reason
        else:
            reason = f"{option.policy}: the cheapest that {platform.name} offers"
        plan = _plan(asked, answer, option, chosen.capacity) if moves else None
        return Placed(
            offer=chosen,
            rule=_rule(job, chosen.capacity),
            reason=reason,
            plan=plan,
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
    return _by_matrix(job, usable)


def _movable(chosen: Offer, usable: Sequence[Offer], option: Option) -> bool:
    """Both ends of the way are there, and a policy of this platform, not a ComputeClass, walks it."""
    # A gang that was provisioned at once is bound to those nodes by its ProvisioningRequest.
    ends = chosen.capacity is not Capacity.QUEUED and Capacity.ON_DEMAND in {
        offer.capacity for offer in usable
    }
    return ends and in_time(option) is not None


def _plan(
    asked: Job,
    answer: Answer,
    option: Option,
    cheaper: Capacity,
) -> Plan:
    policy = in_time(option)
    price, demand = (
        advice.quote(asked, answer.world, option.region, c) for c in (cheaper, Capacity.ON_DEMAND)
    )
    assert policy is not None and price is not None and demand is not None, (
        "an option without a price is refused"
    )
    churn = advice.job_churn(asked, answer.world.churn.per_hour)
    # The end of a flex-start node is announced, so nothing is lost and no checkpoint is paid for.
    taken = cheaper is Capacity.SPOT
    return Plan(
        policy=policy.name,
        work_h=asked.hours,
        deadline_h=asked.deadline_h,
        restart_h=asked.restart_h,
        interval_h=min(advice.interval_h(asked, churn), asked.hours) if taken else 0.0,
        checkpoint_h=min(asked.checkpoint_h, asked.hours) if taken else 0.0,
        spot_usd=price.usd,
        on_demand_usd=demand.usd,
        spot_queue=QUEUES[cheaper],
    )


def _rule(job: OwnJob, capacity: Capacity) -> PlacementRule:
    """The row of the matrix that fits the job and places it so; else the row that fits it."""
    asked = workload(job)
    rows = (
        row for row in (decide(asked), *RULES) if row.when(asked) and capacity in _OF[row.placement]
    )
    return next((row.id for row in rows), decide(asked).id)
