"""The receipt of a job that ended, in one line: by its event lines, or by the clock of its pods."""

import time
from collections.abc import Sequence
from pathlib import Path

from holdfast.clients.api import Object
from holdfast.contract.capacity import Capacity
from holdfast.contract.machines import MACHINE_TYPES, MachineType
from holdfast.jobs import buying
from holdfast.jobs.job_snapshot import JobSnapshot
from holdfast.jobs.listing import ran_s
from holdfast.jobs.nodes import gpus
from holdfast.ledger.disruptions import eviction
from holdfast.ledger.events import read_folder
from holdfast.ledger.job_ledger import job_ledgers
from holdfast.ledger.processes import FOREIGN_TYPES
from holdfast.ledger.receipt import receipt
from holdfast.place import prices
from holdfast.platform import Platform


def bill(job: JobSnapshot, platform: Platform, events: Path, pods: Sequence[Object], pool: str) -> str:
    """`pods`: all that were seen of it. `pool`: of a node that it ran on; empty: the first that fits."""
    rates = _rates(job, platform, pool)
    if rates is None:
        return f"{job.name}: no receipt, since its machines have no price in {platform.price_region}"
    spot, demand = rates
    together = job.size if job.kind == "JobSet" else 1  # the pods of a gang are one lane of the ledger
    reading = read_folder(events)
    runs = [found for found in job_ledgers(reading.events) if found.job == job.name]
    # What is noted about its pods alone shows no work, and none that was lost.
    if any(event.type not in FOREIGN_TYPES for event in reading.events if event.job == job.name):
        made = receipt(runs, spot * together, demand * together)
        lost = f", {lost} steps lost" if (lost := sum(run.account.lost for run in runs)) else ", no step lost"
        useful = made.useful_hours / made.machine_hours if made.machine_hours else 0.0
        return f"{made.line()}; useful {100 * useful:.1f} % of its time{lost}"
    hours = sum(ran_s(pod, time.time()) for pod in pods) / 3600
    evictions = sum(bool(eviction(pod)[0]) for pod in pods)
    return (
        f"{job.name}: paid ${hours * spot:.4f} for {hours * 60:.1f} minutes with {evictions} evictions; on demand "
        f"${hours * demand:.4f}; useful time is not known, since no pod's lines could be read"
    )


def _rates(job: JobSnapshot, platform: Platform, pool: str) -> tuple[float, float] | None:
    """Dollars an hour of one pod, as paid and on demand; None without a price."""
    found = _machine(job, platform, pool)
    if found is None or not found[0].gpus:
        return None
    machine, capacity = found
    table, share = prices.load(), gpus(job.pod_spec) / machine.gpus
    paid, demand = (table.quote(machine, platform.price_region, each) for each in (capacity, Capacity.ON_DEMAND))
    return (paid.usd * share, demand.usd * share) if paid and demand else None


def _machine(job: JobSnapshot, platform: Platform, name: str) -> tuple[MachineType, Capacity] | None:
    """What one of its pods ran on, and as what it is sold."""
    fitting = buying.pools_of(job.pod_spec, platform)
    pool = next((each for each in fitting if each.name == name), fitting[0] if fitting else None)
    if pool:
        queued = pool.capacity is Capacity.QUEUED
        return MACHINE_TYPES[pool.machine_type], Capacity.FLEX_START if queued else pool.capacity
    made = buying.provisioned(job.pod_spec, platform)
    return (made[0], Capacity.FLEX_START) if made else None
