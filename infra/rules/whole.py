"""The environment as a whole: values that are right one by one, and wrong together."""

from collections.abc import Iterator

from holdfast.contract.capacity import Capacity
from holdfast.contract.pools import Role
from infra.contract.names import BUCKETS
from infra.rules.model import Facts, Finding, of_environment, rule

GANG_PODS = 2
SHARED_CORE = ("db-f1-micro", "db-g1-small")
PLATFORM = "design of this platform"


@rule(
    reason="otherwise the invoice is the first sign of runaway costs", source="Cloud Billing documentation on budgets"
)
def production_has_a_budget(facts: Facts) -> Iterator[Finding]:
    """Production has a budget."""
    environment = facts.environment
    if environment.production and environment.budget is None:
        yield of_environment(environment, "budget", "None", "a Budget", "add a budget with the billing account")


@rule(
    reason="otherwise the outage of one zone stops every batch", source="Cloud SQL documentation on high availability"
)
def production_database_survives_a_zone(facts: Facts) -> Iterator[Finding]:
    """In production, the results database has a standby in another zone."""
    environment = facts.environment
    if environment.production and environment.database and not environment.database.highly_available:
        yield of_environment(
            environment, "database.highly_available", False, "True", "set it, or leave the database out"
        )


@rule(reason="shared-core machines have no service level agreement", source="Cloud SQL service level agreement")
def production_database_has_cores(facts: Facts) -> Iterator[Finding]:
    """In production, the results database has dedicated cores."""
    environment = facts.environment
    if environment.production and environment.database and environment.database.tier in SHARED_CORE:
        yield of_environment(
            environment, "database.tier", environment.database.tier, "db-custom-2-7680 or larger", "raise it"
        )


@rule(
    reason="otherwise a deployment from another machine creates everything again",
    source="Terraform documentation on state",
)
def production_state_is_shared(facts: Facts) -> Iterator[Finding]:
    """In production, the Terraform state is in a bucket."""
    if facts.environment.production and not facts.environment.state_bucket:
        yield of_environment(facts.environment, "state_bucket", "''", "a bucket", "make it with `make bootstrap`")


@rule(
    reason="with one zone, its outage stops everything, and its Spot capacity runs out sooner",
    source="GKE documentation",
)
def production_has_zones(facts: Facts) -> Iterator[Finding]:
    """In production, nodes are in two or more zones."""
    environment = facts.environment
    if environment.production and len(environment.zones) < 2:
        yield of_environment(
            environment, "zones", ", ".join(environment.zones), "two or more", "add zones of the region"
        )


@rule(reason="a drill in production is an outage for users", source=PLATFORM)
def production_is_not_drilled(facts: Facts) -> Iterator[Finding]:
    """Drills are disabled in production."""
    if facts.environment.production and facts.environment.allow_drills:
        yield of_environment(facts.environment, "allow_drills", True, "False", "run drills in another environment")


@rule(
    reason="otherwise any run can delete the checkpoints of all others",
    source="IAM conditions on Cloud Storage objects",
)
def production_runs_are_apart(facts: Facts) -> Iterator[Finding]:
    """In production, each training run writes only below its own prefix."""
    if facts.environment.production and not facts.environment.storage.runs:
        yield of_environment(
            facts.environment, "storage.runs", "()", "the runs that train there", 'add Run(name="...") for each'
        )


@rule(
    reason="otherwise the first request waits for a node, and the loss of one node stops everything",
    source="Kubernetes documentation",
)
def production_base_has_nodes(facts: Facts) -> Iterator[Finding]:
    """In production, the system and serving groups keep at least two nodes and can grow."""
    for group in facts.environment.groups if facts.environment.production else ():
        if group.role in (Role.SYSTEM, Role.SERVING) and (group.min_nodes < 2 or group.max_nodes <= group.min_nodes):
            field, got = f"groups[{group.name}]", f"{group.min_nodes}..{group.max_nodes}"
            yield of_environment(facts.environment, field, got, "min_nodes 2 or more, max_nodes above it", "raise them")


@rule(
    reason="otherwise anyone with write access to checkpoints can change the Terraform state",
    source="security of the state",
)
def state_is_apart(facts: Facts) -> Iterator[Finding]:
    """The Terraform state has its own bucket."""
    environment = facts.environment
    if environment.state_bucket in {environment.bucket(p) for p in BUCKETS}:
        yield of_environment(
            environment, "state_bucket", environment.state_bucket, "a separate bucket", "name another bucket"
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
            got, field = environment.quota_gpus(pool.pool_class), f"quotas[{pool.pool_class}].gpus"
            yield of_environment(environment, field, got, f"{needed} or more", "raise the quota, or remove it")


@rule(reason="people turn off an alert that fires before capacity can arrive", source="GKE documentation")
def thresholds_are_in_order(facts: Facts) -> Iterator[Finding]:
    """Alert thresholds grow with the expected wait for capacity."""
    alerts = facts.environment.alerts
    if not alerts.on_demand_pending_s <= alerts.spot_pending_s <= alerts.flex_pending_s:
        got = f"{alerts.on_demand_pending_s}, {alerts.spot_pending_s}, {alerts.flex_pending_s}"
        allowed = "on_demand_pending_s <= spot_pending_s <= flex_pending_s"
        yield of_environment(facts.environment, "alerts", got, allowed, "order them")


@rule(
    reason="if all Spot machines are lost at once, only the base replicas answer, and a queue cannot wait for new nodes",
    source="infra/decisions/0049",
)
def serving_base_keeps_the_promise(facts: Facts) -> Iterator[Finding]:
    """Base replicas handle the promised load without Spot, and all replicas together handle the peak."""
    environment, serving = facts.environment, facts.environment.serving
    if serving is None:
        return
    if serving.base_replicas < serving.base_needed:
        allowed = f"{serving.base_needed} or more: {serving}"
        yield of_environment(
            environment, "serving.base_replicas", serving.base_replicas, allowed, "raise it, or promise less"
        )
    most = serving.base_most + serving.overflow_most
    if most < serving.peak_needed:
        got, field = most, "serving.base_most + overflow_most"
        yield of_environment(environment, field, got, f"{serving.peak_needed} or more: {serving}", "raise one of them")


@rule(reason="replicas without machines wait forever", source=PLATFORM)
def serving_has_machines(facts: Facts) -> Iterator[Finding]:
    """There is a large enough on-demand serving group for the base and a large enough Spot group for the overflow."""
    environment, serving = facts.environment, facts.environment.serving
    if serving is None:
        return
    pools = environment.pools()
    base = sum(p.max_nodes for p in pools if p.role is Role.SERVING)
    if base < serving.base_most:
        allowed = f"a serving group of {serving.base_most} nodes"
        yield of_environment(
            environment, "serving.base_most", f"{serving.base_most} on {base} nodes", allowed, "raise max_nodes"
        )
    spot = sum(p.max_nodes for p in pools if p.capacity is Capacity.SPOT)
    if spot < serving.overflow_most:
        got, allowed = f"{serving.overflow_most} on {spot} nodes", "Spot groups of as many nodes"
        yield of_environment(environment, "serving.overflow_most", got, allowed, "raise max_nodes of a Spot group")
