"""GPU machine types: how many GPUs each has, and the zones that sell the GPU.

A machine type fixes its GPU count: g2-standard-8 has one L4 and no way to have two.
Source: Compute Engine documentation, accelerator-optimized machine families and GPU locations.
"""

from dataclasses import dataclass, replace

from holdfast.contract.capacity import Capacity


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


def _zones(**letters: str) -> frozenset[str]:
    """us_central1="abc" -> us-central1-a, us-central1-b, us-central1-c."""
    return frozenset(f"{region.replace('_', '-')}-{z}" for region, zs in letters.items() for z in zs)


ACCELERATORS = {
    a.name: a
    for a in (
        Accelerator(
            name="nvidia-l4",
            memory_gib=24,
            zones=_zones(
                us_central1="abc",
                us_east1="bcd",
                us_east4="ac",
                us_west1="abc",
                us_west4="ac",
                europe_west1="bc",
                europe_west2="ab",
                europe_west3="ab",
                europe_west4="abc",
                europe_west6="bc",
                asia_east1="abc",
                asia_northeast1="abc",
                asia_northeast3="ab",
                asia_south1="abc",
                asia_southeast1="abc",
                me_central2="ac",
                northamerica_northeast1="bc",
                northamerica_northeast2="ab",
            ),
        ),
        Accelerator(
            name="nvidia-tesla-a100",
            memory_gib=40,
            zones=_zones(
                us_central1="abcf",
                us_east1="b",
                us_west1="b",
                us_west3="b",
                us_west4="b",
                europe_west4="ab",
                asia_northeast1="ac",
                asia_northeast3="b",
                asia_southeast1="bc",
                me_west1="bc",
            ),
        ),
        Accelerator(
            name="nvidia-a100-80gb",
            memory_gib=80,
            zones=_zones(us_central1="ac", us_east4="c", us_east5="ab", europe_west4="a", asia_southeast1="c"),
        ),
        Accelerator(
            name="nvidia-h100-80gb",
            memory_gib=80,
            zones=_zones(
                us_central1="abc",
                us_east4="abc",
                us_east5="a",
                us_west1="ab",
                us_west4="a",
                europe_north1="c",
                europe_west1="bc",
                europe_west3="c",
                europe_west4="bc",
                europe_west9="c",
                asia_east1="c",
                asia_northeast1="b",
                asia_south1="c",
                asia_south2="b",
                asia_southeast1="bc",
                australia_southeast1="c",
            ),
        ),
        Accelerator(
            name="nvidia-h200-141gb",
            memory_gib=141,
            zones=_zones(
                us_central1="b",
                us_east4="b",
                us_east5="a",
                us_south1="b",
                us_west1="c",
                europe_west1="b",
                europe_west4="a",
                asia_south1="b",
                asia_south2="c",
            ),
        ),
        Accelerator(
            name="nvidia-b200",
            memory_gib=180,
            zones=_zones(
                us_central1="b",
                us_east1="b",
                us_east4="b",
                us_south1="b",
                us_west2="c",
                us_west3="bc",
                europe_north1="b",
                europe_west4="b",
                asia_northeast1="b",
                asia_southeast1="b",
            ),
        ),
    )
}


def _family(accelerator: str, *rows: tuple[str, int, int, int]) -> list[MachineType]:
    return [
        MachineType(name=name, vcpus=vcpus, memory_gib=memory, gpus=gpus, accelerator=accelerator)
        for name, vcpus, memory, gpus in rows
    ]


def _cpu_family(prefix: str, gib_per_vcpu: int, *vcpus: int) -> list[MachineType]:
    return [MachineType(name=f"{prefix}-{n}", vcpus=n, memory_gib=n * gib_per_vcpu) for n in vcpus]


# Parts of one 8-GPU host, and the newest whole ones: Compute Engine creates them as Spot or flex-start, or from a
# reservation, although the price list has on-demand SKUs for their parts.
_NOT_ON_DEMAND = frozenset({"a3-highgpu-1g", "a3-highgpu-2g", "a3-highgpu-4g", "a3-ultragpu-8g", "a4-highgpu-8g"})
_INTERRUPTIBLE = frozenset(Capacity) - {Capacity.ON_DEMAND}

MACHINE_TYPES = {
    m.name: replace(m, sold_as=_INTERRUPTIBLE) if m.name in _NOT_ON_DEMAND else m
    for m in (
        *_family(
            "nvidia-l4",
            ("g2-standard-4", 4, 16, 1),
            ("g2-standard-8", 8, 32, 1),
            ("g2-standard-12", 12, 48, 1),
            ("g2-standard-16", 16, 64, 1),
            ("g2-standard-32", 32, 128, 1),
            ("g2-standard-24", 24, 96, 2),
            ("g2-standard-48", 48, 192, 4),
            ("g2-standard-96", 96, 384, 8),
        ),
        *_family(
            "nvidia-tesla-a100",
            ("a2-highgpu-1g", 12, 85, 1),
            ("a2-highgpu-2g", 24, 170, 2),
            ("a2-highgpu-4g", 48, 340, 4),
            ("a2-highgpu-8g", 96, 680, 8),
            ("a2-megagpu-16g", 96, 1360, 16),
        ),
        *_family(
            "nvidia-a100-80gb",
            ("a2-ultragpu-1g", 12, 170, 1),
            ("a2-ultragpu-2g", 24, 340, 2),
            ("a2-ultragpu-4g", 48, 680, 4),
            ("a2-ultragpu-8g", 96, 1360, 8),
        ),
        *_family(
            "nvidia-h100-80gb",
            ("a3-highgpu-1g", 26, 234, 1),
            ("a3-highgpu-2g", 52, 468, 2),
            ("a3-highgpu-4g", 104, 936, 4),
            ("a3-highgpu-8g", 208, 1872, 8),
        ),
        *_family("nvidia-h200-141gb", ("a3-ultragpu-8g", 224, 2952, 8)),
        *_family("nvidia-b200", ("a4-highgpu-8g", 224, 3968, 8)),
        *_cpu_family("e2-standard", 4, 2, 4, 8, 16, 32),
        *_cpu_family("n2-standard", 4, 2, 4, 8, 16, 32),
        *_cpu_family("c3-standard", 4, 4, 8, 22, 44),
    )
}


def sold(machine: MachineType, capacity: Capacity, region: str = "") -> bool:
    """Whether this machine can be bought so, in some zone of the region (anywhere where none is given)."""
    gpu = ACCELERATORS.get(machine.accelerator)
    there = not region or gpu is None or any(zone.startswith(f"{region}-") for zone in gpu.zones)
    return capacity in machine.sold_as and there
