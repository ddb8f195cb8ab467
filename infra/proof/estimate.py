"""An upper bound of what a proof costs. A part without a price is not guessed: the proof is then not begun."""

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.contract.errors import Unjudged
from infra.contract.capacity import Capacity
from infra.contract.machines import MACHINE_TYPES
from infra.contract.pools import Pool, Role
from infra.environments import Environment
from infra.placement.prices import Table

# Deploy and destroy take half an hour each, the work and its evictions an hour and a half, and a wait for capacity.
HOURS = 4.0
SAMPLE_NODES = 4
"""Of each Spot pool: the sample gang and the sample batch ask for no more, and an evicted node is made anew."""
# List prices an hour of 2026 in us-central1, the dearest region another tenth: what GPU tables do not hold.
USD_CLUSTER = 0.10
USD_NAT = 0.05
USD_DATABASE_VCPU_REDUNDANT = 0.20
USD_CPU_VCPU = 0.05
"""A vCPU of the E2 and N2 families with its memory, rounded up."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    what: str
    usd: float


def estimate(environment: Environment, prices: Table, hours: float = HOURS) -> list[Item]:
    """For `hours` of everything that bills while a proof runs. Unjudged where a machine has no price."""
    return [
        Item(what="cluster management", usd=USD_CLUSTER * hours),
        Item(what="NAT", usd=USD_NAT * hours),
        *_machines(environment, prices, hours),
        *_database(environment, hours),
    ]


def _machines(environment: Environment, prices: Table, hours: float) -> Iterator[Item]:
    for pool in environment.pools():
        # Serving's base stands whether somebody asks it or not; flex-start is not used here.
        nodes = pool.max_nodes if pool.role is Role.SYSTEM else pool.min_nodes
        if nodes and pool.capacity is Capacity.ON_DEMAND:
            usd = nodes * _hourly(environment, prices, pool) * hours
            yield Item(what=f"{nodes} x {pool.machine_type} on-demand ({pool.name})", usd=usd)
    for name in dict.fromkeys(pool.pool_class for pool in environment.pools() if pool.capacity is Capacity.SPOT):
        # The autoscaler takes whichever type it gets: the dearest bounds it.
        usd = max(_hourly(environment, prices, pool) for pool in environment.pools() if pool.pool_class == name)
        yield Item(what=f"{SAMPLE_NODES} x Spot machine of {name}", usd=SAMPLE_NODES * usd * hours)


def _hourly(environment: Environment, prices: Table, pool: Pool) -> float:
    machine = MACHINE_TYPES[pool.machine_type]
    if not machine.gpus:
        return machine.vcpus * USD_CPU_VCPU
    quote = prices.quote(machine, environment.price_region, pool.capacity)
    if quote is None:
        raise Unjudged(
            f"no {pool.capacity.value} price of {machine.name} in {environment.price_region}: the cost has no bound;"
            " `python -m infra prices refresh`, or another region"
        )
    return quote.usd


def _database(environment: Environment, hours: float) -> Iterator[Item]:
    if environment.database:
        vcpus = int(environment.database.tier.split("-")[2]) if "custom" in environment.database.tier else 8
        yield Item(what=f"database {environment.database.tier}", usd=vcpus * USD_DATABASE_VCPU_REDUNDANT * hours)
