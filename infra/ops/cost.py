"""Estimates the price of an environment, idle and at full load, by list prices in USD an hour.

Prices of GPU machines are those of the library's table; the others are here.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.cost.prices import Table, family, load, reference_machine
from holdfast.support.errors import Unjudged
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.machines import MACHINE_TYPES, MachineType
from holdfast.vocabulary.pools import LOCAL_SSD_GIB, Pool
from infra.environments.schema import Database, Environment

# USD an hour in us-central1: pages of GKE, Cloud NAT, Cloud Load Balancing and Cloud SQL, and the
# Cloud Billing Catalog of 2026-08-20. The price of a machine family is for a vCPU with its memory
# on demand, that of a disk for a GiB of pd-ssd, the most expensive, and that of a local SSD for a
# GiB on demand, which Spot machines get for less. NAT is its gateway for 32 machines or more and
# one address; traffic is billed besides.
USD = {
    "cluster": 0.10,
    "NAT": 0.0498,
    "balancer": 0.025,
    "e2": 0.0336,
    "n2": 0.0486,
    "c3": 0.0505,
    "disk": 0.000233,
    "local SSD": 0.00011,
    "database vCPU": 0.0413,
    "database GiB": 0.007,
}
HOME_REGION = "us-central1"
ELSEWHERE = 1.6  # the highest ratio of a region's prices to those of us-central1
HOURS_A_MONTH = 730


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    name: str
    usd_per_hour: float | None
    """None: the table has no price."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    floor: tuple[Part, ...]
    """The parts that always run."""
    full: tuple[Part, ...]
    """Every pool at its maximum, and all that auto-provisioning may add."""

    @property
    def floor_usd_per_month(self) -> float:
        return HOURS_A_MONTH * _sum(self.floor)

    @property
    def full_usd_per_hour(self) -> float:
        return _sum(self.full)

    def list_omissions(self) -> list[str]:
        """The parts that the sums leave out."""
        parts = [*self.floor, *self.full]
        names = [part.name for part in parts if part.usd_per_hour is None]
        return list(dict.fromkeys(names))

    def lines(self) -> list[str]:
        """Return the two sums as sentences, and what they leave out."""
        lines = [
            f"floor: {self.floor_usd_per_month:,.0f} USD a month for what always runs"
            f" ({_sum(self.floor):.2f} an hour)",
            f"full load: {self.full_usd_per_hour:,.2f} USD an hour with every pool and cap at its"
            " maximum",
        ]
        unpriced = self.list_omissions()
        if unpriced:
            lines.append(f"without a list price, not in the sums: {', '.join(unpriced)}")
        return lines


def estimate(environment: Environment, table: Table | None = None) -> Cost:
    """Estimate by list prices. Traffic, objects in buckets, logs and discounts are left out."""
    table = table or load()
    fixed = list(_iter_fixed(environment))
    floor = [*fixed, *_iter_pools(environment, table, full=False)]
    full = [*fixed, *_iter_pools(environment, table, full=True)]
    full += _iter_caps(environment, table)
    return Cost(floor=tuple(floor), full=tuple(full))


def _sum(parts: tuple[Part, ...]) -> float:
    return sum(part.usd_per_hour or 0.0 for part in parts)


def _iter_fixed(environment: Environment) -> Iterator[Part]:
    existing = environment.network.existing
    yield Part(name="cluster fee", usd_per_hour=price(environment, "cluster"))
    if existing is None or "nat" in existing.creates:
        yield Part(name="NAT", usd_per_hour=price(environment, "NAT"))
    if environment.serving:
        yield Part(name="balancer", usd_per_hour=price(environment, "balancer"))
    database = environment.database
    if database:
        name = f"database {database.tier}" + (", twice" if database.highly_available else "")
        try:
            usd: float | None = database_price(environment, database)
        except Unjudged:
            usd = None
        yield Part(name=name, usd_per_hour=usd)


def _iter_pools(environment: Environment, table: Table, *, full: bool) -> Iterator[Part]:
    for pool in environment.pools():
        # A reservation is paid for whether its machines run or not.
        nodes = pool.max_nodes if full or pool.own_usd_per_hour else pool.min_nodes
        if nodes:
            machines = f"{nodes} x {pool.machine_type} {pool.capacity.value}"
            usd = _price_or_none(environment, pool, table)
            if usd is not None:
                usd *= nodes
            yield Part(name=f"{machines} ({pool.name})", usd_per_hour=usd)


def _price_or_none(environment: Environment, pool: Pool, table: Table) -> float | None:
    if pool.own_usd_per_hour is not None:
        return pool.own_usd_per_hour + _disk_price(environment, pool)
    try:
        return node_price(environment, pool, table)
    except Unjudged:
        return None


def _disk_price(environment: Environment, pool: Pool) -> float:
    """Return the price of an hour of a machine's disks."""
    local_gib = pool.local_ssds * LOCAL_SSD_GIB
    usd = pool.disk_gib * price(environment, "disk")
    return usd + local_gib * price(environment, "local SSD")


def _iter_caps(environment: Environment, table: Table) -> Iterator[Part]:
    """Yield what auto-provisioning may add as flex-start, in the smallest machines."""
    for cap in environment.auto_provisioning.accelerators:
        gpus = environment.capacity_gpus(cap.accelerator)
        machine = reference_machine(cap.accelerator)
        if gpus >= machine.gpus:
            quote = table.quote(machine, environment.region, Capacity.FLEX_START)
            nodes = gpus // machine.gpus
            disk = environment.auto_provisioning.disk_gib * price(environment, "disk")
            usd = None if quote is None else nodes * (quote.usd + disk)
            yield Part(name=f"{nodes} x {machine.name} flex-start (caps)", usd_per_hour=usd)


def database_price(environment: Environment, database: Database) -> float:
    """Return the price of an hour. Raises Unjudged for a tier that has none here."""
    size = re.fullmatch(r"db-custom-(\d+)-(\d+)", database.tier)
    if not size:
        raise Unjudged(f"no price of database {database.tier}: use db-custom-<vCPUs>-<MiB>")
    usd = int(size[1]) * price(environment, "database vCPU")
    usd += int(size[2]) / 1024 * price(environment, "database GiB")
    usd += database.disk_gib * price(environment, "disk")
    return 2 * usd if database.highly_available else usd


def node_price(environment: Environment, pool: Pool, table: Table) -> float:
    """Return the price of an hour of one machine with its disk. Raises Unjudged without one."""
    machine: MachineType = MACHINE_TYPES[pool.machine_type]
    region = environment.region
    disk = _disk_price(environment, pool)
    if not machine.gpus:
        return machine.vcpus * price(environment, family(machine.name)) + disk
    capacity = Capacity.FLEX_START if pool.capacity is Capacity.QUEUED else pool.capacity
    quote = table.quote(machine, region, capacity)
    if quote is None:
        raise Unjudged(
            f"no {capacity.value} price of {machine.name} in {region}:"
            " `holdfast place prices --refresh`"
        )
    return quote.usd + disk


def price(environment: Environment, part: str) -> float:
    """Return the price of an hour of a part that is no GPU machine. Raises Unjudged without one."""
    if part not in USD:
        raise Unjudged(f"no price of {part}: the cost has no bound")
    return USD[part] * (1.0 if environment.region == HOME_REGION else ELSEWHERE)
