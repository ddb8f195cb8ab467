"""What starting a manifest buys: machines and dollars an hour; and the receipt.

A pod pays for its share of a machine's GPUs; a job without GPUs has no price in the table and says so.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.clients.api import Object
from holdfast.contract.capacity import Capacity
from holdfast.contract.machines import MACHINE_TYPES, MachineType
from holdfast.contract.pools import LABEL_ACCELERATOR, LABEL_FLEX_START, LABEL_SPOT, Pool
from holdfast.contract.values import GIB, quantity
from holdfast.jobs.cluster_snapshot import gpus
from holdfast.jobs.job_snapshot import JobSnapshot, ran_s
from holdfast.ledger.disruptions import eviction
from holdfast.ledger.events import read_folder
from holdfast.ledger.job_ledger import job_ledgers
from holdfast.ledger.processes import FOREIGN_TYPES
from holdfast.ledger.receipt import receipt
from holdfast.lint.platform import tolerates
from holdfast.place import prices
from holdfast.place.prices import Table
from holdfast.platform import Platform


@dataclass(frozen=True, kw_only=True, slots=True)
class Purchase:
    job: str
    capacity: Capacity
    pools: tuple[str, ...]
    pods: int
    gpus: int
    usd_per_hour: float | None
    """Of the dearest pool that may serve it, or of the machine that auto-provisioning would take; None where
    the table has no price."""


def pools_of(pod_spec: Object, platform: Platform) -> list[Pool]:
    """The pools of the environment whose nodes the pod selects and tolerates."""
    selector: dict[str, str] = pod_spec.get("nodeSelector", {})
    known = [pool for pool in platform.pools if selector.items() <= pool.node_labels().items()]
    tolerations = pod_spec.get("tolerations", ())
    return [pool for pool in known if all(any(tolerates(t, taint) for t in tolerations) for taint in pool.taints)]


def capacity_of(pod_spec: Object) -> Capacity:
    """By the selector alone, for nodes that no environment lists."""
    selector: dict[str, str] = pod_spec.get("nodeSelector", {})
    if LABEL_FLEX_START in selector:
        return Capacity.FLEX_START
    return Capacity.SPOT if LABEL_SPOT in selector else Capacity.ON_DEMAND


def usd_per_hour(pod_spec: Object, pool: Pool, platform: Platform, prices: Table) -> float | None:
    """Of one pod: its share of the machine by GPUs."""
    if not pool.gpus_per_node:
        return None
    machine_usd = rate(MACHINE_TYPES[pool.machine_type], pool.capacity, platform, prices, pool.own_usd_per_hour)
    return None if machine_usd is None else machine_usd * gpus(pod_spec) / pool.gpus_per_node


def rate(
    machine: MachineType, capacity: Capacity, platform: Platform, prices: Table, own: float | None = None
) -> float | None:
    """Dollars of a machine for an hour; None without a price. `own`: of a reservation. Queued nodes cost what flex-start costs."""
    if own is not None:
        return own
    sold_as = Capacity.FLEX_START if capacity is Capacity.QUEUED else capacity
    quote = prices.quote(machine, platform.price_region, sold_as)
    return quote.usd if quote else None


def node_usd_per_hour(pod_spec: Object, platform: Platform, prices: Table) -> float | None:
    """Of one pod on the first pool that it fits."""
    fitting = pools_of(pod_spec, platform)
    return usd_per_hour(pod_spec, fitting[0], platform, prices) if fitting else None


def provisioned(pod_spec: Object, platform: Platform) -> list[MachineType]:
    """Machines that auto-provisioning may make for a flex-start pod: its accelerator, and room for what it asks."""
    accelerator = pod_spec.get("nodeSelector", {}).get(LABEL_ACCELERATOR, "")
    if capacity_of(pod_spec) is not Capacity.FLEX_START or not platform.auto_provisioning.get(accelerator):
        return []
    asked = [c.get("resources", {}).get("requests", {}) for c in pod_spec.get("containers", ())]
    cpus, memory = (sum(quantity(each.get(name, 0)) or 0 for each in asked) for name in ("cpu", "memory"))
    return [
        machine
        for machine in MACHINE_TYPES.values()
        if machine.accelerator == accelerator and machine.gpus >= gpus(pod_spec)
        if machine.vcpus > cpus and machine.memory_gib * GIB > memory
    ]


def purchase(body: Object, size: int, pod_spec: Object, platform: Platform, prices: Table) -> Purchase:
    fitting = pools_of(pod_spec, platform)
    rates = [usd_per_hour(pod_spec, pool, platform, prices) for pool in fitting]
    if not fitting:
        made = (rate(machine, Capacity.FLEX_START, platform, prices) for machine in provisioned(pod_spec, platform))
        # GKE takes the cheapest machine that it may make.
        rates = sorted(usd for usd in made if usd is not None)[:1]
    known = [each for each in rates if each is not None]
    return Purchase(
        job=body["metadata"]["name"],
        capacity=fitting[0].capacity if fitting else capacity_of(pod_spec),
        pools=tuple(pool.name for pool in fitting),
        pods=size,
        gpus=size * gpus(pod_spec),
        usd_per_hour=size * max(known) if known and len(known) == len(rates) else None,
    )


def bill(job: JobSnapshot, platform: Platform, events: Path, pods: Sequence[Object], pool: str) -> str:
    """`pods`: all that were seen of it. `pool`: of a node that it ran on; empty: the first that fits."""
    rates = _bill_rates(job, platform, pool)
    if rates is None:
        return f"{job.name}: no receipt, since its machines have no price in {platform.price_region}"
    spot, demand = rates
    together = job.size if job.kind == "JobSet" or job.sharded else 1  # the pods of a gang are one lane of the ledger
    reading = read_folder(events)
    runs = [found for found in job_ledgers(reading.events) if found.job == job.name]
    # What is noted about its pods alone shows no work, and none that was lost.
    if any(event.type not in FOREIGN_TYPES for event in reading.events if event.job == job.name):
        made = receipt(runs, spot * together, demand * together)
        lost = f", {lost} steps lost" if (lost := sum(run.lost for run in runs)) else ", no step lost"
        useful = made.useful_hours / made.machine_hours if made.machine_hours else 0.0
        return f"{made.line()}; useful {100 * useful:.1f} % of its time{lost}"
    hours = sum(ran_s(pod, time.time()) for pod in pods) / 3600
    evictions = sum(bool(eviction(pod)[0]) for pod in pods)
    return (
        f"{job.name}: paid ${hours * spot:.4f} for {hours * 60:.1f} minutes with {evictions} evictions; on demand "
        f"${hours * demand:.4f}; useful time is not known, since no pod's lines could be read"
    )


def _bill_rates(job: JobSnapshot, platform: Platform, name: str) -> tuple[float, float] | None:
    """Dollars an hour of one pod, as paid and on demand; None without a price. `name`: of the pool."""
    fitting, made = pools_of(job.pod_spec, platform), provisioned(job.pod_spec, platform)
    if fitting:
        pool = next((each for each in fitting if each.name == name), fitting[0])
        machine, capacity, own = MACHINE_TYPES[pool.machine_type], pool.capacity, pool.own_usd_per_hour
    elif made:
        machine, capacity, own = made[0], Capacity.FLEX_START, None
    else:
        return None
    table, share = prices.load(), gpus(job.pod_spec) / max(machine.gpus, 1)
    paid, demand = rate(machine, capacity, platform, table, own), rate(machine, Capacity.ON_DEMAND, platform, table)
    return (paid * share, demand * share) if machine.gpus and paid is not None and demand is not None else None
