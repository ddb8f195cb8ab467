"""When to evict and how: data, seeded, the same for every run that is compared."""

import random
from dataclasses import dataclass

SIGTERM = "SIGTERM"  # notice, then the window
SIGKILL = "SIGKILL"  # power loss


@dataclass(frozen=True, kw_only=True, slots=True)
class Eviction:
    at: int
    """Progress (steps or items) at which it falls due."""
    signal: str
    delay_s: float
    """Moves the kill off the moment at which progress was reported."""
    victim: int = 0


def evictions(*, seed: int, count: int, total: int, first: int, victims: int = 1) -> list[Eviction]:
    """`count` evictions over progress first..0.9 total, in order; notices and power losses alternate."""
    rng = random.Random(seed)
    stride = (total * 0.9 - first) / count
    return [
        Eviction(
            at=int(first + stride * n + rng.uniform(0, stride * 0.6)),
            signal=(SIGTERM, SIGKILL)[n % 2],
            delay_s=rng.uniform(0, 0.25),
            victim=rng.randrange(victims),
        )
        for n in range(count)
    ]
