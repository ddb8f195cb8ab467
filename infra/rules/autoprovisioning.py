"""Node auto-provisioning: caps that bound the spend, and defaults that are as safe as the pools'.

GKE compares the caps with all nodes of the cluster, manual pools included. A cap of 8 L4 with a
Spot pool of 24 stops the pool at 8 and leaves nothing for flex-start; the pods say only that no
scale-up is possible. So the caps must cover every pool at its maximum.
"""

from collections.abc import Iterator

from holdfast.vocabulary.machines import ACCELERATORS, MACHINE_TYPES
from infra.rules.model import Facts, Finding, PlannedResource, of_environment, rule

PROVIDER = "google provider 7.39 accepts it silently (tested)"
LIMITS = "cluster_autoscaling.resource_limits"
DEFAULTS = "cluster_autoscaling.auto_provisioning_defaults"
# GKE itself takes 2^63-1, and public blueprints use it. A larger platform raises these on purpose.
CEILINGS = {"cpu": 20_000, "memory": 160_000}
MAX_GPUS = 2_048


def _limits(cluster: PlannedResource) -> dict[str, PlannedResource]:
    return {str(limit.get("resource_type")): limit for limit in cluster.blocks(LIMITS)}


@rule(
    reason="without a cap GKE makes no node with a GPU, and flex-start jobs wait forever",
    source=PROVIDER,
)
def nap_caps_present(facts: Facts) -> Iterator[Finding]:
    """Auto-provisioning has a limit for at least one accelerator."""
    if not facts.environment.auto_provisioning.accelerators:
        field = "auto_provisioning.accelerators"
        fix = "add an AcceleratorCap"
        yield of_environment(
            facts.environment, field, "()", f"caps for {', '.join(ACCELERATORS)}", fix
        )


@rule(
    reason="otherwise a retry loop can buy any number of machines",
    source="accelerated-platforms sets 9.2e18 by default",
)
def nap_caps_finite(facts: Facts) -> Iterator[Finding]:
    """Each limit is affordable."""
    for cluster in facts.cluster():
        for name, limit in _limits(cluster).items():
            low = limit.get("minimum") or 0
            high = limit.get("maximum") or 0
            ceiling = CEILINGS.get(name, MAX_GPUS)
            if not 0 <= low <= high or not 1 <= high <= ceiling:
                allowed = f"0 <= minimum <= maximum, maximum 1 to {ceiling:,}"
                yield cluster.finding(f"{LIMITS}[{name}]", allowed, "set a cap", f"{low}..{high}")


@rule(
    reason="GKE counts manual pools towards the limits: no pool grows beyond them",
    source="GKE documentation on NAP limits",
)
def nap_caps_cover_pools(facts: Facts) -> Iterator[Finding]:
    """The limits allow every pool to reach its maximum."""
    needed: dict[str, int] = {}
    for pool in facts.pools():
        machine = MACHINE_TYPES.get(str(pool.get("node_config.machine_type")))
        nodes = pool.get("autoscaling.total_max_node_count", 0)
        if machine:
            parts = {
                "cpu": machine.vcpus,
                "memory": machine.memory_gib,
                machine.accelerator: machine.gpus,
            }
            needed = {k: needed.get(k, 0) + nodes * parts.get(k, 0) for k in needed | parts}
    for cluster in facts.cluster():
        for name, limit in _limits(cluster).items():
            if limit.get("maximum", 0) < needed.get(name, 0):
                allowed = f"at least {needed[name]:,}"
                got = limit.get("maximum")
                yield cluster.finding(
                    f"{LIMITS}[{name}]", allowed, "raise the limit or lower max_nodes", got
                )
