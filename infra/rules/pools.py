"""Node pools: which capacity excludes which, taints, zones, windows, disks."""

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
from infra.rules.autoprovisioning import DEFAULTS
from infra.rules.model import Facts, Finding, PlannedResource, rule

TOOLKIT = "Cluster Toolkit, gke-node-pool preconditions"
AUTOSCALER = "published source of the GKE autoscaler"
# Boot disks, by the beginning of a machine type.
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
}
DISKS_DOC = "https://docs.cloud.google.com/compute/docs/disks/hyperdisks"


def _tainted(pool: PlannedResource, taint: Taint) -> bool:
    """PREFER_NO_SCHEDULE keeps nothing away; NO_EXECUTE does more than is needed."""
    keeps_away = (Effect.NO_SCHEDULE.provider_value, Effect.NO_EXECUTE.provider_value)
    return any(
        (t.get("key"), t.get("value")) == (taint.key, taint.value) and t.get("effect") in keeps_away
        for t in pool.blocks("node_config.taint")
    )


@rule(reason="GKE rejects the pool after minutes of applying", source=TOOLKIT)
def spot_xor_flex(facts: Facts) -> Iterator[Finding]:
    """A pool is Spot, flex-start or queued: one of them."""
    for pool in facts.pools("spot"):
        for path in ("node_config.flex_start", "queued_provisioning.enabled"):
            if pool.get(path):
                yield pool.finding(
                    path, "one of spot, flex_start and queued", "make two groups", "both"
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
            if not _tainted(pool, taint):
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
            sold = accelerator.zones if accelerator else frozenset[str]()
            wrong = sorted(set(pool.get("node_locations", [])) - sold)
            if wrong:
                region = wrong[0].rpartition("-")[0]
                here = sorted(z for z in sold if z.startswith(region)) or ["none in this region"]
                yield pool.finding(
                    "node_locations", ", ".join(here), "set the group's zones", ", ".join(wrong)
                )


@rule(reason="older control planes reject it", source="GKE documentation: 1.35.0-gke.1171000")
def grace_has_its_version(facts: Facts) -> Iterator[Finding]:
    """The 120 s grace period requires a control plane that supports it."""
    environment = facts.environment
    if (
        environment.spot_grace_s == EXTENDED_WINDOW.total_s
        and not environment.cluster.may_extend_grace()
    ):
        for cluster in facts.cluster():
            yield cluster.finding("min_master_version", "1.35 or newer", "set cluster.min_version")


@rule(
    reason="system pods on Spot are lost together with the jobs that need them",
    source="GKE documentation on Spot VMs",
)
def system_pool_stays(facts: Facts) -> Iterator[Finding]:
    """There is an on-demand pool for system pods, with a taint against other pods."""
    pools = facts.pools()
    keepers = [p for p in pools if p.get("node_config.labels", {}).get(LABEL_ROLE) == Role.SYSTEM]
    interruptible = {p.address for p in [*facts.pools("spot"), *facts.pools("flex")]}
    for pool in keepers:
        if pool.address in interruptible or not _tainted(pool, SYSTEM_TAINT):
            yield pool.finding(
                "node_config",
                f"on-demand with {SYSTEM_TAINT}",
                "make the system group on-demand",
                "not so",
            )
    if pools and not keepers:
        allowed = "one pool of role system"
        yield Finding(
            where="node pools",
            got="none for system pods",
            allowed=allowed,
            fix="add the system group",
        )


def boot_disks(machine_type: str) -> tuple[str, ...]:
    return next(
        (disks for start, disks in BOOT_DISKS.items() if machine_type.startswith(start)), ()
    )


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
                "node_config.disk_type", f"{', '.join(allowed)} on {machine}", "set disk_type"
            )
    capped = {cap.accelerator for cap in facts.environment.auto_provisioning.accelerators}
    series = [set(boot_disks(m.name)) for m in MACHINE_TYPES.values() if m.accelerator in capped]
    # With H200 and A100 no one type fits all: then the pod or its class states one.
    common = set.intersection(*series) if series else set[str]()
    for cluster in facts.cluster():
        if common and cluster.get(f"{DEFAULTS}.disk_type") not in common:
            allowed = ", ".join(sorted(common))
            yield cluster.finding(
                f"{DEFAULTS}.disk_type", allowed, "set auto_provisioning.disk_type"
            )
