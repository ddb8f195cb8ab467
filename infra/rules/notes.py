"""Lists notes that `check` prints on settings that are allowed but may surprise; not findings."""

from collections.abc import Iterator

from holdfast.vocabulary.pools import Role
from infra.environments import Environment
from infra.specs.pools import RDMA_MACHINES

TCPX_MACHINES = ("a3-highgpu-8g",)
RDMA_ACCELERATORS = ("nvidia-h200-141gb", "nvidia-b200")


def list_notes(environment: Environment) -> list[str]:
    return [*_note_networks(environment), *_note_caps(environment)]


def _note_networks(environment: Environment) -> Iterator[str]:
    for pool in environment.pools():
        if pool.role is not Role.TRAINING or pool.max_nodes < 2:
            continue
        if pool.machine_type in TCPX_MACHINES:
            yield (
                f"groups[{pool.pool_class}]: a gang over several {pool.machine_type} nodes shares"
                " one card of 200 Gbit/s a node; the four others need GPUDirect-TCPX, whose"
                " networks this platform does not make"
            )
        if pool.machine_type in RDMA_MACHINES:
            yield (
                f"groups[{pool.pool_class}]: GKE makes the networks of {pool.machine_type}; a pod"
                " uses their cards with a ResourceClaim of class mrdma.google.com, and with"
                " NCCL's gIB plugin in its image"
            )


def _note_caps(environment: Environment) -> Iterator[str]:
    for cap in environment.auto_provisioning.accelerators:
        if cap.accelerator in RDMA_ACCELERATORS:
            yield (
                f"auto_provisioning: nodes that it makes for {cap.accelerator} have one network"
                " card; gangs over several nodes belong on a group"
            )
