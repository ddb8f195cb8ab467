"""Accelerators and machine types, as machines.toml lists them."""

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


def _zones(text: str) -> frozenset[str]:
    """us-central1:abc -> us-central1-a, us-central1-b, us-central1-c."""
    regions = (each.split(":") for each in text.split())
    return frozenset(f"{region}-{letter}" for region, letters in regions for letter in letters)


def _machine(
    name: str,
    vcpus: int,
    memory_gib: int,
    gpus: int = 0,
    accelerator: str = "",
) -> MachineType:
    never = {Capacity.ON_DEMAND} if name in _TABLE["sales"]["never_on_demand"] else set[Capacity]()
    return MachineType(
        name=name,
        vcpus=vcpus,
        memory_gib=memory_gib,
        gpus=gpus,
        accelerator=accelerator,
        sold_as=frozenset(Capacity) - never,
    )


_TABLE = tomllib.loads(Path(__file__).with_name("machines.toml").read_text())
ACCELERATORS = {
    name: Accelerator(
        name=name,
        memory_gib=found["memory_gib"],
        zones=_zones(found["zones"]),
    )
    for name, found in _TABLE["accelerators"].items()
}
MACHINE_TYPES = {name: _machine(name, *row) for name, row in _TABLE["machines"].items()}


def sold(machine: MachineType, capacity: Capacity, region: str = "") -> bool:
    """Whether this machine can be bought so, in some zone of the region (anywhere where none is
    given).
    """
    gpu = ACCELERATORS.get(machine.accelerator)
    there = not region or gpu is None or any(zone.startswith(f"{region}-") for zone in gpu.zones)
    return capacity in machine.sold_as and there
