"""An upper bound of what a proof costs. A part without a price is not guessed: the proof is then not begun."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.contract.capacity import Capacity
from holdfast.contract.errors import Unjudged
from holdfast.contract.machines import MACHINE_TYPES
from holdfast.contract.pools import Pool, Role
from holdfast.place.prices import Table, family
from infra.environments import Environment
from infra.proof import machines
from infra.proof.rates import Rates

HOURS = 5.0
"""A proof ends then, whatever it has shown: the runner keeps the time of the destroy back from it."""
LOADER_MACHINE = MACHINE_TYPES["e2-standard-4"]
"""On demand, made by auto-provisioning: the loader of the batch has no pool."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    what: str
    usd: float


def estimate(environment: Environment, spot: Pool, prices: Table, rates: Rates, hours: float = HOURS) -> list[Item]:
    """`spot`: the pool that the samples run on. For `hours` of everything that bills by the hour while a proof runs. Unjudged where a part has no price."""
    region = environment.price_region
    return [
        Item(what="cluster management", usd=rates.usd("cluster", region) * hours),
        Item(what="NAT", usd=rates.usd("nat", region) * hours),
        *_machines(environment, spot, prices, rates, hours),
        *_database(environment, rates, hours),
    ]


def _machines(environment: Environment, spot: Pool, prices: Table, rates: Rates, hours: float) -> Iterator[Item]:
    for pool in environment.pools():
        # Serving's base stands whether somebody asks it or not; flex-start is not used here.
        nodes = pool.max_nodes if pool.role is Role.SYSTEM else pool.min_nodes
        if nodes and pool.capacity is Capacity.ON_DEMAND:
            usd = nodes * machines.hourly(environment, prices, rates, pool) * hours
            yield Item(what=f"{nodes} x {pool.machine_type} on-demand ({pool.name})", usd=usd)
    loader = LOADER_MACHINE.vcpus * rates.usd(family(LOADER_MACHINE.name), environment.price_region)
    loader += environment.auto_provisioning.disk_gib * rates.usd("disk", environment.price_region)
    yield Item(what=f"1 x {LOADER_MACHINE.name} on-demand (loader of the batch)", usd=loader * hours)
    yield Item(what=_on(spot), usd=spot_hourly(environment, spot, prices, rates) * hours)


def _on(spot: Pool) -> str:
    return f"{min(machines.NODES, spot.max_nodes)} x {spot.machine_type} Spot ({spot.name})"


def spot_hourly(environment: Environment, spot: Pool, prices: Table, rates: Rates) -> float:
    """Of all machines that the samples have at a time."""
    return min(machines.NODES, spot.max_nodes) * machines.hourly(environment, prices, rates, spot)


def _database(environment: Environment, rates: Rates, hours: float) -> Iterator[Item]:
    database, region = environment.database, environment.price_region
    if database is None:
        return
    size = re.fullmatch(r"db-custom-(\d+)-(\d+)", database.tier)
    if size is None:
        raise Unjudged(f"no price of database {database.tier}: the cost has no bound; use db-custom-<vCPUs>-<MiB>")
    cores, gib = int(size[1]), int(size[2]) / 1024
    hourly = cores * rates.usd("sql core", region) + gib * rates.usd("sql ram", region)
    hourly += database.disk_gib * rates.usd("sql disk", region)
    yield Item(what=f"database {database.tier}", usd=hourly * (2 if database.highly_available else 1) * hours)
