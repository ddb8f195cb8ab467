"""Settings of machines: node groups, caps for auto-provisioning, quotas.

Read through `Environment`. A group states no taint and no label: they follow from role and
capacity, so that a fork cannot misspell them.
"""

from collections.abc import Collection
from dataclasses import dataclass

from holdfast.support.errors import InputError
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.lifecycle import DEFAULT_WINDOW, FLEX_MAX_RUN_S, ShutdownWindow
from holdfast.vocabulary.machines import ACCELERATORS, MACHINE_TYPES, find_refusal
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
    require,
    require_choice,
    unique,
)

DISK_TYPES = ("pd-balanced", "pd-ssd", "hyperdisk-balanced")
FLEX_CAPACITIES = (Capacity.FLEX_START, Capacity.QUEUED)
MAX_NODES_PER_POOL = 1000
MIN_DISK_GIB = 50
# Compact placement of flex-start nodes: Cluster Toolkit, preconditions of its node pool.
COMPACT_FLEX = ("a3-ultragpu-", "a4-")
# N1 machines take no compact placement. Source: Compute Engine documentation, placement policies.
NEVER_COMPACT = "n1-"


def _require_known(field: str, got: str, allowed: Collection[str]) -> None:
    """Refuse unknown names of machines and GPUs.

    The error says why, for those that Google sells and this platform does not make.
    """
    refused = find_refusal(got)
    if refused:
        raise InputError(
            field,
            got=got,
            allowed=f"no {refused.name} here: {refused.reason}",
            fix=f"use {refused.instead}",
        )
    require_choice(field, got, allowed)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reservation:
    """An existing reservation of Compute Engine. Jobs take its machines before other capacity."""

    name: str
    project: str = ""
    """The project that owns a shared reservation. Empty: this project."""
    usd_per_hour: float
    """The price of one machine by your contract: prices, forecasts and receipts use it."""
    starts: str = ""
    """Calendar mode: first day, as 2026-12-01. Empty: it is available now."""
    ends: str = ""
    """Calendar mode: last day. Jobs that would run longer are not placed there."""

    def __post_init__(self) -> None:
        dns_name("groups[].reservation.name", self.name, 63)
        forms("groups[].reservation.", self, "project")
        day("groups[].reservation.starts", self.starts)
        day("groups[].reservation.ends", self.ends)
        numbers("groups[].reservation.", self, usd_per_hour=(0.0001, 100_000))
        is_ordered = not (self.starts and self.ends) or self.starts <= self.ends
        require(
            is_ordered,
            "groups[].reservation.ends",
            self.ends,
            f"a day from {self.starts} on",
            "correct the days",
        )

    def labels(self) -> tuple[tuple[str, str], ...]:
        """Return the labels of its nodes."""
        labels = {
            LABEL_OWN_PRICE: f"{self.usd_per_hour:.4f}",
            LABEL_RESERVED_FROM: self.starts,
            LABEL_RESERVED_UNTIL: self.ends,
        }
        return tuple((key, value) for key, value in labels.items() if value)


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
    local_ssds: int = 0
    """Local SSDs of 375 GiB of each machine for the scratch space of pods: caches of models and
    data, and copies of shards. They are lost with the machine. A2 Ultra, A3 and A4 have a fixed
    number.
    """
    compact: bool = False
    """Nodes close to each other in one zone, for gangs over several nodes; harder to get."""
    reservation: Reservation | None = None
    """The reservation of a group with capacity reserved. It is zonal: state its zone."""
    evict_untolerating: bool = False
    """Spot only: taint with NoExecute instead of NoSchedule, which also removes pods already there.
    """

    def __post_init__(self) -> None:
        self._check_words()
        field = f"groups[{self.name}]"
        types = f"{field}.machine_types"
        require(bool(self.machine_types), types, "()", "at least one machine type", "add one")
        unique(types, self.machine_types)
        for machine_type in self.machine_types:
            self._check_machine(types, machine_type)
            self._check_local_ssds(field, machine_type)
        numbers(
            f"{field}.",
            self,
            max_nodes=(1, MAX_NODES_PER_POOL),
            disk_gib=(MIN_DISK_GIB, 65_536),
        )
        between(f"{field}.min_nodes", self.min_nodes, 0, self.max_nodes)
        require_choice(f"{field}.disk_type", self.disk_type, DISK_TYPES)
        unique(f"{field}.zones", self.zones)
        self._check_capacity(field)
        self._check_compact(field)

    def _check_words(self) -> None:
        dns_name("groups[].name", self.name, 30)
        field = f"groups[{self.name}]"
        require_choice(f"{field}.role", self.role, tuple(Role))
        require_choice(f"{field}.capacity", self.capacity, tuple(Capacity))
        if self.accelerator:
            _require_known(f"{field}.accelerator", self.accelerator, ACCELERATORS)

    def _check_machine(self, field: str, machine_type: str) -> None:
        _require_known(field, machine_type, MACHINE_TYPES)
        machine = MACHINE_TYPES[machine_type]
        gpus = f"{machine.gpus} x {machine.accelerator}" if machine.gpus else "no GPU"
        fitting = []
        for candidate in MACHINE_TYPES.values():
            if candidate.accelerator == self.accelerator and candidate.gpus == self.gpus_per_node:
                fitting.append(candidate.name)
        if fitting:
            fix = f"use {' or '.join(fitting)}"
        else:
            fix = "no machine type has this number of GPUs"
        require(
            machine_type in fitting,
            f"{field} against accelerator and gpus_per_node",
            f"{machine_type} with {self.gpus_per_node} x {self.accelerator or 'no accelerator'}",
            f"{machine_type} has {gpus}",
            fix,
        )
        sold = sorted(capacity.value for capacity in machine.sold_as)
        require(
            self.capacity in machine.sold_as,
            f"groups[{self.name}].capacity",
            f"{self.capacity} of {machine_type}",
            f"{', '.join(sold)}: Google does not sell it otherwise",
            "choose another capacity or machine type",
        )

    def _check_local_ssds(self, field: str, machine_type: str) -> None:
        counts = MACHINE_TYPES[machine_type].local_ssds
        require(
            not self.local_ssds or self.local_ssds in counts,
            f"{field}.local_ssds",
            f"{self.local_ssds} on {machine_type}",
            " or ".join(map(str, counts)) or f"none: {machine_type} takes no local SSD",
            "set it to an allowed number, or to 0",
        )

    def _check_compact(self, field: str) -> None:
        if not self.compact:
            return
        require(
            len(self.zones) == 1 and bool(self.accelerator),
            f"{field}.compact",
            f"True in zones {', '.join(self.zones) or 'of the cluster'}",
            "GPU machines in one zone",
            "set zones to one zone, or leave compact out",
        )
        is_flex = self.capacity in FLEX_CAPACITIES
        for machine_type in self.machine_types:
            fits_flex = machine_type.startswith(COMPACT_FLEX)
            require(
                self.capacity is not Capacity.QUEUED and (not is_flex or fits_flex),
                f"{field}.compact",
                f"True with capacity {self.capacity}",
                "Spot, on-demand and reserved groups; flex-start of A3 Ultra and A4",
                "leave it out",
            )
            require(
                not machine_type.startswith(NEVER_COMPACT),
                f"{field}.compact",
                f"True with {machine_type}",
                "machines of the families A2, A3, A4, G2 and G4",
                "leave it out",
            )

    def _check_capacity(self, field: str) -> None:
        is_spot = self.capacity is Capacity.SPOT
        is_reserved = self.capacity is Capacity.RESERVED
        is_permanent = self.role in (Role.SYSTEM, Role.SERVING)
        require(
            not is_permanent or self.capacity is Capacity.ON_DEMAND,
            f"{field}.capacity",
            f"{self.capacity} for role {self.role}",
            f"{Capacity.ON_DEMAND} for the roles system and serving",
            "system pods and base replicas must not be preempted: use on-demand",
        )
        require(
            is_spot or not self.evict_untolerating,
            f"{field}.evict_untolerating",
            f"True with capacity {self.capacity}",
            "True on Spot groups only",
            "remove evict_untolerating",
        )
        require(
            is_reserved == bool(self.reservation),
            f"{field}.reservation",
            self.reservation,
            "one for capacity reserved",
            "state both, or neither",
        )
        require(
            not is_reserved or len(self.zones) == 1,
            f"{field}.zones",
            self.zones,
            "one zone for a reservation",
            "set zones to that of the reservation",
        )
        require(
            self.capacity not in FLEX_CAPACITIES or self.min_nodes == 0,
            f"{field}.min_nodes",
            self.min_nodes,
            "0 for flex-start",
            "an on-demand group only",
        )

    def taints(self) -> tuple[Taint, ...]:
        """Return the taints that follow from role and capacity."""
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
        """Return one pool for each machine type; `spot_window` holds if the group is Spot."""
        if len(self.machine_types) == 1:
            return (self._pool(self.name, self.machine_types[0], spot_window),)
        pools = []
        for machine_type in self.machine_types:
            pools.append(self._pool(f"{self.name}-{machine_type}", machine_type, spot_window))
        return tuple(pools)

    def _pool(self, name: str, machine_type: str, spot_window: ShutdownWindow) -> Pool:
        return Pool(
            name=name,
            pool_class=self.name,
            role=self.role,
            capacity=self.capacity,
            machine_type=machine_type,
            accelerator=self.accelerator,
            gpus_per_node=self.gpus_per_node,
            disk_gib=self.disk_gib,
            disk_type=self.disk_type,
            local_ssds=self.local_ssds,
            min_nodes=self.min_nodes,
            max_nodes=self.max_nodes,
            zones=self.zones,
            taints=self.taints(),
            extra_labels=self.reservation.labels() if self.reservation else (),
            window=spot_window if self.capacity is Capacity.SPOT else DEFAULT_WINDOW,
            max_run_s=FLEX_MAX_RUN_S if self.capacity is Capacity.FLEX_START else 0,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class AcceleratorCap:
    """The maximum number of GPUs of one kind from node auto-provisioning."""

    accelerator: str
    max_gpus: int

    def __post_init__(self) -> None:
        _require_known(
            "auto_provisioning.accelerators[].accelerator",
            self.accelerator,
            ACCELERATORS,
        )
        between(
            f"auto_provisioning.accelerators[{self.accelerator}].max_gpus",
            self.max_gpus,
            1,
            4096,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class AutoProvisioning:
    """Limits of node auto-provisioning (NAP), which creates flex-start pools automatically. The
    limits bound the cost.
    """

    max_vcpus: int
    """The limit of the whole cluster, manual pools included: GKE counts both."""
    max_memory_gib: int
    accelerators: tuple[AcceleratorCap, ...]
    disk_gib: int = 100
    disk_type: str = "pd-balanced"
    max_nodes: int = 64
    """The size of the IP ranges is checked against it. GKE has no such limit."""

    def __post_init__(self) -> None:
        numbers(
            "auto_provisioning.",
            self,
            max_vcpus=(1, 100_000),
            max_memory_gib=(1, 1_000_000),
            disk_gib=(MIN_DISK_GIB, 65_536),
            max_nodes=(1, MAX_NODES_PER_POOL),
        )
        require_choice("auto_provisioning.disk_type", self.disk_type, DISK_TYPES)
        unique("auto_provisioning.accelerators", [cap.accelerator for cap in self.accelerators])

    def cap(self, accelerator: str) -> int:
        """Return the maximum number of GPUs; 0 if flex-start for this accelerator is off."""
        for cap in self.accelerators:
            if cap.accelerator == accelerator:
                return cap.max_gpus
        return 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Quota:
    """The number of GPUs of one source that Kueue lends to jobs at the same time."""

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
