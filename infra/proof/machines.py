"""The machines of a proof's samples: which pool, how many, and what one costs an hour."""

from holdfast.contract.capacity import Capacity
from holdfast.contract.errors import InputError, Unjudged
from holdfast.contract.machines import MACHINE_TYPES
from holdfast.contract.pools import Pool
from holdfast.place.prices import Table, family
from infra.environments import Environment
from infra.proof.rates import Rates

PODS = 2
"""Of the sample gang and of the sample batch, which run one after the other; a pod fills a machine."""
NODES = PODS + 1
"""At a time: a machine that was taken may still be billed while its successor starts."""


def smallest_spot(environment: Environment, prices: Table, rates: Rates) -> Pool:
    """The cheapest Spot pool of GPUs that holds a sample. Unjudged where one that does has no price."""
    fitting = [pool for pool in environment.pools() if _fits(environment, pool)]
    if not fitting:
        raise InputError(
            f"no Spot pool of {environment.name} holds a sample",
            got=", ".join(p.name for p in environment.pools() if p.capacity is Capacity.SPOT) or "no Spot pool",
            allowed=f"one of GPUs with max_nodes of at least {PODS}, all of whose GPUs are lent",
            fix=f"raise max_nodes or the quota of a Spot group in infra/environments/{environment.name}.py",
        )
    return min(fitting, key=lambda pool: hourly(environment, prices, rates, pool))


def _fits(environment: Environment, pool: Pool) -> bool:
    if pool.capacity is not Capacity.SPOT or not pool.gpus_per_node or pool.max_nodes < PODS:
        return False
    return environment.quota_gpus(pool.pool_class or pool.name) >= PODS * pool.gpus_per_node


def hourly(environment: Environment, prices: Table, rates: Rates, pool: Pool) -> float:
    """Of one machine with its disk."""
    machine, region = MACHINE_TYPES[pool.machine_type], environment.price_region
    disk = pool.disk_gib * rates.usd("disk", region)
    if not machine.gpus:
        return machine.vcpus * rates.usd(family(machine.name), region) + disk
    quote = prices.quote(machine, region, pool.capacity)
    if quote is None:
        raise Unjudged(
            f"no {pool.capacity.value} price of {machine.name} in {region}: the cost has no bound;"
            " `holdfast prices refresh`, or another region"
        )
    return rates.bound(quote.usd, quote.as_of) + disk
