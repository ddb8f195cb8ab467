"""Machines of pools: how many local SSDs, which disks. The API refuses what its machine type has not."""

from collections.abc import Iterator

from holdfast.contract.machines import MACHINE_TYPES
from infra.rules.autoprovisioning import DEFAULTS
from infra.rules.model import Facts, Finding, rule

ANY_N2 = (1, 2, 4, 8, 16, 24)
# Counts that a machine type takes besides none; a type that is not here takes none.
LOCAL_SSDS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("g2-standard-4", "g2-standard-8", "g2-standard-12", "g2-standard-16", "g2-standard-32"), (1,)),
    "g2-standard-24": (2,), "g2-standard-48": (4,), "g2-standard-96": (8,),
    "a2-highgpu-1g": (1, 2, 4, 8), "a2-highgpu-2g": (2, 4, 8), "a2-highgpu-4g": (4, 8), "a2-highgpu-8g": (8,),
    "a2-megagpu-16g": (8,),
    "a2-ultragpu-1g": (1,), "a2-ultragpu-2g": (2,), "a2-ultragpu-4g": (4,), "a2-ultragpu-8g": (8,),
    "a3-highgpu-1g": (2,), "a3-highgpu-2g": (4,), "a3-highgpu-4g": (8,), "a3-highgpu-8g": (16,),
    "a3-ultragpu-8g": (32,), "a4-highgpu-8g": (32,),
    **dict.fromkeys(("n2-standard-2", "n2-standard-4", "n2-standard-8"), ANY_N2),
    "n2-standard-16": ANY_N2[1:], "n2-standard-32": ANY_N2[2:],
}  # fmt: skip
# Boot disks, by the beginning of a machine type.
_PERSISTENT, _HYPERDISK = ("pd-balanced", "pd-ssd"), ("hyperdisk-balanced",)
BOOT_DISKS = {
    "e2-": ("pd-standard", *_PERSISTENT),
    "n2-": ("pd-standard", *_PERSISTENT, *_HYPERDISK),
    "c3-": (*_PERSISTENT, *_HYPERDISK),
    "g2-": (*_PERSISTENT, *_HYPERDISK),
    "a2-": ("pd-standard", *_PERSISTENT),
    "a3-highgpu-": (*_PERSISTENT, *_HYPERDISK),
    "a3-ultragpu-": _HYPERDISK,
    "a4-": _HYPERDISK,
}
LOCAL_SSD_DOC = "https://docs.cloud.google.com/compute/docs/disks/local-ssd#choose_number_local_ssds"
DISKS_DOC = "https://docs.cloud.google.com/compute/docs/disks/hyperdisks"


def boot_disks(machine_type: str) -> tuple[str, ...]:
    return next((disks for start, disks in BOOT_DISKS.items() if machine_type.startswith(start)), ())


@rule(reason="the API takes the counts that a machine type has, and no other", source=LOCAL_SSD_DOC)
def local_ssds_fit(facts: Facts) -> Iterator[Finding]:
    """Each pool has a number of local SSDs that its machine type takes."""
    path = "node_config.ephemeral_storage_local_ssd_config.local_ssd_count"
    for pool in facts.pools():
        machine = str(pool.get("node_config.machine_type"))
        allowed = (0, *LOCAL_SSDS.get(machine, ()))
        if pool.get(path, 0) not in allowed:
            yield pool.finding(path, f"{', '.join(map(str, allowed))} on {machine}", "set local_ssds of the group")


@rule(reason="the API refuses a boot disk that the machine series does not take", source=DISKS_DOC)
def disks_fit(facts: Facts) -> Iterator[Finding]:
    """Boot disks are of a type that the machine series takes, also where auto-provisioning makes them."""
    for pool in facts.pools():
        machine, disk = str(pool.get("node_config.machine_type")), pool.get("node_config.disk_type")
        allowed = boot_disks(machine)
        if allowed and disk not in allowed:
            yield pool.finding("node_config.disk_type", f"{', '.join(allowed)} on {machine}", "set disk_type")
    capped = {cap.accelerator for cap in facts.environment.auto_provisioning.accelerators}
    series = [set(boot_disks(m.name)) for m in MACHINE_TYPES.values() if m.accelerator in capped]
    # With H200 and A100 no one type fits all: then the pod or its class states one.
    common = set.intersection(*series) if series else set[str]()
    for cluster in facts.cluster():
        if common and cluster.get(f"{DEFAULTS}.disk_type") not in common:
            allowed = ", ".join(sorted(common))
            yield cluster.finding(f"{DEFAULTS}.disk_type", allowed, "set auto_provisioning.disk_type")
