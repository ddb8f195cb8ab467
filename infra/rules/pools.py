"""Node pools: which capacity excludes which, taints, machines, windows."""

from collections.abc import Iterator

from holdfast.contract.lifecycle import DEFAULT_WINDOW, EXTENDED_WINDOW, FLEX_MAX_RUN_S, FLEX_MIN_RUN_S
from holdfast.contract.machines import ACCELERATORS
from holdfast.contract.pools import GPU_TAINT, LABEL_ROLE, SPOT_TAINT, SYSTEM_TAINT, Effect, Role, Taint
from holdfast.contract.values import duration_s
from infra.contract.versions import CUDA_MAJOR, GPU_DRIVERS, MIN_DRIVER
from infra.rules.model import Facts, Finding, PlannedResource, each, rule
from infra.specs.pools import RESERVED_TAINTS

TOOLKIT = "Cluster Toolkit, gke-node-pool preconditions"
PROVIDER = "google provider 7.39 accepts it silently (tested)"
AUTOSCALER = "published source of the GKE autoscaler"


def _tainted(pool: PlannedResource, taint: Taint) -> bool:
    """PREFER_NO_SCHEDULE keeps nothing away; NO_EXECUTE does more than is asked."""
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
                yield pool.finding(path, "one of spot, flex_start and queued", "make two groups", "both")


@rule(reason="preemptible is the older form of Spot with a 24 h limit; GKE rejects both together", source=PROVIDER)
def no_preemptible(facts: Facts) -> Iterator[Finding]:
    """No pool uses the legacy preemptible machines."""
    for pool in facts.pools():
        if pool.get("node_config.preemptible"):
            yield pool.finding("node_config.preemptible", "unset", "use spot")


@rule(reason="a repair would queue for another machine; GKE rejects auto-repair on flex-start", source=TOOLKIT)
def flex_without_repair(facts: Facts) -> Iterator[Finding]:
    """Flex-start pools have auto-repair off."""
    yield from each(facts.pools("flex"), "management.auto_repair", False, "turn auto_repair off")


@rule(reason="Spot and flex-start capacity never comes from a reservation", source=TOOLKIT)
def no_reservation(facts: Facts) -> Iterator[Finding]:
    """Interruptible pools consume no reservation."""
    path = "node_config.reservation_affinity.consume_reservation_type"
    yield from each([*facts.pools("spot"), *facts.pools("flex")], path, "NO_RESERVATION", "state NO_RESERVATION")


@rule(reason="a first node would block the apply until the queue delivers it", source=TOOLKIT)
def flex_starts_empty(facts: Facts) -> Iterator[Finding]:
    """Flex-start pools start with no nodes and may shrink to none."""
    for path in ("initial_node_count", "autoscaling.total_min_node_count"):
        yield from each(facts.pools("flex"), path, 0, "set 0")


@rule(reason="GKE sets SHORT_LIVED, which the provider does not support: a permanent difference", source=AUTOSCALER)
def flex_without_upgrade_settings(facts: Facts) -> Iterator[Finding]:
    """Flex-start pools have no upgrade settings."""
    for pool in facts.pools("flex"):
        # A plan shows the block as known only when it was stated.
        if pool.get("upgrade_settings.strategy"):
            yield pool.finding("upgrade_settings", "no block", "leave the block out")


@rule(
    reason="the API only accepts seconds and rejects '7d'; flex-start ends after 7 days; a queued job asks for its own run",
    source=f"{PROVIDER}; {AUTOSCALER}",
)
def flex_run_in_seconds(facts: Facts) -> Iterator[Finding]:
    """max_run_duration is in seconds and within the limit of flex-start, and unset on queued pools."""
    for pool in facts.pools("flex"):
        if pool.get("queued_provisioning.enabled"):
            if pool.get("node_config.max_run_duration"):
                yield pool.finding("node_config.max_run_duration", "unset on a queued pool", "remove it")
            continue
        seconds = duration_s(str(pool.get("node_config.max_run_duration")), "s")
        if seconds is None or not FLEX_MIN_RUN_S <= seconds <= FLEX_MAX_RUN_S:
            allowed = f"{FLEX_MIN_RUN_S}s to {FLEX_MAX_RUN_S}s"
            yield pool.finding("node_config.max_run_duration", allowed, "write seconds with an s")


@rule(reason="otherwise pods without a GPU fill GPU nodes", source="GKE documentation; Cluster Toolkit adds it always")
def gpu_taint(facts: Facts) -> Iterator[Finding]:
    """Every GPU pool has the GPU taint."""
    for pool in facts.pools("gpu"):
        if not _tainted(pool, GPU_TAINT):
            yield pool.finding("node_config.taint", str(GPU_TAINT), "add the taint")


@rule(
    reason="GKE labels manual Spot pools but does not taint them, so any pod may be scheduled there", source=AUTOSCALER
)
def spot_taint(facts: Facts) -> Iterator[Finding]:
    """Every Spot pool has the Spot taint."""
    for pool in facts.pools("spot"):
        if not _tainted(pool, SPOT_TAINT):
            yield pool.finding("node_config.taint", str(SPOT_TAINT), "add the taint")


@rule(
    reason="GKE sets its own taints, such as the one for queued nodes, and rejects a pool that sets one",
    source=AUTOSCALER,
)
def taints_of_gke(facts: Facts) -> Iterator[Finding]:
    """No pool has a taint with a reserved prefix of Google or Kubernetes."""
    for pool in facts.pools():
        for taint in pool.blocks("node_config.taint"):
            if str(taint.get("key")).startswith(RESERVED_TAINTS):
                yield pool.finding("node_config.taint", "taints of yours", "remove it: GKE sets it", taint.get("key"))


@rule(reason="otherwise the pool never gets a node", source="Compute Engine documentation, GPU locations")
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
                yield pool.finding("node_locations", ", ".join(here), "set the group's zones", ", ".join(wrong))


@rule(
    reason="the API accepts 0, 30 or 120 s and only on Spot; critical pods cannot get more than all of it",
    source=PROVIDER,
)
def grace_is_known(facts: Facts) -> Iterator[Finding]:
    """The grace period is one that GKE supports, on Spot pools only."""
    known = {(w.total_s, w.critical_s) for w in (DEFAULT_WINDOW, EXTENDED_WINDOW)}
    for pool in facts.pools():
        total = pool.get("node_config.kubelet_config.shutdown_grace_period_seconds")
        critical = pool.get("node_config.kubelet_config.shutdown_grace_period_critical_pods_seconds")
        if not total and not critical:
            continue
        if not pool.get("node_config.spot") or (total, critical) not in known:
            path = "node_config.kubelet_config.shutdown_grace_period_seconds"
            yield pool.finding(path, "30/15 or 120/15, on Spot", "set spot_grace_s to 30 or 120", f"{total}/{critical}")


@rule(reason="older control planes reject it", source="GKE documentation: 1.35.0-gke.1171000")
def grace_has_its_version(facts: Facts) -> Iterator[Finding]:
    """The 120 s grace period requires a control plane that supports it."""
    environment = facts.environment
    if environment.spot_grace_s == EXTENDED_WINDOW.total_s and not environment.cluster.may_extend_grace():
        for cluster in facts.cluster():
            yield cluster.finding("min_master_version", "1.35 or newer", "set cluster.min_version")


@rule(
    reason="BALANCED waits for the scarcest zone; ANY uses available capacity and is preempted less", source="GKE docs"
)
def interruptible_takes_any_zone(facts: Facts) -> Iterator[Finding]:
    """Interruptible pools use the location policy ANY."""
    pools = [*facts.pools("spot"), *facts.pools("flex")]
    yield from each(pools, "autoscaling.location_policy", "ANY", "set ANY")


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
                "node_config", f"on-demand with {SYSTEM_TAINT}", "make the system group on-demand", "not so"
            )
    if pools and not keepers:
        allowed = "one pool of role system"
        yield Finding(where="node pools", got="none for system pods", allowed=allowed, fix="add the system group")


@rule(
    reason="base replicas on preemptible nodes cannot guarantee the promised load",
    source="GKE documentation on Spot VMs",
)
def serving_base_stays(facts: Facts) -> Iterator[Finding]:
    """Serving pools are on-demand."""
    for pool in [*facts.pools("spot"), *facts.pools("flex")]:
        if pool.get("node_config.labels", {}).get(LABEL_ROLE) == Role.SERVING:
            yield pool.finding("node_config.labels", "roles batch and training", "make serving on-demand")


@rule(
    reason="PyTorch finds no GPU with an older driver, so the work runs on the CPU at the price of a GPU",
    source="NVIDIA's table of supported drivers; GKE documentation on GPU drivers",
)
def gpu_driver_serves_cuda(facts: Facts) -> Iterator[Finding]:
    """GKE installs a GPU driver that supports the pinned CUDA version."""
    serving = [name for name, branch in GPU_DRIVERS.items() if branch >= MIN_DRIVER[CUDA_MAJOR]]
    for pool in facts.pools("gpu"):
        for gpu in pool.blocks("node_config.guest_accelerator"):
            got = PlannedResource(kind="", address=pool.address, values=gpu)
            path = "gpu_driver_installation_config.gpu_driver_version"
            if got.get(path) not in serving:
                yield got.finding(path, f"{' or '.join(serving)} for CUDA {CUDA_MAJOR}", f"state {serving[0]}")
