"""Names the ComputeClasses of jobs that take any of several GPUs.

GKE tries the GPUs of a class in their order, and takes the next one where it gets no machine.
"""

# Why it is so: infra/decisions/0127.

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.platform import Platform
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.pools import Pool

MOST_KINDS = 3


@dataclass(frozen=True, slots=True)
class GpuChoice:
    gpus: int
    """GPUs of each machine."""
    accelerators: tuple[str, ...]
    """Their labels, the first that GKE tries first."""

    @property
    def name(self) -> str:
        """The name of the ComputeClass, as `any-1xl4-1xa100`."""
        parts = [f"{self.gpus}x{shorten(accelerator)}" for accelerator in self.accelerators]
        return "-".join(["any", *parts])

    def select_pools(self, platform: Platform) -> list[Pool]:
        """Return the Spot pools whose machines the class has, in the order of its GPUs."""
        pools: list[Pool] = []
        for accelerator in self.accelerators:
            pools += _list_pools(platform, accelerator, self.gpus)
        return pools

    def quota(self, platform: Platform) -> int:
        """Return the GPUs that its queue lends: auto-provisioning caps each kind of them."""
        return min(platform.quota(accelerator) for accelerator in self.accelerators)


def shorten(accelerator: str) -> str:
    """Return the label of an accelerator without its makers: `nvidia-tesla-a100` -> `a100`."""
    return accelerator.removeprefix("nvidia-").removeprefix("tesla-")


def list_gpu_choices(platform: Platform) -> Iterator[GpuChoice]:
    """Yield each choice of two or three GPUs that the environment has on Spot, in every order."""
    sizes = {pool.gpus_per_node for pool in platform.pools if pool.gpus_per_node}
    for gpus in sorted(sizes):
        accelerators: list[str] = []
        for accelerator in platform.auto_provisioning:
            if platform.quota(accelerator) and _list_pools(platform, accelerator, gpus):
                accelerators.append(accelerator)
        for count in range(2, MOST_KINDS + 1):
            for order in itertools.permutations(accelerators, count):
                yield GpuChoice(gpus, order)


def find_gpu_choice(platform: Platform, name: str) -> GpuChoice | None:
    """Return the choice behind the name of a ComputeClass."""
    return next((entry for entry in list_gpu_choices(platform) if entry.name == name), None)


def _list_pools(platform: Platform, accelerator: str, gpus: int) -> list[Pool]:
    pools: list[Pool] = []
    for pool in platform.pools:
        is_same = pool.accelerator == accelerator and pool.gpus_per_node == gpus
        if is_same and pool.capacity is Capacity.SPOT:
            pools.append(pool)
    return pools
