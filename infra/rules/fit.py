"""Rules on the jobs that a node pool can take: the labels that they select and the taints that they
tolerate, against those of its nodes.
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
    """Return the labels of a planned pool's nodes: its own, and those of GKE that jobs select."""
    labels = dict(pool.get("node_config.labels") or {})
    for gpu in pool.blocks("node_config.guest_accelerator"):
        labels[LABEL_ACCELERATOR] = str(gpu.get("type"))
        driver = gpu.get("gpu_driver_installation_config.gpu_driver_version")
        if driver:
            labels[LABEL_DRIVER] = str(driver).lower()
    if pool.get("node_config.spot"):
        labels[LABEL_SPOT] = "true"
    if pool.get("node_config.flex_start"):
        labels[LABEL_FLEX_START] = "true"
    return labels


Pair = tuple[str, str]
"""Key and value of a taint."""


def node_taints(pool: PlannedResource) -> set[Pair]:
    """Return key and value of each taint of a planned pool's nodes, including the one that GKE adds
    to queued pools.
    """
    taints: set[Pair] = set()
    for block in pool.blocks("node_config.taint"):
        taints.add((str(block.get("key")), str(block.get("value"))))
    if pool.get("queued_provisioning.enabled"):
        taints |= _pairs(QUEUED_TAINT)
    return taints


def _pairs(*taints: Taint) -> set[Pair]:
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
    for pool in facts.pools("gpu"):
        labels = node_labels(pool)
        is_spot = pool.get("node_config.spot")
        is_flex = pool in facts.pools("flex")
        runs_jobs = labels.get(LABEL_ROLE) in (Role.TRAINING, Role.BATCH)
        if not runs_jobs or (is_spot and is_flex):
            continue
        accelerator = labels.get(LABEL_ACCELERATOR, "")
        if is_flex and not facts.environment.auto_provisioning.cap(accelerator):
            yield pool.finding(
                "node_config.guest_accelerator",
                f"a cap for {accelerator}: jobs are offered flex-start for GPUs that have one",
                "add an AcceleratorCap to auto_provisioning.accelerators",
                f"{accelerator} without a cap",
            )
        if is_flex:
            selector, tolerated = _describe_flex_jobs(pool, accelerator)
        else:
            selector, tolerated = _describe_pool_jobs(facts, pool)
        missing = [key for key, value in selector.items() if labels.get(key) != value]
        extra = [key for key, _ in node_taints(pool) - tolerated]
        if missing or extra:
            got = f"tainted {', '.join(sorted(extra))}"
            if missing:
                got = f"without {', '.join(sorted(missing))}"
            yield pool.finding(
                "node_config",
                "what jobs select and tolerate",
                "use the group as it is planned",
                got,
            )


JobsOfPool = tuple[dict[str, str], set[Pair]]
"""The node labels that jobs select, and the taints that they tolerate."""


def _describe_flex_jobs(pool: PlannedResource, accelerator: str) -> JobsOfPool:
    tolerated = _pairs(GPU_TAINT)
    if pool.get("queued_provisioning.enabled"):
        tolerated |= _pairs(QUEUED_TAINT)
    return flex_selector(accelerator), tolerated


def _describe_pool_jobs(facts: Facts, planned: PlannedResource) -> JobsOfPool:
    for pool in facts.environment.pools():
        if pool.name == planned.get("name"):
            return pool.selector(), _pairs(*pool.taints)
    return {}, set()
