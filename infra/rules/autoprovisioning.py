"""Rules for node auto-provisioning: caps bound the cost, defaults are as safe as those of pools.

GKE compares the caps with all nodes of the cluster, manual pools included. A cap of 8 L4 with a
Spot pool of 24 stops the pool at 8 and leaves nothing for flex-start; the pods say only that no
scale-up is possible. So the caps must cover every pool at its maximum.
"""

from collections import Counter
from collections.abc import Iterator

from holdfast.vocabulary.machines import ACCELERATORS, MACHINE_TYPES
from infra.rules.model import Facts, Finding, PlannedResource, environment_finding, rule

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
        yield environment_finding(
            facts.environment,
            "auto_provisioning.accelerators",
            "()",
            f"caps for {', '.join(ACCELERATORS)}",
            "add an AcceleratorCap",
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
                path = f"{LIMITS}[{name}]"
                allowed = f"0 <= minimum <= maximum, maximum 1 to {ceiling:,}"
                yield cluster.finding(path, allowed, "set a cap", f"{low}..{high}")


@rule(
    reason="GKE counts manual pools towards the limits: no pool grows beyond them",
    source="GKE documentation on NAP limits",
)
def nap_caps_cover_pools(facts: Facts) -> Iterator[Finding]:
    """The limits allow every pool to reach its maximum."""
    totals = _sum_pools(facts)
    for cluster in facts.cluster():
        for name, limit in _limits(cluster).items():
            maximum = limit.get("maximum", 0)
            if maximum < totals[name]:
                allowed = f"at least {totals[name]:,}"
                fix = "raise the limit or lower max_nodes"
                yield cluster.finding(f"{LIMITS}[{name}]", allowed, fix, maximum)


@rule(
    reason=(
        "pools count towards the cap: once they may have all of it, auto-provisioning makes no"
        " node, and flex-start jobs of that accelerator wait forever"
    ),
    source="GKE documentation on NAP limits",
)
def nap_leaves_flex_start(facts: Facts) -> Iterator[Finding]:
    """Each cap leaves auto-provisioning a whole machine beyond the pools, or a flex-start pool has
    the accelerator.
    """
    totals = _sum_pools(facts)
    in_flex_pools: set[str] = set()
    for pool in facts.pools("flex"):
        for gpu in pool.blocks("node_config.guest_accelerator"):
            in_flex_pools.add(str(gpu.get("type")))
    for cluster in facts.cluster():
        for name, limit in _limits(cluster).items():
            if name not in ACCELERATORS or name in in_flex_pools:
                continue
            machines = [item for item in MACHINE_TYPES.values() if item.accelerator == name]
            allowed = totals[name] + min(machine.gpus for machine in machines)
            # The rule nap-caps-cover-pools reports a cap below the pools.
            if totals[name] <= limit.get("maximum", 0) < allowed:
                yield cluster.finding(
                    f"{LIMITS}[{name}]",
                    f"{allowed:,} or more: the pools may have {totals[name]:,} of them",
                    f"raise max_gpus of {name}, or lower max_nodes of a group",
                    limit.get("maximum"),
                )


@rule(
    reason="otherwise auto-provisioning makes no node with it, and flex-start jobs wait forever",
    source="https://docs.cloud.google.com/compute/docs/gpus/gpu-regions-zones",
)
def nap_zones_sell_the_gpus(facts: Facts) -> Iterator[Finding]:
    """Some zone of auto-provisioning offers each accelerator that has a cap."""
    for cluster in facts.cluster():
        zones = set(cluster.get("cluster_autoscaling.auto_provisioning_locations") or ())
        for name in _limits(cluster):
            gpu = ACCELERATORS.get(name)
            if gpu and zones.isdisjoint(gpu.zones):
                yield cluster.finding(
                    f"{LIMITS}[{name}]",
                    f"accelerators of {', '.join(sorted(zones))}",
                    "remove its cap, or choose zones of the environment that have it",
                    f"{name}, which none of them has",
                )


def _sum_pools(facts: Facts) -> Counter[str]:
    """Return vCPUs, GiB of memory and GPUs by accelerator of all pools at their maximum."""
    totals: Counter[str] = Counter()
    for pool in facts.pools():
        machine = MACHINE_TYPES.get(str(pool.get("node_config.machine_type")))
        if machine is None:
            continue
        nodes = pool.get("autoscaling.total_max_node_count", 0)
        totals["cpu"] += nodes * machine.vcpus
        totals["memory"] += nodes * machine.memory_gib
        totals[machine.accelerator] += nodes * machine.gpus
    return totals
