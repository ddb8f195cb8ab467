"""Rules on the environment as a whole: values that are right one by one, and wrong together."""

from collections.abc import Iterator

from holdfast.manifests.envoy import CARRIES, count_proxies
from holdfast.manifests.serving_router import STREAMS, count_routers
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.machines import MACHINE_TYPES
from holdfast.vocabulary.pools import Pool, Role
from infra.contract.names import BUCKETS
from infra.environments import Environment
from infra.rules.model import Facts, Finding, environment_finding, rule

GANG_PODS = 2
SHARED_CORE = ("db-f1-micro", "db-g1-small")
_SYSTEM_CPUS = 2
"""CPUs of a node of the system pool that the other pods of the platform and of GKE take."""
PLATFORM = "design of this platform"
Row = tuple[str, object, str, str]
"""A field, its value, the allowed values, the fix."""


@rule(
    reason=(
        "otherwise costs run away unseen, one zone or another machine stops everything, and runs"
        " delete each other's checkpoints"
    ),
    source=(
        "documentation of Cloud Billing, Cloud SQL, Terraform state, GKE and IAM conditions on"
        " objects"
    ),
)
def production_is_safe(facts: Facts) -> Iterator[Finding]:
    """Production has a budget, a shared state, two zones and nodes in reserve, separate runs, no
    drills, checkpoints that survive a wrong delete, and a results database with cores and a
    standby.
    """
    if not facts.environment.production:
        return
    for row in _iter_unsafe_fields(facts.environment):
        yield environment_finding(facts.environment, *row)


def _iter_unsafe_fields(environment: Environment) -> Iterator[Row]:
    database = environment.database
    if environment.budget is None:
        yield "budget", "None", "a Budget", "add a budget with the billing account"
    if database and not database.highly_available:
        yield "database.highly_available", False, "True", "set it, or leave the database out"
    if database and database.tier in SHARED_CORE:  # without a service level agreement
        yield "database.tier", database.tier, "db-custom-2-7680 or larger", "raise it"
    if not environment.state_bucket:
        yield "state_bucket", "''", "a bucket", "make it with `make bootstrap`"
    if len(environment.zones) < 2:
        yield "zones", ", ".join(environment.zones), "two or more", "add zones of the region"
    if environment.allow_drills:
        yield "allow_drills", True, "False", "run drills in another environment"
    storage = environment.storage
    if not (storage.checkpoint_soft_delete_days or storage.checkpoint_version_days):
        allowed = "7 or more, or versions"
        fix = "set it, or checkpoint_version_days"
        yield "storage.checkpoint_soft_delete_days", 0, allowed, fix
    if not environment.storage.runs:
        yield "storage.runs", "()", "the runs that train there", 'add Run(name="...") for each'
    for group in environment.groups:
        has_reserve = group.min_nodes >= 2 and group.max_nodes > group.min_nodes
        if group.role in (Role.SYSTEM, Role.SERVING) and not has_reserve:
            got = f"{group.min_nodes}..{group.max_nodes}"
            allowed = "min_nodes 2 or more, max_nodes above it"
            yield f"groups[{group.name}]", got, allowed, "raise them"


@rule(
    reason="otherwise anyone with write access to checkpoints can change the Terraform state",
    source="security of the state",
)
def state_is_apart(facts: Facts) -> Iterator[Finding]:
    """The Terraform state has its own bucket."""
    environment = facts.environment
    for purpose in BUCKETS:
        if environment.state_bucket == environment.bucket(purpose):
            yield environment_finding(
                environment,
                "state_bucket",
                environment.state_bucket,
                "a separate bucket",
                "name another bucket",
            )


@rule(
    reason="otherwise the gang waits forever, and Kueue only reports it as pending",
    source="Kueue documentation on quotas",
)
def quota_holds_a_gang(facts: Facts) -> Iterator[Finding]:
    """A training quota is large enough for the smallest gang."""
    environment = facts.environment
    for pool in environment.pools():
        minimum = min(GANG_PODS, pool.max_nodes) * pool.gpus_per_node
        quota = environment.quota_gpus(pool.pool_class)
        if pool.role is Role.TRAINING and quota < minimum:
            field = f"quotas[{pool.pool_class}].gpus"
            fix = "raise the quota, or remove it"
            yield environment_finding(environment, field, quota, f"{minimum} or more", fix)


@rule(
    reason="people turn off an alert that fires before capacity can arrive",
    source="GKE documentation",
)
def thresholds_are_in_order(facts: Facts) -> Iterator[Finding]:
    """Alert thresholds grow with the expected wait for capacity."""
    alerts = facts.environment.alerts
    if not alerts.on_demand_pending_s <= alerts.spot_pending_s <= alerts.flex_pending_s:
        got = f"{alerts.on_demand_pending_s}, {alerts.spot_pending_s}, {alerts.flex_pending_s}"
        allowed = "on_demand_pending_s <= spot_pending_s <= flex_pending_s"
        yield environment_finding(facts.environment, "alerts", got, allowed, "order them")


@rule(
    reason=(
        "if all Spot machines are lost at once, only the base replicas answer, and a queue cannot"
        " wait for new nodes"
    ),
    source="infra/decisions/0049",
)
def serving_keeps_its_promise(facts: Facts) -> Iterator[Finding]:
    """Base replicas handle the promised load without Spot, all replicas handle the peak, proxies
    and routers carry what the replicas have, and each has a machine.
    """
    environment = facts.environment
    serving = environment.serving
    if serving is None:
        return
    base_nodes = 0
    spot_nodes = 0
    for pool in environment.pools():
        if pool.role is Role.SERVING:
            base_nodes += pool.max_nodes
        if pool.capacity is Capacity.SPOT:
            spot_nodes += pool.max_nodes
    if serving.base_replicas < serving.base_needed:
        allowed = f"{serving.base_needed} or more: {serving}"
        fix = "raise it, or promise less"
        got = serving.base_replicas
        yield environment_finding(environment, "serving.base_replicas", got, allowed, fix)
    replicas = serving.base_most + serving.overflow_most
    if replicas < serving.peak_needed:
        field = "serving.base_most + overflow_most"
        allowed = f"{serving.peak_needed} or more: {serving}"
        yield environment_finding(environment, field, replicas, allowed, "raise one of them")
    # A service with a language model has routers behind its proxies.
    proxies = count_proxies(serving.peak_inflight)
    routers = count_routers(serving.peak_inflight)
    room = sum(_count_room(pool) for pool in environment.pools())
    if room < proxies + routers:
        field = "serving.nodes for proxies and routers"
        allowed = (
            f"{proxies + routers} or more: {serving.peak_inflight} requests at once, {CARRIES} of"
            f" them in one proxy, {STREAMS} in one router, and one of each in reserve"
        )
        fix = "raise max_nodes of the system group"
        yield environment_finding(environment, field, room, allowed, fix)
    if base_nodes < serving.base_most:
        field = "serving.nodes for base_most"
        allowed = f"{serving.base_most} or more: a serving group of as many"
        yield environment_finding(environment, field, base_nodes, allowed, "raise max_nodes")
    if spot_nodes < serving.overflow_most:
        field = "serving.nodes for overflow_most"
        allowed = f"{serving.overflow_most} or more: Spot groups of as many"
        fix = "raise max_nodes of a Spot group"
        yield environment_finding(environment, field, spot_nodes, allowed, fix)


def _count_room(pool: Pool) -> int:
    """Return the proxies and routers that a system pool has processors for, with the platform's own
    pods: a router takes 1 CPU, a proxy with its sidecars 0.7.
    """
    if pool.role is not Role.SYSTEM:
        return 0
    return pool.max_nodes * max(1, MACHINE_TYPES[pool.machine_type].vcpus - _SYSTEM_CPUS)
