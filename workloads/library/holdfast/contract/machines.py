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


# Name, memory in GiB, and the zones that sell it, as REGION:LETTERS.
_GPUS = {
    ("nvidia-l4", 24): (
        "asia-east1:abc asia-northeast1:abc asia-northeast3:ab asia-south1:abc asia-southeast1:abc "
        "europe-west1:bc europe-west2:ab europe-west3:ab europe-west4:abc europe-west6:bc me-central2:ac "
        "northamerica-northeast1:bc northamerica-northeast2:ab us-central1:abc us-east1:bcd us-east4:ac "
        "us-west1:abc us-west4:ac"
    ),
    ("nvidia-tesla-a100", 40): (
        "asia-northeast1:ac asia-northeast3:b asia-southeast1:bc europe-west4:ab me-west1:bc us-central1:abcf "
        "us-east1:b us-west1:b us-west3:b us-west4:b"
    ),
    ("nvidia-a100-80gb", 80): ("asia-southeast1:c europe-west4:a us-central1:ac us-east4:c us-east5:ab"),
    ("nvidia-h100-80gb", 80): (
        "asia-east1:c asia-northeast1:b asia-south1:c asia-south2:b asia-southeast1:bc australia-southeast1:c "
        "europe-north1:c europe-west1:bc europe-west3:c europe-west4:bc europe-west9:c us-central1:abc "
        "us-east4:abc us-east5:a us-west1:ab us-west4:a"
    ),
    ("nvidia-h200-141gb", 141): (
        "asia-south1:b asia-south2:c europe-west1:b europe-west4:a us-central1:b us-east4:b us-east5:a "
        "us-south1:b us-west1:c"
    ),
    ("nvidia-b200", 180): (
        "asia-northeast1:b asia-southeast1:b europe-north1:b europe-west4:b us-central1:b us-east1:b us-east4:b "
        "us-south1:b us-west2:c us-west3:bc"
    ),
}


def _zones(text: str) -> frozenset[str]:
    """us-central1:abc -> us-central1-a, us-central1-b, us-central1-c."""
    regions = (each.split(":") for each in text.split())
    return frozenset(f"{region}-{letter}" for region, letters in regions for letter in letters)


ACCELERATORS = {
    name: Accelerator(name=name, memory_gib=memory_gib, zones=_zones(text))
    for (name, memory_gib), text in _GPUS.items()
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
