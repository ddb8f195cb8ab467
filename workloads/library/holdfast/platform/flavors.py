"""Names the flavors under which Kueue lends the GPUs of a platform."""

from holdfast.platform.document import Platform
from holdfast.vocabulary.capacity import QUEUES, Capacity
from holdfast.vocabulary.pools import STAYING


def list_flavors(platform: Platform) -> list[str]:
    """Return the names of Kueue's flavors: what each queue lends GPUs of."""
    flavors: list[str] = []
    for name, (pool, *_) in platform.classes.items():
        if platform.quota(name) and pool.capacity in (Capacity.SPOT, *STAYING):
            flavors.append(f"{QUEUES[pool.capacity]}-{name}")
    for accelerator in platform.auto_provisioning:
        rest = platform.quota(accelerator)
        shares = {
            Capacity.FLEX_START: rest - rest // 2,
            Capacity.QUEUED: rest // 2,
        }
        for name, (pool, *_) in platform.classes.items():
            if pool.accelerator == accelerator and pool.capacity in shares:
                shares[pool.capacity] += platform.quota(name)
        for capacity, gpus in shares.items():
            if gpus:
                flavors.append(f"{QUEUES[capacity]}-{accelerator}")
    return flavors
