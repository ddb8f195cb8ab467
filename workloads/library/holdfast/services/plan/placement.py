"""Finds the machines of a service: on demand for its base, on Spot for its overflow."""

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.manifests.serving import Tier
from holdfast.platform import Platform
from holdfast.services.file.service_file import Reach, ServiceSpec
from holdfast.support.errors import InputError
from holdfast.vocabulary.machines import MACHINE_TYPES
from holdfast.vocabulary.pools import STAYING, Pool, Role
from holdfast.vocabulary.roles import NAMESPACE_SERVING
from holdfast.vocabulary.serving import MIN_OVERFLOW, TIER_BASE, TIER_OVERFLOW, drain_budget


@dataclass(frozen=True, kw_only=True, slots=True)
class Placed:
    tiers: tuple[Tier, ...]
    window_s: int
    """Seconds after a notice, the same in all tiers."""
    longest_request_s: float
    reach: Reach
    """Never AUTO."""


def place(service: ServiceSpec, platform: Platform) -> Placed:
    """Choose the pools of a service. Raises InputError if the environment has none that fit, or if
    its namespace has no services.
    """
    _require_home(service, platform)
    _require_right_to_sleep(service)
    tiers: list[Tier] = []
    if service.base_replicas:
        replicas = service.base_largest + service.standby
        base = Tier(
            name=TIER_BASE,
            pool=_find_pool(service, platform, TIER_BASE, replicas),
            min_replicas=service.base_replicas + service.standby,
            max_replicas=replicas,
        )
        tiers.append(base)
    if service.overflow_replicas:
        overflow = Tier(
            name=TIER_OVERFLOW,
            pool=_find_pool(service, platform, TIER_OVERFLOW, service.overflow_replicas),
            min_replicas=MIN_OVERFLOW,
            max_replicas=service.overflow_replicas,
        )
        tiers.append(overflow)
    _require_team_gpus(service, platform, tiers)
    window_s = _find_window(service, tiers)
    return Placed(
        tiers=tuple(tiers),
        window_s=window_s,
        longest_request_s=_find_longest_request(service, window_s),
        reach=_find_reach(service, platform),
    )


def _require_home(service: ServiceSpec, platform: Platform) -> None:
    if service.home not in platform.service_namespaces:
        raise InputError(
            "namespace: it has no services",
            got=service.home,
            allowed=", ".join(platform.service_namespaces),
            fix=(
                "leave it out, or ask the platform team to set service_gpus of your Team; services"
                " run in its first namespace"
            ),
        )


def _require_right_to_sleep(service: ServiceSpec) -> None:
    """Raise InputError in a team's namespace: its people may not give a pod the right to scale."""
    if service.may_sleep and service.home != NAMESPACE_SERVING:
        raise InputError(
            "least_replicas of a service in a team's namespace",
            got=service.least_replicas,
            allowed="1",
            fix="leave it out, or ask the platform team to submit it in the namespace serving",
        )


def _require_team_gpus(service: ServiceSpec, platform: Platform, tiers: list[Tier]) -> None:
    """Raise InputError if a service alone may need more GPUs than all services of its team."""
    if service.home == NAMESPACE_SERVING:
        return
    team = platform.team(platform.job_namespaces[service.home])
    replicas = sum(tier.max_replicas for tier in tiers)
    gpus = replicas * service.gpu_count
    if gpus > team.service_gpus:
        raise InputError(
            f"GPUs of the services of team {team.name}",
            got=f"{replicas} replicas under load x {service.gpu_count} = {gpus}",
            allowed=f"at most {team.service_gpus}, for all of its services together",
            fix="ask for fewer replicas, or ask the platform team to raise service_gpus",
        )


def _find_pool(service: ServiceSpec, platform: Platform, tier: str, replicas: int) -> Pool:
    """Return the smallest pool of a tier that has the GPUs.

    Raises InputError if there is none, or if it has fewer machines than replicas.
    """
    is_of_tier = _TIERS[tier]
    pools: list[Pool] = []
    fitting: list[Pool] = []
    for pool in platform.pools:
        if not (pool.gpus_per_node and is_of_tier(pool)):
            continue
        pools.append(pool)
        if pool.accelerator == service.accelerator and pool.gpus_per_node >= service.gpu_count:
            fitting.append(pool)
    kind = "on demand with role SERVING" if tier == TIER_BASE else "on Spot"
    if not fitting:
        offers = {f"{pool.gpus_per_node}x{pool.accelerator} ({pool.name})" for pool in pools}
        raise InputError(
            f"no pool {kind} of {platform.name} has the GPUs of the {tier}",
            got=service.gpu,
            allowed=", ".join(sorted(offers)) or "none: it has no such pool with GPUs",
            fix=f"take another gpu, or ask the platform team for a NodeGroup in {platform.name}",
        )
    smallest = min(fitting, key=lambda pool: MACHINE_TYPES[pool.machine_type].vcpus)
    room = 0
    for pool in fitting:
        if pool.pool_class == smallest.pool_class or pool is smallest:
            room += pool.max_nodes * (pool.gpus_per_node // service.gpu_count)
    if replicas > room:
        raise InputError(
            f"most replicas of the {tier}",
            got=f"{replicas}, those in reserve included",
            allowed=f"{room}: what the pool {smallest.name} holds at most",
            fix="ask for fewer, or ask the platform team to raise max_nodes of the pool",
        )
    return smallest


def _is_spot(pool: Pool) -> bool:
    return pool.capacity not in STAYING and pool.capacity.value == "spot"


def _serves(pool: Pool) -> bool:
    return pool.role is Role.SERVING and pool.capacity in STAYING


_TIERS: dict[str, Callable[[Pool], bool]] = {TIER_BASE: _serves, TIER_OVERFLOW: _is_spot}


def _find_window(service: ServiceSpec, tiers: list[Tier]) -> int:
    shortest = min(tiers, key=lambda tier: tier.pool.window.pod_s)
    spot = [tier for tier in tiers if tier.pool.interruptible]
    if service.window_s and spot and service.window_s > spot[0].pool.window.pod_s:
        raise InputError(
            "window_s",
            got=service.window_s,
            allowed=f"at most {spot[0].pool.window.pod_s}: what {spot[0].pool.name} gives pods",
            fix="leave it out, or serve without overflow",
        )
    return service.window_s or (spot[0] if spot else shortest).pool.window.pod_s


def _find_longest_request(service: ServiceSpec, window_s: int) -> float:
    longest_s = drain_budget(window_s).longest_request_s
    if service.deadline_s > longest_s:
        raise InputError(
            "deadline_s",
            got=f"{service.deadline_s:g}",
            allowed=f"at most {longest_s:g}: what a notice of {window_s} s leaves for a request",
            fix=(
                "lower it, or ask the platform team for a Spot pool with the long notice"
                " (ShutdownWindow), or serve without overflow and state window_s"
            ),
        )
    return service.deadline_s or longest_s


def _find_reach(service: ServiceSpec, platform: Platform) -> Reach:
    """Return which clients can reach it. Raises InputError if the environment forbids that."""
    network = platform.network
    reach = Reach(service.reach)
    if service.home != NAMESPACE_SERVING:
        return _find_team_reach(reach)
    if reach is Reach.AUTO:
        return Reach.INTERNAL if network.load_balancers_cidr else Reach.CLUSTER
    allowed = [Reach.CLUSTER.value]
    if network.load_balancers_cidr:
        allowed.append(Reach.INTERNAL.value)
    if network.public_services:
        allowed.append(Reach.EXTERNAL.value)
    if reach.value not in allowed:
        field = "load_balancers_cidr" if reach is Reach.INTERNAL else "public_services"
        raise InputError(
            f"reach: {platform.name} does not offer it",
            got=reach.value,
            allowed=", ".join(allowed),
            fix=f"ask the platform team to set network.{field} of {platform.name}",
        )
    if reach is Reach.EXTERNAL and service.keys and not network.public_keys:
        raise InputError(
            f"keys of a public service: {platform.name} does not offer it",
            got=service.keys,
            allowed="members, whom Identity-Aware Proxy knows",
            fix="state members, or ask the platform team to set network.public_keys",
        )
    return reach


def _find_team_reach(reach: Reach) -> Reach:
    # A load balancer is outside the limits of a team: infra/decisions/0185.
    if reach in (Reach.INTERNAL, Reach.EXTERNAL):
        raise InputError(
            "reach of a service in a team's namespace",
            got=reach.value,
            allowed="auto, cluster",
            fix="leave it out, or ask the platform team to submit it in the namespace serving",
        )
    return Reach.CLUSTER
