"""Lists the machines that an environment offers to a job, and what speaks against each."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta

from holdfast.cost.prices import Quote, Table
from holdfast.jobs.file.job_file import JobSpec
from holdfast.jobs.plan.pricing import rate
from holdfast.manifests.render_context import RenderContext
from holdfast.platform import Platform
from holdfast.support.errors import InputError
from holdfast.support.values import GIB, quantity
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.lifecycle import FLEX_MAX_RUN_S
from holdfast.vocabulary.machines import MACHINE_TYPES, MachineType, is_sold
from holdfast.vocabulary.pools import JOB_ROLES, STAYING, Pool

MAX_GPUS_PER_NODE = 8
FLEX_MAX_RUN_H = FLEX_MAX_RUN_S / 3600
RESTART_H = 5 / 60
"""Time that a start of a job takes, until it has shown another."""
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
    """The pool; None if the node is of flex-start: of a group, or made by auto-provisioning."""
    pools: tuple[Pool, ...] = ()
    """All pools that can hold the pod, the smallest first; none if auto-provisioning makes nodes.
    """

    def __str__(self) -> str:
        name = self.accelerator.removeprefix("nvidia-").removeprefix("tesla-")
        return f"{self.machine.gpus}x{name} {self.capacity.value} (at most {self.lent_gpus} GPUs)"

    def usd(self, platform: Platform, prices: Table) -> float:
        """Return the price of a machine for an hour; infinite if the table has none."""
        own_usd = self.pool.own_usd_per_hour if self.pool else None
        usd = rate(self.machine, self.capacity, platform, prices, own_usd)
        return math.inf if usd is None else usd

    def quote(self, job: JobSpec, platform: Platform, prices: Table) -> Quote | None:
        """Return the price of all pods of a job an hour, in the most expensive pool.

        A pod in a pool pays for its share of the machine's GPUs. A node that auto-provisioning
        makes is the pod's own.
        """
        machines = [MACHINE_TYPES[pool.machine_type] for pool in self.pools] or [self.machine]
        most_expensive: Quote | None = None
        for machine in machines:
            quote = prices.quote(machine, platform.price_region, self.capacity.product)
            if quote is None:
                return None
            share = job.gpu_count / machine.gpus if self.pools else 1.0
            quote = replace(quote, usd=quote.usd * share * job.pods)
            if most_expensive is None or quote.usd > most_expensive.usd:
                most_expensive = quote
        return most_expensive


def list_offers(platform: Platform) -> list[Offer]:
    return [*_list_pool_offers(platform), *_list_auto_provisioning(platform)]


def list_too_small(platform: Platform, job: JobSpec) -> list[str]:
    """Return the capacities that have the job's GPU, and too few of them for all its nodes."""
    job_gpus = job.gpu_count * job.pods
    lent_gpus: dict[Capacity, int] = {}
    for offer in list_offers(platform):
        if offer.accelerator == job.accelerator and offer.machine.gpus >= job.gpu_count:
            lent = lent_gpus.get(offer.capacity, 0)
            lent_gpus[offer.capacity] = max(offer.lent_gpus, lent)
    return [
        f"{capacity.value}: {job_gpus} GPUs, and its pool has at most {gpus} at once"
        for capacity, gpus in lent_gpus.items()
        if gpus < job_gpus
    ]


def _list_pool_offers(platform: Platform) -> Iterator[Offer]:
    """Yield an offer for each class of pools, except flex-start groups.

    A pod on flex-start takes a node of a group or one that NAP makes.
    """
    for name, pools in platform.classes.items():
        first = pools[0]
        lent_gpus = platform.quota(name)
        is_offered = first.capacity in (Capacity.SPOT, *STAYING)
        if first.gpus_per_node and lent_gpus and first.role in JOB_ROLES and is_offered:
            by_room = tuple(sorted(pools, key=_pool_room))
            machine = MACHINE_TYPES[by_room[0].machine_type]
            yield Offer(first.capacity, first.accelerator, machine, lent_gpus, by_room[0], by_room)


def _list_auto_provisioning(platform: Platform) -> Iterator[Offer]:
    context = RenderContext(platform)
    for accelerator in platform.auto_provisioning:
        flex_gpus = context.flex_gpus(accelerator)
        queued_gpus = context.queued_gpus(accelerator)
        for capacity, lent in ((Capacity.FLEX_START, flex_gpus), (Capacity.QUEUED, queued_gpus)):
            for machine in _smallest_machines(platform, accelerator, capacity, lent):
                pools = _list_flex_pools(platform, accelerator, capacity, machine.gpus)
                yield Offer(capacity, accelerator, machine, lent, None, pools)


def _list_flex_pools(
    platform: Platform,
    accelerator: str,
    capacity: Capacity,
    gpus: int,
) -> tuple[Pool, ...]:
    """Return the pools of flex-start groups whose nodes have at least that many GPUs."""
    pools: list[Pool] = []
    for pool in platform.pools:
        is_flex = (pool.accelerator, pool.capacity) == (accelerator, capacity)
        if is_flex and pool.gpus_per_node >= gpus:
            pools.append(pool)
    return tuple(sorted(pools, key=_pool_room))


def _smallest_machines(
    platform: Platform,
    accelerator: str,
    capacity: Capacity,
    lent_gpus: int,
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


def _pool_room(pool: Pool) -> tuple[int, int]:
    return _room(MACHINE_TYPES[pool.machine_type])


def find_cpu_offer(job: JobSpec, platform: Platform) -> Offer | None:
    """Return the smallest Spot machine without GPUs whose nodes hold a pod of the job."""
    fitting: list[Pool] = []
    for pool in platform.pools:
        is_offered = pool.role in JOB_ROLES and pool.capacity is Capacity.SPOT
        if is_offered and not pool.gpus_per_node and _holds(pool, job):
            fitting.append(pool)
    if not fitting:
        return None
    smallest = min(fitting, key=_pool_room)
    machine = MACHINE_TYPES[smallest.machine_type]
    return Offer(Capacity.SPOT, "", machine, 0, smallest, (smallest,))


def _holds(pool: Pool, job: JobSpec) -> bool:
    """Return whether a node has the cores, memory and disk that a pod without GPUs asks for."""
    machine = MACHINE_TYPES[pool.machine_type]
    # GKE and the system's own pods take a core and up to a quarter of the memory of small machines.
    has_cores = job.cpus <= machine.vcpus - 1
    memory_bytes = quantity(job.memory) or 0
    has_memory = memory_bytes <= 0.75 * machine.memory_gib * GIB
    has_disk = job.pod_disk_gib <= pool.free_disk_gib
    return has_cores and has_memory and has_disk


def list_fitting(platform: Platform, accelerator: str, gpus: int, nodes: int) -> list[Offer]:
    """Return the machines with at least that many GPUs, the smallest of each capacity.

    Raises InputError if there is none.
    """
    all_offers = list_offers(platform)
    of_accelerator = [offer for offer in all_offers if offer.accelerator == accelerator]
    large = [offer for offer in of_accelerator if offer.machine.gpus >= gpus]
    fitting = [offer for offer in large if offer.lent_gpus >= gpus * nodes]
    if not fitting:
        problem = f"no pool of {platform.name} has {gpus} such GPUs on a node"
        change = "take fewer GPUs on a node"
        if large:
            problem = f"{platform.name} lends fewer GPUs at once than {nodes} x {gpus}"
            change = "take fewer GPUs or nodes"
        elif not of_accelerator:
            problem = f"no pool of {platform.name} has this GPU"
            change = "take one of these GPUs"
        raise InputError(
            problem,
            got=f"{gpus} x {accelerator} on {nodes} nodes",
            allowed="; ".join(map(str, of_accelerator or all_offers)) or "CPU only",
            fix=f"{change}, or ask the platform team for a node group in {platform.name}",
        )
    smallest: dict[Capacity, int] = {}
    for offer in fitting:
        gpus = offer.machine.gpus
        known_gpus = smallest.get(offer.capacity, gpus)
        smallest[offer.capacity] = min(gpus, known_gpus)
    return [offer for offer in fitting if offer.machine.gpus == smallest[offer.capacity]]


def cheapest_spot(platform: Platform, prices: Table) -> Offer:
    """Return the Spot machine with the lowest price.

    Raises InputError if the environment has no Spot group.
    """
    spot = [offer for offer in list_offers(platform) if offer.capacity is Capacity.SPOT]
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


def outlives_flex(job: JobSpec) -> bool:
    """Return whether a job that cannot resume works longer than a flex-start node lives."""
    return not job.resumes and job.hours + RESTART_H > FLEX_MAX_RUN_H


def refuse(job: JobSpec, offer: Offer) -> str:
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
    if capacity in (Capacity.FLEX_START, Capacity.QUEUED) and outlives_flex(job):
        return (
            f"its nodes end after {FLEX_MAX_RUN_H:g} h, and the job cannot resume: {job.hours:g} h"
            " of work do not end there"
        )
    return _refuse_by_disk(job, offer) or _refuse_by_calendar(job, offer)


def _refuse_by_disk(job: JobSpec, offer: Offer) -> str:
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


def describe_unknown_disk(job: JobSpec, platform: Platform) -> str:
    """Return a warning if no known disk holds what a pod takes, or an empty text.

    The disks of nodes that auto-provisioning makes are not in the platform's document.
    """
    largest_gib = max((pool.free_disk_gib for pool in platform.pools), default=0)
    if job.pod_disk_gib <= largest_gib:
        return ""
    return (
        f"not checked: a pod takes {job.pod_disk_gib} GiB of disk ({_describe_disk(job)}), and no"
        f" node pool of {platform.name} has more than {largest_gib} GiB for pods; on a node without"
        " larger disks the job waits for ever"
    )


def _describe_disk(job: JobSpec) -> str:
    cache = f", cache {job.cache}" if job.pod_disk_gib > job.disk_gib else ""
    copies = f", copies {job.copies_gib}Gi" if job.copies_gib else ""
    return f"scratch {job.scratch}{cache}{copies}"


def _refuse_by_calendar(job: JobSpec, offer: Offer) -> str:
    """Return why a reservation in calendar mode cannot serve this job, or an empty text."""
    first_day, last_day = offer.pool.reserved_days if offer.pool else ("", "")
    now = datetime.now(UTC)
    if first_day and now.date() < date.fromisoformat(first_day):
        return f"the reservation begins on {first_day}"
    work_h = job.hours * job.rounds
    end = now + timedelta(hours=work_h)
    if last_day and end.date() > date.fromisoformat(last_day):
        return f"the reservation ends on {last_day}, before {work_h:g} h of work are done"
    return ""
