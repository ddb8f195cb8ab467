"""Defines node pools, and the labels and taints by which pods select or avoid them.

Pools and the manifests that select them come from the same `Pool`, so a selector that matches no
pool cannot be written.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.kubernetes import DRIVER_LATEST, LABEL_DRIVER
from holdfast.vocabulary.lifecycle import DEFAULT_WINDOW, ShutdownWindow


class Effect(StrEnum):
    """An effect in Kubernetes' spelling; the provider takes NO_SCHEDULE (`provider_value`)."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"

    @property
    def provider_value(self) -> str:
        return {
            "NoSchedule": "NO_SCHEDULE",
            "PreferNoSchedule": "PREFER_NO_SCHEDULE",
            "NoExecute": "NO_EXECUTE",
        }[self]


@dataclass(frozen=True, kw_only=True, slots=True)
class Taint:
    key: str
    value: str
    effect: Effect = Effect.NO_SCHEDULE

    def toleration(self) -> dict[str, str]:
        return {
            "key": self.key,
            "operator": "Equal",
            "value": self.value,
            "effect": self.effect.value,
        }

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect.value}"


def tolerates(toleration: dict[str, object], taint: Taint) -> bool:
    """Returns whether Kubernetes takes a toleration to match a taint.

    An empty key with Exists tolerates all taints, an empty effect any effect.
    """
    key = toleration.get("key") or ""
    operator = toleration.get("operator") or "Equal"
    if toleration.get("effect") not in (None, "", taint.effect.value):
        return False
    if operator == "Exists":
        return key in ("", taint.key)
    return key == taint.key and (toleration.get("value") or "") == taint.value


# Set by us on the system pool. Every pod of GKE tolerates it; two of them, which log events and
# answer unknown hosts, tolerate no other taint.
SYSTEM_TAINT = Taint(key="components.gke.io/gke-managed-components", value="true")
# Set by us on every Spot pool. GKE adds only labels to manual Spot pools, no taint.
SPOT_TAINT = Taint(key="provisioning-tier", value="preemptible")
# Set by us on every GPU pool, and by GKE on those that NAP creates.
GPU_TAINT = Taint(key="nvidia.com/gpu", value="present")
# Set by NAP when a pod selects flex-start and tolerates exactly this value; never `Exists`.
FLEX_TAINT = Taint(key="cloud.google.com/gke-flex-start", value="true")
# Set by GKE on queued-provisioning pools.
QUEUED_TAINT = Taint(key="cloud.google.com/gke-queued", value="true")

# Labels that GKE sets; read by selectors.
LABEL_SPOT = "cloud.google.com/gke-spot"
LABEL_FLEX_START = "cloud.google.com/gke-flex-start"
LABEL_PROVISIONING = "cloud.google.com/gke-provisioning"
LABEL_ACCELERATOR = "cloud.google.com/gke-accelerator"
LABEL_NODEPOOL = "cloud.google.com/gke-nodepool"
LABEL_COMPUTE_CLASS = "cloud.google.com/compute-class"
LABEL_ZONE = "topology.kubernetes.io/zone"
# Selectors that NAP reads; range FLEX_MIN_RUN_S..FLEX_MAX_RUN_S.
LABEL_MAX_RUN = "cloud.google.com/gke-max-run-duration-seconds"
LABEL_RECYCLE_LEAD = "cloud.google.com/gke-node-recycle-lead-time-seconds"
# The platform's labels, set on every pool.
LABEL_POOL_CLASS = "holdfast.dev/pool-class"
LABEL_ROLE = "holdfast.dev/role"
# On pools of a reservation: the contract's price of one machine, and the days of calendar mode.
LABEL_OWN_PRICE = "holdfast.dev/usd-per-hour"
LABEL_RESERVED_FROM = "holdfast.dev/reserved-from"
LABEL_RESERVED_UNTIL = "holdfast.dev/reserved-until"
# Capacities whose nodes Google does not reclaim.
STAYING = (Capacity.ON_DEMAND, Capacity.RESERVED)

# Set by the mover on a Spot node that it replaces: the fault of its GPU.
LABEL_GPU_FAULT = "holdfast.dev/gpu-fault"

GPU_RESOURCE = "nvidia.com/gpu"
LOCAL_SSD_GIB = 375

# Set by the node controller: the kubelet stopped reporting (after about 50 s), or reports that it
# cannot run pods.
UNREACHABLE = "node.kubernetes.io/unreachable"
NOT_READY = "node.kubernetes.io/not-ready"
# Seconds that a pod stays on such a node; Kubernetes' default is 300. A kubelet that is not ready
# may be restarting.
SILENCE_TOLERATED_S = {UNREACHABLE: 10, NOT_READY: 30}


def silence_tolerations() -> list[dict[str, str | int]]:
    """Returns the tolerations of every pod of the platform: a silent node holds it for seconds."""
    tolerations: list[dict[str, str | int]] = []
    for key, seconds in SILENCE_TOLERATED_S.items():
        toleration: dict[str, str | int] = {
            "key": key,
            "operator": "Exists",
            "effect": Effect.NO_EXECUTE.value,
            "tolerationSeconds": seconds,
        }
        tolerations.append(toleration)
    return tolerations


class Role(StrEnum):
    """The purpose of a pool. SYSTEM and SERVING are never interruptible."""

    SYSTEM = "system"
    SERVING = "serving"
    BATCH = "batch"
    TRAINING = "training"


# The roles of pools whose machines Kueue lends to jobs. Those of a serving pool are its replicas'.
JOB_ROLES = (Role.BATCH, Role.TRAINING)


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool:
    """One GKE node pool. Node counts are totals over all zones."""

    name: str
    role: Role
    capacity: Capacity
    machine_type: str
    min_nodes: int
    max_nodes: int
    pool_class: str = ""
    """Pools of one class differ in machine type only; empty means the pool's own name."""
    accelerator: str = ""
    gpus_per_node: int = 0
    zones: tuple[str, ...] = ()
    """Empty means every zone of the cluster."""
    taints: tuple[Taint, ...] = ()
    extra_labels: tuple[tuple[str, str], ...] = ()
    disk_gib: int = 100
    disk_type: str = "pd-balanced"
    local_ssds: int = 0
    """Local SSDs of 375 GiB, on which pods then write in place of the boot disk."""
    window: ShutdownWindow = field(default=DEFAULT_WINDOW)
    max_run_s: int = 0
    """Planned life of a flex-start node. 0: no end, or on a queued pool the end in the job's
    request.
    """

    @property
    def interruptible(self) -> bool:
        return self.capacity not in STAYING

    @property
    def free_disk_gib(self) -> int:
        """Disk that pods may use: GKE keeps a tenth of it against eviction, and a part for the
        system.
        """
        # https://cloud.google.com/kubernetes-engine/docs/concepts/plan-node-sizes
        if self.local_ssds:
            system_gib = min(25 + 25 * self.local_ssds, 100)
            return int(0.9 * LOCAL_SSD_GIB * self.local_ssds - system_gib)
        system_gib = min(0.5 * self.disk_gib, 6 + 0.35 * self.disk_gib, 100)
        return int(0.9 * self.disk_gib - system_gib)

    @property
    def own_usd_per_hour(self) -> float | None:
        """Price of one reserved machine in the environment; None for other capacities."""
        price = dict(self.extra_labels).get(LABEL_OWN_PRICE)
        return float(price) if price else None

    @property
    def reserved_days(self) -> tuple[str, str]:
        """First and last day of a reservation in calendar mode, as 2026-12-01; else empty."""
        labels = dict(self.extra_labels)
        return labels.get(LABEL_RESERVED_FROM, ""), labels.get(LABEL_RESERVED_UNTIL, "")

    def labels(self) -> dict[str, str]:
        """Returns the platform's labels; GKE adds its own."""
        return {
            LABEL_POOL_CLASS: self.pool_class or self.name,
            LABEL_ROLE: self.role.value,
            **dict(self.extra_labels),
        }

    def node_labels(self) -> dict[str, str]:
        """Returns all labels of a node of this pool that a selector may match: ours and GKE's."""
        labels = self.labels() | {LABEL_NODEPOOL: self.name}
        if self.accelerator:
            labels |= {LABEL_ACCELERATOR: self.accelerator, LABEL_DRIVER: DRIVER_LATEST}
        if self.capacity is Capacity.SPOT:
            labels |= {LABEL_PROVISIONING: "spot", LABEL_SPOT: "true"}
        elif self.capacity in STAYING:
            labels[LABEL_PROVISIONING] = "standard"
        else:
            labels |= {LABEL_PROVISIONING: "flex-start", LABEL_FLEX_START: "true"}
        return labels

    def selector(self) -> dict[str, str]:
        """Returns the nodeSelector of a pod that must run on this class of pools."""
        labels = self.node_labels()
        keys = (LABEL_POOL_CLASS, LABEL_ACCELERATOR, LABEL_SPOT, LABEL_FLEX_START)
        return {key: labels[key] for key in keys if key in labels}

    def tolerations(self) -> list[dict[str, str]]:
        return [taint.toleration() for taint in self.taints]


def flex_selector(accelerator: str) -> dict[str, str]:
    """Returns the nodeSelector of a pod on flex-start or queued nodes, of node pools or NAP.

    It names no maximal run: only nodes that NAP makes have that label, so a pod that selected it
    would fit no node pool.
    """
    return {
        LABEL_FLEX_START: "true",
        LABEL_ACCELERATOR: accelerator,
        LABEL_DRIVER: DRIVER_LATEST,
    }
