"""What starting a manifest buys: machines and dollars an hour; and the receipt.

A pod pays for its share of a machine's GPUs; a job without GPUs has no price in the table and says
so.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from holdfast.clients.api import Object
from holdfast.cost import prices
from holdfast.cost.prices import Table
from holdfast.cost.receipt import receipt
from holdfast.jobs.diagnose.cluster_snapshot import gpus
from holdfast.jobs.diagnose.job_snapshot import JobSnapshot, ran_s
from holdfast.ledger.disruptions import eviction
from holdfast.ledger.events import read_folder
from holdfast.ledger.job_ledger import job_ledgers
from holdfast.ledger.processes import FOREIGN_TYPES
from holdfast.lint.platform import tolerates
from holdfast.platform import Platform
from holdfast.support.values import GIB, quantity
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.machines import MACHINE_TYPES, MachineType
from holdfast.vocabulary.pools import LABEL_ACCELERATOR, LABEL_FLEX_START, LABEL_SPOT, Pool


@dataclass(frozen=True, kw_only=True, slots=True)
class Purchase:
    job: str
    capacity: Capacity
    pools: tuple[str, ...]
    pods: int
    gpus: int
    usd_per_hour: float | None
    """Of the most expensive pool that may serve it, or of the machine that auto-provisioning would
    take; None where the table has no price.
    """


def pools_of(pod_spec: Object, platform: Platform) -> list[Pool]:
    """The pools of the environment whose nodes the pod selects and tolerates."""
    selector: dict[str, str] = pod_spec.get("nodeSelector", {})
    known = [pool for pool in platform.pools if selector.items() <= pool.node_labels().items()]
    tolerations = pod_spec.get("tolerations", ())
    return [
        pool
        for pool in known
        if all(any(tolerates(t, taint) for t in tolerations) for taint in pool.taints)
    ]


def capacity_of(pod_spec: Object) -> Capacity:
    """By the selector alone, for nodes that no environment lists."""
    selector: dict[str, str] = pod_spec.get("nodeSelector", {})
    if LABEL_FLEX_START in selector:
        return Capacity.FLEX_START
    return Capacity.SPOT if LABEL_SPOT in selector else Capacity.ON_DEMAND


def rate(
    machine: MachineType,
    capacity: Capacity,
    platform: Platform,
    table: Table,
    own: float | None,
) -> float | None:
    """Dollars of a machine for an hour; None without a price. `own`: of a reservation. Queued nodes
    cost what flex-start costs.
    """
    if own is not None:
        return own
    sold_as = Capacity.FLEX_START if capacity is Capacity.QUEUED else capacity
    quote = table.quote(machine, platform.price_region, sold_as)
    return quote.usd if quote else None


def provisioned(pod_spec: Object, platform: Platform) -> list[MachineType]:
    """Machines that auto-provisioning may make for a flex-start pod: its accelerator, and room for
    what it asks.
    """
    accelerator = pod_spec.get("nodeSelector", {}).get(LABEL_ACCELERATOR, "")
    if capacity_of(pod_spec) is not Capacity.FLEX_START or not platform.auto_provisioning.get(
        accelerator
    ):
        return []
    asked = [c.get("resources", {}).get("requests", {}) for c in pod_spec.get("containers", ())]
    cpus, memory = (
        sum(quantity(each.get(name, 0)) or 0 for each in asked) for name in ("cpu", "memory")
    )
    return [
        machine
        for machine in MACHINE_TYPES.values()
        if machine.accelerator == accelerator and machine.gpus >= gpus(pod_spec)
        if machine.vcpus > cpus and machine.memory_gib * GIB > memory
    ]


class Rented(NamedTuple):
    """A machine for a pod, and what the pod pays there an hour, in a pool by its share of the GPUs;
    None without a price.
    """

    pool: str
    """Empty: auto-provisioning makes the node."""
    capacity: Capacity
    usd: float | None
    on_demand_usd: float | None


def rented(
    pod_spec: Object,
    platform: Platform,
    prices: Table,
    pool: str = "",
) -> list[Rented]:
    """In this pool, else in each that the pod fits; if it fits none, on the machine that
    auto-provisioning would make.
    """
    pools = [each for each in platform.pools if each.name == pool] or pools_of(pod_spec, platform)
    offers = []
    for p in pools:
        offers.append((p.name, MACHINE_TYPES.get(p.machine_type), p.capacity, p.own_usd_per_hour))
    offers = offers or [
        ("", machine, Capacity.FLEX_START, None) for machine in provisioned(pod_spec, platform)
    ]

    def share(machine: MachineType | None, capacity: Capacity, own: float | None) -> float | None:
        if machine is None or not machine.gpus:
            return None
        usd = rate(machine, capacity, platform, prices, own)
        # A node that is made for the pod is its own.
        return usd if usd is None or not pools else usd * gpus(pod_spec) / machine.gpus

    demand = Capacity.ON_DEMAND
    found = [
        Rented(name, each, share(m, each, own), share(m, demand, None))
        for name, m, each, own in offers
    ]
    # GKE takes the cheapest machine that it may make.
    if pools:
        return found
    return sorted(found, key=lambda each: math.inf if each.usd is None else each.usd)[:1]


def rented_on(
    pod_spec: Object,
    platform: Platform,
    prices: Table,
    pool: str = "",
) -> Rented | None:
    """In this pool, or the first that the pod fits; None where it fits nothing."""
    return next(iter(rented(pod_spec, platform, prices, pool)), None)


def purchase(
    body: Object,
    size: int,
    pod_spec: Object,
    platform: Platform,
    prices: Table,
) -> Purchase:
    found = rented(pod_spec, platform, prices)
    known = [each.usd for each in found if each.usd is not None]
    return Purchase(
        job=body["metadata"]["name"],
        pods=size,
        gpus=size * gpus(pod_spec),
        capacity=found[0].capacity if found else capacity_of(pod_spec),
        pools=tuple(each.pool for each in found if each.pool),
        usd_per_hour=size * max(known) if known and len(known) == len(found) else None,
    )


def bill(
    job: JobSnapshot,
    platform: Platform,
    events: Path,
    pods: Sequence[Object],
    pool: str,
) -> str:
    """`pods`: all that were seen of it. `pool`: of a node that it ran on; empty: the first that
    fits.
    """
    at = rented_on(job.pod_spec, platform, prices.load(), pool)
    if at is None or at.usd is None or at.on_demand_usd is None:
        return (
            f"{job.name}: no receipt, since its machines have no price in {platform.price_region}"
        )
    spot = at.usd
    demand = at.on_demand_usd
    # the pods of a gang are one lane of the ledger
    together = job.size if job.kind == "JobSet" or job.sharded else 1
    reading = read_folder(events)
    runs = [found for found in job_ledgers(reading.events) if found.job == job.name]
    # What is noted about its pods alone shows no work, and none that was lost.
    if any(event.type not in FOREIGN_TYPES for event in reading.events if event.job == job.name):
        made = receipt(runs, spot * together, demand * together)
        lost = sum(run.lost for run in runs)
        if lost:
            lost = f", {lost} steps lost"
        else:
            lost = ", no step lost"
        useful = made.useful_hours / made.machine_hours if made.machine_hours else 0.0
        return f"{made.line()}; useful {100 * useful:.1f} % of its time{lost}"
    hours = sum(ran_s(pod, time.time()) for pod in pods) / 3600
    evictions = sum(bool(eviction(pod)[0]) for pod in pods)
    return (
        f"{job.name}: paid ${hours * spot:.4f} for {hours * 60:.1f} minutes with {evictions}"
        f" evictions; on demand ${hours * demand:.4f}; useful time is not known, since no pod's"
        " lines could be read"
    )
