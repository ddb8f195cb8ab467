"""The environment as a whole: values that are right one by one, and wrong together."""

from collections.abc import Iterator

from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.pools import Role
from infra.contract.names import BUCKETS
from infra.environments import Environment
from infra.rules.model import Facts, Finding, of_environment, rule

GANG_PODS = 2
SHARED_CORE = ("db-f1-micro", "db-g1-small")
PLATFORM = "design of this platform"
# Field, what it holds, what is allowed, how to correct it.
Row = tuple[str, object, str, str]


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
    drills, and a results database with cores and a standby.
    """
    for row in _lacking(facts.environment) if facts.environment.production else ():
        yield of_environment(facts.environment, *row)


def _lacking(environment: Environment) -> Iterator[Row]:
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
    if not environment.storage.runs:
        yield "storage.runs", "()", "the runs that train there", 'add Run(name="...") for each'
    for group in environment.groups:
        if group.role in (Role.SYSTEM, Role.SERVING) and (
            group.min_nodes < 2 or group.max_nodes <= group.min_nodes
        ):
            got = f"{group.min_nodes}..{group.max_nodes}"
            yield (
                f"groups[{group.name}]",
                got,
                "min_nodes 2 or more, max_nodes above it",
                "raise them",
            )


@rule(
    reason="otherwise anyone with write access to checkpoints can change the Terraform state",
    source="security of the state",
)
def state_is_apart(facts: Facts) -> Iterator[Finding]:
    """The Terraform state has its own bucket."""
    environment = facts.environment
    if environment.state_bucket in {environment.bucket(p) for p in BUCKETS}:
        yield of_environment(
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
        needed = min(GANG_PODS, pool.max_nodes) * pool.gpus_per_node
        if pool.role is Role.TRAINING and environment.quota_gpus(pool.pool_class) < needed:
            got = environment.quota_gpus(pool.pool_class)
            field = f"quotas[{pool.pool_class}].gpus"
            yield of_environment(
                environment, field, got, f"{needed} or more", "raise the quota, or remove it"
            )


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
        yield of_environment(facts.environment, "alerts", got, allowed, "order them")


@rule(
    reason=(
        "if all Spot machines are lost at once, only the base replicas answer, and a queue cannot"
        " wait for new nodes"
    ),
    source="infra/decisions/0049",
)
def serving_keeps_its_promise(facts: Facts) -> Iterator[Finding]:
    """Base replicas handle the promised load without Spot, all replicas handle the peak, and each
    has a machine.
    """
    environment, serving = facts.environment, facts.environment.serving
    if serving is None:
        return
    pools = environment.pools()
    base = sum(p.max_nodes for p in pools if p.role is Role.SERVING)
    spot = sum(p.max_nodes for p in pools if p.capacity is Capacity.SPOT)
    most = serving.base_most + serving.overflow_most
    rows = (
        (
            "base_replicas",
            serving.base_replicas,
            serving.base_needed,
            str(serving),
            "raise it, or promise less",
        ),
        ("base_most + overflow_most", most, serving.peak_needed, str(serving), "raise one of them"),
        (
            "nodes for base_most",
            base,
            serving.base_most,
            "a serving group of as many",
            "raise max_nodes",
        ),
        (
            "nodes for overflow_most",
            spot,
            serving.overflow_most,
            "Spot groups of as many",
            "raise max_nodes of a Spot group",
        ),
    )
    for field, got, needed, why, fix in rows:
        if got < needed:
            yield of_environment(
                environment, f"serving.{field}", got, f"{needed} or more: {why}", fix
            )
