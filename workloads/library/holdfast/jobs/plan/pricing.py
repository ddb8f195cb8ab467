"""Prices the pods of a manifest: their machines, and dollars an hour.

A pod pays for its share of a machine's GPUs; a job without GPUs has no price in the table and says
so.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from holdfast.clients.api import Object
from holdfast.cost.prices import Table
from holdfast.jobs.source.archive import Upload
from holdfast.manifests.gpu_choices import find_gpu_choice
from holdfast.platform import Platform
from holdfast.support.values import GIB, quantity
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.kubernetes import LABEL_QUEUE
from holdfast.vocabulary.machines import MACHINE_TYPES, MachineType
from holdfast.vocabulary.pools import (
    GPU_RESOURCE,
    JOB_ROLES,
    LABEL_ACCELERATOR,
    LABEL_COMPUTE_CLASS,
    LABEL_FLEX_START,
    LABEL_POOL_CLASS,
    LABEL_SPOT,
    Pool,
    Taint,
    tolerates,
)

SCHEMA = "holdfast.purchase/2"


@dataclass(frozen=True, kw_only=True, slots=True)
class Purchase:
    job: str
    capacity: Capacity
    pools: tuple[str, ...]
    pods: int
    gpus: int
    usd_per_hour: float | None
    """Price in the most expensive pool that may serve it; None if the table has no price.

    Without a pool it is the price of the machine that auto-provisioning would take.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class PurchasePlan:
    """The objects that `submit` sends, and the price of their jobs."""

    environment: str
    documents: list[Object]
    purchases: list[Purchase]
    price_date: str
    refusals: list[str]
    """The reasons not to start it; empty if it is within the cap."""
    uploads: list[Upload] = field(default_factory=list)
    """Archives that are put into a bucket before the objects are sent."""

    @property
    def usd_per_hour(self) -> float | None:
        total = 0.0
        for purchase in self.purchases:
            if purchase.usd_per_hour is None:
                return None
            total += purchase.usd_per_hour
        return total

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "usd_per_hour": self.usd_per_hour,
            "price_date": self.price_date,
            "refusals": self.refusals,
            "purchases": [asdict(purchase) for purchase in self.purchases],
        }


class Rented(NamedTuple):
    """A machine for a pod, and what the pod pays for it an hour; None without a price.

    In a pool the pod pays for its share of the machine's GPUs.
    """

    pool: str
    """Name of the pool; empty if auto-provisioning makes the node."""
    capacity: Capacity
    usd: float | None
    on_demand_usd: float | None


@dataclass(frozen=True, slots=True)
class _Offer:
    pool: str
    machine: MachineType | None
    capacity: Capacity
    own_usd: float | None = None


def count_gpus(pod_spec: Object) -> int:
    """Return the number of GPUs that a pod asks for."""
    count = 0
    for container in pod_spec.get("containers", ()):
        limits = container.get("resources", {}).get("limits", {})
        count += int(limits.get(GPU_RESOURCE, 0))
    return count


def select_pools(
    pod_spec: Object, platform: Platform, capacity: Capacity | None = None
) -> list[Pool]:
    """Return the pools of the environment whose nodes can hold the pod.

    The pod selects and tolerates them, and they have its GPUs. capacity: that of its queue, whose
    flavor adds the tolerations.
    """
    selector: dict[str, str] = pod_spec.get("nodeSelector", {})
    gpu_choice = find_gpu_choice(platform, selector.get(LABEL_COMPUTE_CLASS, ""))
    if gpu_choice is not None:  # GKE makes the same machines as those of the pools
        return gpu_choice.select_pools(platform)
    gpus = count_gpus(pod_spec)
    pools: list[Pool] = []
    for pool in platform.pools:
        is_selected = selector.items() <= pool.node_labels().items()
        if not is_selected or _avoids(pod_spec, pool):
            continue
        if pool.gpus_per_node < gpus:
            continue
        if capacity is None:
            is_admitted = _tolerates_all(pod_spec, pool.taints)
        else:
            is_admitted = pool.capacity is capacity and pool.role in JOB_ROLES
        if is_admitted:
            pools.append(pool)
    return pools


def _avoids(pod_spec: Object, pool: Pool) -> bool:
    """Return whether the pod's node affinity excludes the class of the pool."""
    affinity = (pod_spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms = required.get("nodeSelectorTerms") or ()
    pool_class = pool.pool_class or pool.name
    excluding = 0
    for term in terms:
        for expression in term.get("matchExpressions") or ():
            is_class = expression.get("key") == LABEL_POOL_CLASS
            if is_class and expression.get("operator") == "NotIn":
                excluding += pool_class in (expression.get("values") or ())
    return bool(terms) and excluding == len(terms)


def _tolerates_all(pod_spec: Object, taints: Sequence[Taint]) -> bool:
    for taint in taints:
        tolerations = pod_spec.get("tolerations", ())
        if not any(tolerates(toleration, taint) for toleration in tolerations):
            return False
    return True


def guess_capacity(pod_spec: Object) -> Capacity:
    """Return the capacity by the selector alone, for nodes that no environment lists."""
    selector: dict[str, str] = pod_spec.get("nodeSelector", {})
    if LABEL_FLEX_START in selector:
        return Capacity.FLEX_START
    return Capacity.SPOT if LABEL_SPOT in selector else Capacity.ON_DEMAND


def rate(
    machine: MachineType,
    capacity: Capacity,
    platform: Platform,
    table: Table,
    own_usd: float | None,
) -> float | None:
    """Return the dollars of a machine for an hour, or None without a price.

    own_usd: the price of a reservation.
    """
    if own_usd is not None:
        return own_usd
    quote = table.quote(machine, platform.price_region, capacity.product)
    return quote.usd if quote else None


def list_provisionable(
    pod_spec: Object, platform: Platform, capacity: Capacity | None = None
) -> list[MachineType]:
    """Return the machines that auto-provisioning may make for a flex-start pod.

    They have its accelerator, and room for what it requests.
    """
    accelerator = pod_spec.get("nodeSelector", {}).get(LABEL_ACCELERATOR, "")
    is_flex = guess_capacity(pod_spec) is Capacity.FLEX_START
    if not is_flex and capacity not in (Capacity.FLEX_START, Capacity.QUEUED):
        return []
    if not platform.auto_provisioning.get(accelerator):
        return []
    gpus = count_gpus(pod_spec)
    cpus = _sum_requests(pod_spec, "cpu")
    memory = _sum_requests(pod_spec, "memory")
    machines: list[MachineType] = []
    for machine in MACHINE_TYPES.values():
        fits = machine.vcpus > cpus and machine.memory_gib * GIB > memory
        if machine.accelerator == accelerator and machine.gpus >= gpus and fits:
            machines.append(machine)
    return machines


def _sum_requests(pod_spec: Object, resource: str) -> float:
    total = 0.0
    for container in pod_spec.get("containers", ()):
        requests = container.get("resources", {}).get("requests", {})
        total += quantity(requests.get(resource, 0)) or 0
    return total


def list_machines(
    pod_spec: Object,
    platform: Platform,
    prices: Table,
    pool: str = "",
    capacity: Capacity | None = None,
) -> list[Rented]:
    """Return the machine and the price in the pool called `pool`, or in each that the pod fits.

    capacity: that of the job's queue. If the pod fits none, the machine is the cheapest that
    auto-provisioning may make, as GKE takes it.
    """
    pools = [candidate for candidate in platform.pools if candidate.name == pool]
    pools = pools or select_pools(pod_spec, platform, capacity)
    offers = [_make_offer(candidate) for candidate in pools]
    if not pools:
        machines = list_provisionable(pod_spec, platform, capacity)
        offers = [_Offer("", machine, Capacity.FLEX_START) for machine in machines]
    gpus = count_gpus(pod_spec)

    def price(
        machine: MachineType | None, capacity: Capacity, own_usd: float | None
    ) -> float | None:
        if machine is None or not machine.gpus:
            return None
        usd = rate(machine, capacity, platform, prices, own_usd)
        # A node that is made for the pod is its own.
        is_own_node = not pools
        if usd is None or is_own_node:
            return usd
        return usd * gpus / machine.gpus

    rented: list[Rented] = []
    for offer in offers:
        usd = price(offer.machine, offer.capacity, offer.own_usd)
        on_demand_usd = price(offer.machine, Capacity.ON_DEMAND, None)
        rented.append(Rented(offer.pool, offer.capacity, usd, on_demand_usd))
    if pools:
        return rented
    cheapest_first = sorted(rented, key=_price_or_infinity)
    return cheapest_first[:1]


def _price_or_infinity(machine: Rented) -> float:
    return math.inf if machine.usd is None else machine.usd


def _make_offer(pool: Pool) -> _Offer:
    machine = MACHINE_TYPES.get(pool.machine_type)
    return _Offer(pool.name, machine, pool.capacity, pool.own_usd_per_hour)


def find_machine(
    pod_spec: Object,
    platform: Platform,
    prices: Table,
    pool: str = "",
) -> Rented | None:
    """Return the machine in this pool, or in the first that the pod fits; None if it fits none."""
    return next(iter(list_machines(pod_spec, platform, prices, pool)), None)


def find_queue_capacity(body: Object, platform: Platform) -> Capacity | None:
    """Return the capacity that the Kueue queue of a job lends; None without such a queue."""
    metadata = body.get("metadata")
    labels = metadata.get("labels") if isinstance(metadata, dict) else None
    queue = labels.get(LABEL_QUEUE) if isinstance(labels, dict) else None
    for capacity, name in platform.queues.items():
        if name == queue:
            return Capacity(capacity)
    return None


def make_purchase(
    body: Object,
    pods: int,
    pod_spec: Object,
    platform: Platform,
    prices: Table,
) -> Purchase:
    """Price a job of `pods` pods at the most expensive machine that they may get."""
    capacity = find_queue_capacity(body, platform)
    machines = list_machines(pod_spec, platform, prices, capacity=capacity)
    rates = [machine.usd for machine in machines if machine.usd is not None]
    is_priced = rates and len(rates) == len(machines)
    return Purchase(
        job=body["metadata"]["name"],
        pods=pods,
        gpus=pods * count_gpus(pod_spec),
        capacity=capacity or (machines[0].capacity if machines else guess_capacity(pod_spec)),
        pools=tuple(machine.pool for machine in machines if machine.pool),
        usd_per_hour=pods * max(rates) if is_priced else None,
    )
