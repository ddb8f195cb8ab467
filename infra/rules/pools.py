"""Rules on node pools: capacities that exclude each other, taints, zones, grace periods, disks."""

from collections.abc import Iterator

from holdfast.vocabulary.lifecycle import EXTENDED_WINDOW
from holdfast.vocabulary.machines import ACCELERATORS, MACHINE_TYPES
from holdfast.vocabulary.pools import (
    GPU_TAINT,
    LABEL_ROLE,
    SPOT_TAINT,
    SYSTEM_TAINT,
    Effect,
    Role,
    Taint,
)
from infra.environments.cluster import MIN_EXTENDED_GRACE_VERSION, MIN_SIGNED_MODULES_VERSION
from infra.rules.autoprovisioning import DEFAULTS
from infra.rules.model import Facts, Finding, PlannedResource, rule

TOOLKIT = "Cluster Toolkit, gke-node-pool preconditions"
AUTOSCALER = "published source of the GKE autoscaler"
# Boot disks by series, the beginning of a machine type.
_PERSISTENT = ("pd-balanced", "pd-ssd")
_HYPERDISK = ("hyperdisk-balanced",)
BOOT_DISKS = {
    "e2-": ("pd-standard", *_PERSISTENT),
    "n2-": ("pd-standard", *_PERSISTENT, *_HYPERDISK),
    "c3-": (*_PERSISTENT, *_HYPERDISK),
    "g2-": (*_PERSISTENT, *_HYPERDISK),
    "a2-": ("pd-standard", *_PERSISTENT),
    "a3-highgpu-": (*_PERSISTENT, *_HYPERDISK),
    "a3-ultragpu-": _HYPERDISK,
    "a4-": _HYPERDISK,
    "g4-": _HYPERDISK,
    "n1-": ("pd-standard", *_PERSISTENT),
}
DISKS_DOC = "https://docs.cloud.google.com/compute/docs/disks/hyperdisks"


def _has_taint(pool: PlannedResource, taint: Taint) -> bool:
    """Tell whether the taint keeps pods away: PREFER_NO_SCHEDULE does not, NO_EXECUTE does more."""
    effects = (Effect.NO_SCHEDULE.provider_value, Effect.NO_EXECUTE.provider_value)
    for block in pool.blocks("node_config.taint"):
        pair = (block.get("key"), block.get("value"))
        if pair == (taint.key, taint.value) and block.get("effect") in effects:
            return True
    return False


@rule(reason="GKE rejects the pool after minutes of applying", source=TOOLKIT)
def spot_xor_flex(facts: Facts) -> Iterator[Finding]:
    """A pool is Spot, flex-start or queued: one of them."""
    for pool in facts.pools("spot"):
        for path in ("node_config.flex_start", "queued_provisioning.enabled"):
            if pool.get(path):
                yield pool.finding(
                    path,
                    "one of spot, flex_start and queued",
                    "make two groups",
                    "both",
                )


@rule(
    reason=(
        "otherwise any pod may be scheduled there: GKE labels manual Spot pools but does not taint"
        " them, and pods without a GPU fill GPU nodes"
    ),
    source=f"{AUTOSCALER}; Cluster Toolkit adds the GPU taint always",
)
def pools_are_tainted(facts: Facts) -> Iterator[Finding]:
    """Every Spot pool has the Spot taint, and every GPU pool the GPU taint."""
    for kind, taint in (("spot", SPOT_TAINT), ("gpu", GPU_TAINT)):
        for pool in facts.pools(kind):
            if not _has_taint(pool, taint):
                yield pool.finding("node_config.taint", str(taint), "add the taint")


@rule(
    reason="otherwise the pool never gets a node",
    source="Compute Engine documentation, GPU locations",
)
def zone_sells_the_gpu(facts: Facts) -> Iterator[Finding]:
    """Each zone of a GPU pool offers its accelerator."""
    for pool in facts.pools("gpu"):
        for gpu in pool.blocks("node_config.guest_accelerator"):
            accelerator = ACCELERATORS.get(str(gpu.get("type")))
            offering = accelerator.zones if accelerator else frozenset[str]()
            zones = sorted(set(pool.get("node_locations", [])) - offering)
            if zones:
                region = zones[0].rpartition("-")[0]
                alternatives = sorted(zone for zone in offering if zone.startswith(region))
                yield pool.finding(
                    "node_locations",
                    ", ".join(alternatives) or "none in this region",
                    "set the group's zones",
                    ", ".join(zones),
                )


@rule(
    reason="older control planes reject it",
    source=(
        "GKE documentation: 1.35.0-gke.1171000 for the grace period; 1.34.1-gke.2364000 for"
        " modules, https://docs.cloud.google.com/kubernetes-engine/security/secure-modules-cos"
    ),
)
def settings_have_their_version(facts: Facts) -> Iterator[Finding]:
    """The 120 s grace period and signed kernel modules require a control plane that supports
    them.
    """
    environment = facts.environment
    version = environment.cluster.oldest_version()
    oldest = ()
    # Channels offer newer ones to clusters that name no version.
    if environment.security.signed_kernel_modules and version:
        oldest = MIN_SIGNED_MODULES_VERSION
    if environment.spot_grace_s == EXTENDED_WINDOW.total_s:
        oldest = MIN_EXTENDED_GRACE_VERSION
    if version >= oldest:
        return
    allowed = f"{'.'.join(map(str, oldest))} or newer"
    got = environment.cluster.min_version or "none"
    for cluster in facts.cluster():
        yield cluster.finding("min_master_version", allowed, "set cluster.min_version", got)


@rule(
    reason="system pods on Spot are lost together with the jobs that need them",
    source="GKE documentation on Spot VMs",
)
def system_pool_stays(facts: Facts) -> Iterator[Finding]:
    """There is an on-demand pool for system pods, with a taint against other pods."""
    pools = facts.pools()
    system_pools = [pool for pool in pools if _role(pool) == Role.SYSTEM]
    interruptible = [*facts.pools("spot"), *facts.pools("flex")]
    for pool in system_pools:
        if pool in interruptible or not _has_taint(pool, SYSTEM_TAINT):
            yield pool.finding(
                "node_config",
                f"on-demand with {SYSTEM_TAINT}",
                "make the system group on-demand",
                "not so",
            )
    if pools and not system_pools:
        yield Finding(
            where="node pools",
            got="none for system pods",
            allowed="one pool of role system",
            fix="add the system group",
        )


@rule(
    reason="a gang over several nodes would have one network card of nine, at the price of all",
    source=(
        "https://docs.cloud.google.com/kubernetes-engine/docs/how-to/config-auto-net-for-accelerators"
    ),
)
def gangs_have_their_networks(facts: Facts) -> Iterator[Finding]:
    """Pools of A3 Ultra and A4 have the networks of their cards."""
    for pool in facts.pools("gpu"):
        machine = str(pool.get("node_config.machine_type"))
        profile = "network_config.accelerator_network_profile"
        if machine.startswith(("a3-ultragpu-8g", "a4-highgpu-8g")) and pool.get(profile) != "auto":
            yield pool.finding(profile, "auto", "state it in infra/specs/pools.py", "none")


@rule(
    reason=(
        "the autoscaler raises no pool to its minimum before a pod needs a node, so that the first"
        " requests wait for machines"
    ),
    source="GKE documentation on the cluster autoscaler; accelerated-platforms starts with 1",
)
def minimum_is_there_from_the_start(facts: Facts) -> Iterator[Finding]:
    """A pool with a minimum starts with as many nodes, in each zone the same number."""
    for pool in facts.pools():
        low = pool.get("autoscaling.total_min_node_count", 0)
        high = pool.get("autoscaling.total_max_node_count", 0)
        zones = len(pool.get("node_locations", [])) or 1
        nodes = (pool.get("initial_node_count") or 0) * zones
        if not low <= nodes <= high:
            yield pool.finding(
                "initial_node_count",
                f"{low} to {high} nodes, a multiple of {zones} zones",
                f"name fewer zones in the group, or set max_nodes to {zones} or more",
                f"{nodes} nodes",
            )


def _role(pool: PlannedResource) -> object:
    return pool.get("node_config.labels", {}).get(LABEL_ROLE)


def boot_disks(machine_type: str) -> tuple[str, ...]:
    """Return the types of boot disks that a machine type takes; none for an unknown series."""
    for series, disks in BOOT_DISKS.items():
        if machine_type.startswith(series):
            return disks
    return ()


@rule(reason="the API refuses a boot disk that the machine series does not take", source=DISKS_DOC)
def disks_fit(facts: Facts) -> Iterator[Finding]:
    """Boot disks are of a type that the machine series takes, also where auto-provisioning makes
    them.
    """
    for pool in facts.pools():
        machine = str(pool.get("node_config.machine_type"))
        disk = pool.get("node_config.disk_type")
        allowed = boot_disks(machine)
        if allowed and disk not in allowed:
            yield pool.finding(
                "node_config.disk_type",
                f"{', '.join(allowed)} on {machine}",
                "set disk_type",
            )
    # No single type fits both H200 and A100: then the pod or its class states one.
    common = _common_boot_disks(facts)
    for cluster in facts.cluster():
        if common and cluster.get(f"{DEFAULTS}.disk_type") not in common:
            path = f"{DEFAULTS}.disk_type"
            fix = "set auto_provisioning.disk_type"
            yield cluster.finding(path, ", ".join(sorted(common)), fix)


def _common_boot_disks(facts: Facts) -> set[str]:
    """Return the disk types that fit all machines with an accelerator of auto-provisioning."""
    auto_provisioning = facts.environment.auto_provisioning
    types: list[set[str]] = []
    for machine in MACHINE_TYPES.values():
        if auto_provisioning.cap(machine.accelerator):
            types.append(set(boot_disks(machine.name)))
    return set.intersection(*types) if types else set()
