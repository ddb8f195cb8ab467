"""Reads the accelerators and machine types of machines.toml."""

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    local_ssds: tuple[int, ...] = ()  # numbers of local SSDs of 375 GiB that it takes

    def count_for(self, pods: int, gpus: int) -> int:
        """Returns how many machines `pods` pods of `gpus` GPUs need; a pod is on one machine."""
        return math.ceil(pods / max(1, self.gpus // gpus))


@dataclass(frozen=True, kw_only=True, slots=True)
class RefusedMachine:
    """A machine that Google sells and the platform does not make."""

    name: str
    accelerator: str
    shape: tuple[int, int, int]
    """vCPUs, memory in GiB, GPUs."""
    gpu_memory_gib: int
    local_ssds: int
    sold_as: tuple[Capacity, ...]
    price: str
    """Its price and where that is from, as a sentence."""
    reason: str
    instead: str
    """The machines to use in its place."""


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
        local_ssds=tuple(_TABLE["local_ssds"].get(name, ())),
    )


def _accelerator(name: str, row: Mapping[str, Any]) -> Accelerator:
    return Accelerator(
        name=name,
        memory_gib=row["memory_gib"],
        zones=_zones(row["zones"]),
    )


def _read_refused(name: str, row: Mapping[str, Any]) -> RefusedMachine:
    typed: dict[str, Any] = {
        "shape": tuple(row["shape"]),
        "sold_as": tuple(Capacity(word) for word in row["sold_as"]),
    }
    return RefusedMachine(name=name, **{**row, **typed})


_SPELLING = re.compile(r"nvidia|gb(?!\d)|[^a-z0-9]")
_TABLE = tomllib.loads(Path(__file__).with_name("machines.toml").read_text())
ACCELERATORS = {name: _accelerator(name, row) for name, row in _TABLE["accelerators"].items()}
MACHINE_TYPES = {name: _machine(name, *row) for name, row in _TABLE["machines"].items()}
REFUSED_MACHINES = {name: _read_refused(name, row) for name, row in _TABLE["refused"].items()}


def find_refusal(name: str) -> RefusedMachine | None:
    """Returns the refused machine of this type or accelerator, as its label or as people type it.

    Case, punctuation and the words nvidia and gb do not matter: H100-Mega is nvidia-h100-mega-80gb.
    """
    spelling = _SPELLING.sub("", name.lower())
    for machine in REFUSED_MACHINES.values():
        names = [_SPELLING.sub("", text) for text in (machine.name, machine.accelerator)]
        if spelling in names or f"{spelling}80" in names:
            return machine
    return None


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
