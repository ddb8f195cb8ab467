"""Settings of machines: node groups, caps for auto-provisioning, quotas.

Read through `Environment`. A group states no taint and no label: they follow from role and
capacity, so that a fork cannot misspell them.
"""

from dataclasses import dataclass

from holdfast.support.errors import InputError
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.lifecycle import DEFAULT_WINDOW, FLEX_MAX_RUN_S, ShutdownWindow
from holdfast.vocabulary.machines import ACCELERATORS, MACHINE_TYPES
from holdfast.vocabulary.pools import (
    GPU_TAINT,
    LABEL_OWN_PRICE,
    LABEL_RESERVED_FROM,
    LABEL_RESERVED_UNTIL,
    QUEUED_TAINT,
    SPOT_TAINT,
    SYSTEM_TAINT,
    Effect,
    Pool,
    Role,
    Taint,
)
from infra.environments.checks import (
    between,
    day,
    dns_name,
    forms,
    numbers,
    one_of,
    require,
    unique,
)

DISK_TYPES = ("pd-balanced", "pd-ssd", "hyperdisk-balanced")
FLEX_CAPACITIES = (Capacity.FLEX_START, Capacity.QUEUED)
MAX_NODES_PER_POOL = 1000
MIN_DISK_GIB = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class Reservation:
    """Machines of Compute Engine that are reserved already, by name. Jobs take them before any
    other capacity.
    """

    name: str
    project: str = ""
    """Of a shared reservation: its owner. Empty: this project."""
    usd_per_hour: float
    """Of one machine, by your contract: prices, forecasts and receipts use it."""
    starts: str = ""
    """Calendar mode: first day, as 2026-12-01. Empty: it is there now."""
    ends: str = ""
    """Calendar mode: last day. No job is placed that would not be done by then."""

    def __post_init__(self) -> None:
        dns_name("groups[].reservation.name", self.name, 63)
        forms("groups[].reservation.", self, "project")
        day("groups[].reservation.starts", self.starts)
        day("groups[].reservation.ends", self.ends)
        numbers("groups[].reservation.", self, usd_per_hour=(0.0001, 100_000))
        in_order = not (self.starts and self.ends) or self.starts <= self.ends
        require(
            in_order,
            "groups[].reservation.ends",
            self.ends,
            f"a day from {self.starts} on",
            "correct the days",
        )

    def labels(self) -> tuple[tuple[str, str], ...]:
        """Of its nodes."""
        found = {
            LABEL_OWN_PRICE: f"{self.usd_per_hour:.4f}",
            LABEL_RESERVED_FROM: self.starts,
            LABEL_RESERVED_UNTIL: self.ends,
        }
        return tuple((key, value) for key, value in found.items() if value)


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeGroup:
    """Node pools that differ in machine type only; one pool for each machine type."""

    name: str
    role: Role
    capacity: Capacity = Capacity.ON_DEMAND
    """One value: Spot and flex-start exclude each other."""
    machine_types: tuple[str, ...]
    """More types make it less likely that a Spot group gets no machines."""
    accelerator: str = ""
    gpus_per_node: int = 0
    min_nodes: int = 0
    max_nodes: int
    """Nodes of each pool, over all zones."""
    zones: tuple[str, ...] = ()
    """Empty means every zone of the cluster."""
    disk_gib: int = 100
    disk_type: str = "pd-balanced"
    reservation: Reservation | None = None
    """Of a group with capacity reserved. Reservations are zonal: state its zone."""
    evict_untolerating: bool = False
    """Spot only: taint with NoExecute instead of NoSchedule, which also removes pods already there.
    """

    def __post_init__(self) -> None:
        self._check_words()
        at = f"groups[{self.name}]"
        require(
            bool(self.machine_types),
            f"{at}.machine_types",
            "()",
            "at least one machine type",
            "add one",
        )
        unique(f"{at}.machine_types", self.machine_types)
        for machine_type in self.machine_types:
            self._check_machine(f"{at}.machine_types", machine_type)
        numbers(
            f"{at}.",
            self,
            max_nodes=(1, MAX_NODES_PER_POOL),
            disk_gib=(MIN_DISK_GIB, 65_536),
        )
        between(f"{at}.min_nodes", self.min_nodes, 0, self.max_nodes)
        one_of(f"{at}.disk_type", self.disk_type, DISK_TYPES)
        unique(f"{at}.zones", self.zones)
        self._check_capacity(at)

    def _check_words(self) -> None:
        dns_name("groups[].name", self.name, 30)
        at = f"groups[{self.name}]"
        one_of(f"{at}.role", self.role, tuple(Role))
        one_of(f"{at}.capacity", self.capacity, tuple(Capacity))
        if self.accelerator:
            one_of(f"{at}.accelerator", self.accelerator, ACCELERATORS)

    def _check_machine(self, field: str, machine_type: str) -> None:
        one_of(field, machine_type, MACHINE_TYPES)
        machine = MACHINE_TYPES[machine_type]
        has = f"{machine.gpus} x {machine.accelerator}" if machine.gpus else "no GPU"
        wanted = (self.accelerator, self.gpus_per_node)
        fitting = [m.name for m in MACHINE_TYPES.values() if (m.accelerator, m.gpus) == wanted]
        if fitting:
            fix = f"use {' or '.join(fitting)}"
        else:
            fix = "no machine type has this number of GPUs"
        got = f"{machine_type} with {self.gpus_per_node} x {self.accelerator or 'no accelerator'}"
        where = f"{field} against accelerator and gpus_per_node"
        require(machine_type in fitting, where, got, f"{machine_type} has {has}", fix)

    def _check_capacity(self, at: str) -> None:
        stays = self.role in (Role.SYSTEM, Role.SERVING)
        got = f"{self.capacity} for role {self.role}"
        allowed = f"{Capacity.ON_DEMAND} for the roles system and serving"
        fix = "system pods and base replicas must not be preempted: use on-demand"
        require(
            not stays or self.capacity is Capacity.ON_DEMAND, f"{at}.capacity", got, allowed, fix
        )
        field = f"{at}.evict_untolerating"
        got = f"True with capacity {self.capacity}"
        ok = not self.evict_untolerating or self.capacity is Capacity.SPOT
        require(ok, field, got, "True on Spot groups only", "remove evict_untolerating")
        reserved = self.capacity is Capacity.RESERVED
        fix = "state both, or neither"
        require(
            reserved == bool(self.reservation),
            f"{at}.reservation",
            self.reservation,
            "one for capacity reserved",
            fix,
        )
        fix = "set zones to that of the reservation"
        require(
            not reserved or len(self.zones) == 1,
            f"{at}.zones",
            self.zones,
            "one zone for a reservation",
            fix,
        )
        if self.capacity in FLEX_CAPACITIES:
            fix = "an on-demand group only"
            require(self.min_nodes == 0, f"{at}.min_nodes", self.min_nodes, "0 for flex-start", fix)

    def taints(self) -> tuple[Taint, ...]:
        taints: list[Taint] = []
        if self.role is Role.SYSTEM:
            taints.append(SYSTEM_TAINT)
        if self.capacity is Capacity.SPOT:
            effect = Effect.NO_EXECUTE if self.evict_untolerating else SPOT_TAINT.effect
            taints.append(
                Taint(
                    key=SPOT_TAINT.key,
                    value=SPOT_TAINT.value,
                    effect=effect,
                )
            )
        if self.capacity is Capacity.QUEUED:
            taints.append(QUEUED_TAINT)
        if self.gpus_per_node:
            taints.append(GPU_TAINT)
        return tuple(taints)

    def pools(self, spot_window: ShutdownWindow) -> tuple[Pool, ...]:
        several = len(self.machine_types) > 1
        machines = ("role", "capacity", "accelerator", "gpus_per_node", "disk_gib", "disk_type")
        same = {}
        for field in (*machines, "min_nodes", "max_nodes", "zones"):
            same[field] = getattr(self, field)
        return tuple(
            Pool(
                **same,
                name=f"{self.name}-{machine_type}" if several else self.name,
                pool_class=self.name,
                machine_type=machine_type,
                taints=self.taints(),
                extra_labels=self.reservation.labels() if self.reservation else (),
                window=spot_window if self.capacity is Capacity.SPOT else DEFAULT_WINDOW,
                max_run_s=FLEX_MAX_RUN_S if self.capacity is Capacity.FLEX_START else 0,
            )
            for machine_type in self.machine_types
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class AcceleratorCap:
    """The maximum number of GPUs of one kind from node auto-provisioning."""

    accelerator: str
    max_gpus: int

    def __post_init__(self) -> None:
        one_of("auto_provisioning.accelerators[].accelerator", self.accelerator, ACCELERATORS)
        between(
            f"auto_provisioning.accelerators[{self.accelerator}].max_gpus", self.max_gpus, 1, 4096
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class AutoProvisioning:
    """Limits of node auto-provisioning (NAP), which creates flex-start pools automatically. The
    limits bound the cost.
    """

    max_vcpus: int
    """Over the whole cluster, manual pools included: GKE counts both."""
    max_memory_gib: int
    accelerators: tuple[AcceleratorCap, ...]
    disk_gib: int = 100
    disk_type: str = "pd-balanced"
    max_nodes: int = 64
    """Not sent to GKE, which has no such limit; the size of the IP ranges is checked against it."""

    def __post_init__(self) -> None:
        numbers(
            "auto_provisioning.",
            self,
            max_vcpus=(1, 100_000),
            max_memory_gib=(1, 1_000_000),
            disk_gib=(MIN_DISK_GIB, 65_536),
            max_nodes=(1, MAX_NODES_PER_POOL),
        )
        one_of("auto_provisioning.disk_type", self.disk_type, DISK_TYPES)
        unique("auto_provisioning.accelerators", [cap.accelerator for cap in self.accelerators])

    def cap(self, accelerator: str) -> int:
        """0 when flex-start for this accelerator is off."""
        return next((c.max_gpus for c in self.accelerators if c.accelerator == accelerator), 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Quota:
    """How many GPUs of one source Kueue lends to jobs at once."""

    source: str
    """Name of a node group, or of an accelerator that auto-provisioning may buy."""
    gpus: int

    def __post_init__(self) -> None:
        require(
            bool(self.source),
            "quotas[].source",
            "''",
            "a node group or an accelerator",
            "name the source",
        )
        if self.gpus < 1:
            raise InputError(
                f"quotas[{self.source}].gpus",
                got=self.gpus,
                allowed="1 or more",
                fix="remove the quota",
            )
