"""An upper bound of what a proof costs. A part without a price is not guessed: the proof is then not begun."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.contract.errors import Unjudged
from infra.contract.capacity import Capacity
from infra.contract.machines import MACHINE_TYPES
from infra.contract.pools import Pool, Role
from infra.environments import Environment
from infra.placement.prices import Table, family
from infra.proof.rates import Rates

HOURS = 5.0
"""A proof ends then, whatever it has shown: the runner keeps the time of the destroy back from it."""
SAMPLE_NODES = 4
"""Of each Spot pool: the sample gang and the sample batch ask for no more, and an evicted node is made anew."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    what: str
    usd: float


def estimate(environment: Environment, prices: Table, rates: Rates, hours: float = HOURS) -> list[Item]:
    """For `hours` of everything that bills by the hour while a proof runs. Unjudged where a part has no price."""
    region = environment.price_region
    return [
        Item(what="cluster management", usd=rates.usd("cluster", region) * hours),
        Item(what="NAT", usd=rates.usd("nat", region) * hours),
        *_machines(environment, prices, rates, hours),
        *_database(environment, rates, hours),
    ]


def _machines(environment: Environment, prices: Table, rates: Rates, hours: float) -> Iterator[Item]:
    def hourly(pool: Pool) -> float:
        return _hourly(environment, prices, rates, pool)

    for pool in environment.pools():
        # Serving's base stands whether somebody asks it or not; flex-start is not used here.
        nodes = pool.max_nodes if pool.role is Role.SYSTEM else pool.min_nodes
        if nodes and pool.capacity is Capacity.ON_DEMAND:
            yield Item(what=f"{nodes} x {pool.machine_type} on-demand ({pool.name})", usd=nodes * hourly(pool) * hours)
    for name in dict.fromkeys(pool.pool_class for pool in environment.pools() if pool.capacity is Capacity.SPOT):
        # The autoscaler takes whichever type it gets: the dearest bounds it.
        usd = max(hourly(pool) for pool in environment.pools() if pool.pool_class == name)
        yield Item(what=f"{SAMPLE_NODES} x Spot machine of {name}", usd=SAMPLE_NODES * usd * hours)


def _hourly(environment: Environment, prices: Table, rates: Rates, pool: Pool) -> float:
    """Of one machine with its disk."""
    machine, region = MACHINE_TYPES[pool.machine_type], environment.price_region
    disk = pool.disk_gib * rates.usd("disk", region)
    if not machine.gpus:
        return machine.vcpus * rates.usd(family(machine.name), region) + disk
    quote = prices.quote(machine, region, pool.capacity)
    if quote is None:
        raise Unjudged(
            f"no {pool.capacity.value} price of {machine.name} in {region}: the cost has no bound;"
            " `python -m infra prices refresh`, or another region"
        )
    return quote.usd + disk


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
