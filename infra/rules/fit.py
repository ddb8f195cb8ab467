"""Which jobs a node pool can take: what they select and tolerate against the labels and taints of
its nodes.
"""

from collections.abc import Iterator

from holdfast.vocabulary.kubernetes import LABEL_DRIVER
from holdfast.vocabulary.pools import (
    GPU_TAINT,
    LABEL_ACCELERATOR,
    LABEL_FLEX_START,
    LABEL_ROLE,
    LABEL_SPOT,
    QUEUED_TAINT,
    Role,
    Taint,
    flex_selector,
)
from infra.rules.model import Facts, Finding, PlannedResource, rule

FLEX_START = "https://cloud.google.com/kubernetes-engine/docs/how-to/provisioningrequest"


def node_labels(pool: PlannedResource) -> dict[str, str]:
    """Of the pool's nodes, as planned: its own labels and those that GKE adds and jobs select."""
    labels = dict(pool.get("node_config.labels") or {})
    for gpu in pool.blocks("node_config.guest_accelerator"):
        labels[LABEL_ACCELERATOR] = str(gpu.get("type"))
        driver = gpu.get("gpu_driver_installation_config.gpu_driver_version")
        labels |= {LABEL_DRIVER: str(driver).lower()} if driver else {}
    for label, path in (
        (LABEL_SPOT, "node_config.spot"),
        (LABEL_FLEX_START, "node_config.flex_start"),
    ):
        labels |= {label: "true"} if pool.get(path) else {}
    return labels


def node_taints(pool: PlannedResource) -> set[tuple[str, str]]:
    """Key and value of each taint of the pool's nodes, as planned, with the one that GKE adds to
    queued pools.
    """
    taints = {(str(t.get("key")), str(t.get("value"))) for t in pool.blocks("node_config.taint")}
    return taints | (_pairs(QUEUED_TAINT) if pool.get("queued_provisioning.enabled") else set())


def _pairs(*taints: Taint) -> set[tuple[str, str]]:
    return {(taint.key, taint.value) for taint in taints}


@rule(
    reason=(
        "Kueue lends its GPUs, but no job of this platform selects or tolerates its nodes, so it"
        " stays empty"
    ),
    source=FLEX_START,
)
def pools_have_jobs(facts: Facts) -> Iterator[Finding]:
    """Jobs of the platform can use each GPU pool of the roles training and batch."""
    stated = {pool.name: pool for pool in facts.environment.pools()}
    for pool in facts.pools("gpu"):
        labels = node_labels(pool)
        taints = node_taints(pool)
        spot = pool.get("node_config.spot")
        flex = pool in facts.pools("flex")
        if labels.get(LABEL_ROLE) not in (Role.TRAINING, Role.BATCH) or (spot and flex):
            continue
        if flex:
            accelerator = labels[LABEL_ACCELERATOR]
            wanted = flex_selector(accelerator)
            queued = pool.get("queued_provisioning.enabled")
            tolerated = _pairs(GPU_TAINT, QUEUED_TAINT) if queued else _pairs(GPU_TAINT)
            if not facts.environment.auto_provisioning.cap(accelerator):
                allowed = (
                    f"a cap for {accelerator}: jobs are offered flex-start for GPUs that have one"
                )
                fix = "add an AcceleratorCap to auto_provisioning.accelerators"
                yield pool.finding(
                    "node_config.guest_accelerator", allowed, fix, f"{accelerator} without a cap"
                )
        else:
            known = stated.get(str(pool.get("name")))
            wanted = known.selector() if known else {}
            tolerated = _pairs(*known.taints) if known else set()
        lacking = sorted(key for key, value in wanted.items() if labels.get(key) != value)
        extra = sorted(key for key, _ in taints - tolerated)
        if lacking or extra:
            what = f"without {', '.join(lacking)}" if lacking else f"tainted {', '.join(extra)}"
            yield pool.finding(
                "node_config",
                "what jobs select and tolerate",
                "use the group as it is planned",
                what,
            )
