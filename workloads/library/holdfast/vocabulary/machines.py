"""Reads the accelerators and machine types of machines.toml."""

import math
import tomllib
from dataclasses import dataclass
from pathlib import Path

from holdfast.vocabulary.capacity import Capacity


@dataclass(frozen=True, kw_only=True, slots=True)
class Accelerator:
    name: str  # node label cloud.google.com/gke-accelerator, and the resource_type of a NAP limit
    memory_gib: int
    zones: frozenset[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineType:
    name: str
    vcpus: int
    memory_gib: int
    gpus: int = 0
    accelerator: str = ""  # Accelerator.name, empty without GPU
    sold_as: frozenset[Capacity] = frozenset(Capacity)

    def count_for(self, pods: int, gpus: int) -> int:
        """Returns how many machines `pods` pods of `gpus` GPUs need; a pod is on one machine."""
        return math.ceil(pods / max(1, self.gpus // gpus))


def _zones(text: str) -> frozenset[str]:
    """Expands us-central1:abc to us-central1-a, us-central1-b, us-central1-c."""
    zones: set[str] = set()
    for word in text.split():
        region, letters = word.split(":")
        zones.update(f"{region}-{letter}" for letter in letters)
    return frozenset(zones)


def _machine(
    name: str,
    vcpus: int,
    memory_gib: int,
    gpus: int = 0,
    accelerator: str = "",
) -> MachineType:
    capacities = set(Capacity)
    if name in _TABLE["sales"]["never_on_demand"]:
        capacities.remove(Capacity.ON_DEMAND)
    return MachineType(
        name=name,
        vcpus=vcpus,
        memory_gib=memory_gib,
        gpus=gpus,
        accelerator=accelerator,
        sold_as=frozenset(capacities),
    )


_TABLE = tomllib.loads(Path(__file__).with_name("machines.toml").read_text())
ACCELERATORS = {
    name: Accelerator(
        name=name,
        memory_gib=row["memory_gib"],
        zones=_zones(row["zones"]),
    )
    for name, row in _TABLE["accelerators"].items()
}
MACHINE_TYPES = {name: _machine(name, *row) for name, row in _TABLE["machines"].items()}


def is_sold(machine: MachineType, capacity: Capacity, region: str = "") -> bool:
    """Returns whether Google sells the machine as this capacity in some zone of the region.

    An empty region stands for any.
    """
    if capacity not in machine.sold_as:
        return False
    gpu = ACCELERATORS.get(machine.accelerator)
    if not region or gpu is None:
        return True
    return any(zone.startswith(f"{region}-") for zone in gpu.zones)
