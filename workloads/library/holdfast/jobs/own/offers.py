"""What an environment offers to jobs: machines by GPU, with the capacity and the queue that lends them."""

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.contract.capacity import Capacity
from holdfast.contract.errors import InputError
from holdfast.contract.machines import MACHINE_TYPES, MachineType, sold
from holdfast.contract.pools import Pool, Role
from holdfast.manifests.render_context import RenderContext
from holdfast.place.prices import Table
from holdfast.platform import Platform

ROLES = (Role.BATCH, Role.TRAINING)


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    capacity: Capacity
    accelerator: str
    machine: MachineType
    """The smallest of its class, so that a pod fits all of them."""
    lent_gpus: int
    """To all jobs at once."""
    pool: Pool | None = None
    """None: auto-provisioning makes the node."""

    def __str__(self) -> str:
        name = self.accelerator.removeprefix("nvidia-").removeprefix("tesla-")
        return f"{self.machine.gpus}x{name} {self.capacity.value} (at most {self.lent_gpus} GPUs)"

    def usd(self, platform: Platform, prices: Table) -> float:
        """Of a machine for an hour; infinite where the table has no price."""
        sold_as = Capacity.FLEX_START if self.capacity is Capacity.QUEUED else self.capacity
        quote = prices.quote(self.machine, platform.price_region, sold_as)
        return quote.usd if quote else float("inf")


def offers(platform: Platform) -> list[Offer]:
    return [*_of_groups(platform), *_provisioned(platform)]


def _of_groups(platform: Platform) -> Iterator[Offer]:
    """Flex-start groups are not among them: their pods are placed as auto-provisioning's are, and fit both."""
    for name, pools in platform.classes.items():
        first, lent = pools[0], platform.quota(name)
        bought = first.capacity in (Capacity.SPOT, Capacity.ON_DEMAND)
        if first.gpus_per_node and lent and first.role in ROLES and bought:
            smallest = min(pools, key=lambda p: _room(MACHINE_TYPES[p.machine_type]))
            yield Offer(
                capacity=first.capacity,
                accelerator=first.accelerator,
                machine=MACHINE_TYPES[smallest.machine_type],
                lent_gpus=lent,
                pool=smallest,
            )


def _provisioned(platform: Platform) -> Iterator[Offer]:
    context = RenderContext(platform)
    for accelerator in platform.auto_provisioning:
        shares = (
            (Capacity.FLEX_START, context.flex_gpus(accelerator)),
            (Capacity.QUEUED, context.queued_gpus(accelerator)),
        )
        for capacity, lent in shares:
            machines = [m for m in MACHINE_TYPES.values() if m.accelerator == accelerator and m.gpus <= min(lent, 8)]
            for gpus in sorted({m.gpus for m in machines if sold(m, capacity, platform.region)}):
                smallest = min((m for m in machines if m.gpus == gpus), key=_room)
                yield Offer(capacity=capacity, accelerator=accelerator, machine=smallest, lent_gpus=lent)


def _room(machine: MachineType) -> tuple[int, int]:
    return machine.vcpus, machine.memory_gib


def fitting(platform: Platform, accelerator: str, gpus: int, nodes: int) -> list[Offer]:
    """Machines with at least so many GPUs, the smallest of each capacity. InputError where there is none."""
    known = offers(platform)
    same = [offer for offer in known if offer.accelerator == accelerator]
    large = [offer for offer in same if offer.machine.gpus >= gpus]
    found = [offer for offer in large if offer.lent_gpus >= gpus * nodes]
    if not found:
        what = f"no pool of {platform.name} has {gpus} such GPUs on a node"
        if large:
            what = f"{platform.name} lends fewer GPUs at once than {nodes} x {gpus}"
        elif not same:
            what = f"no pool of {platform.name} has this GPU"
        raise InputError(
            what, got=f"{gpus} x {accelerator} on {nodes} nodes", allowed="; ".join(map(str, same or known)) or "CPU only",
            fix=f"take fewer GPUs or nodes, or ask the platform team for a node group in {platform.name}",
        )  # fmt: skip
    smallest = {c: min(o.machine.gpus for o in found if o.capacity is c) for c in {o.capacity for o in found}}
    return [offer for offer in found if offer.machine.gpus == smallest[offer.capacity]]


def cheapest_spot(platform: Platform, prices: Table) -> Offer:
    """The Spot machine with the lowest price; InputError where the environment has no Spot group."""
    spot = [offer for offer in offers(platform) if offer.capacity is Capacity.SPOT]
    if not spot:
        raise InputError(
            f"no Spot group in {platform.name}", got="none", allowed="one of role training or batch",
            fix=f"ask the platform team for a NodeGroup with capacity=Capacity.SPOT in {platform.name}",
        )  # fmt: skip
    return min(spot, key=lambda offer: offer.usd(platform, prices))


def cpu_pool(platform: Platform) -> Pool | None:
    """A group without GPUs that is meant for jobs; None: auto-provisioning makes an ordinary node."""
    found = (p for p in platform.pools if p.role in ROLES and not p.gpus_per_node and p.capacity is Capacity.ON_DEMAND)
    return next(found, None)
