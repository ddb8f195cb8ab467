"""Disks of pools. The API refuses what the machine type does not take."""

from collections.abc import Iterator

from holdfast.contract.machines import MACHINE_TYPES
from infra.rules.autoprovisioning import DEFAULTS
from infra.rules.model import Facts, Finding, rule

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
DISKS_DOC = "https://docs.cloud.google.com/compute/docs/disks/hyperdisks"


def boot_disks(machine_type: str) -> tuple[str, ...]:
    return next((disks for start, disks in BOOT_DISKS.items() if machine_type.startswith(start)), ())


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
