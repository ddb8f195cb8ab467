"""The public record itself as what Spot does, where it is of the GPU that is asked for.

Drawn from it piece by piece, as for other GPUs, lives and waits would not know of each other, and the nodes of a gang
would be lost one by one where the record loses them together. What a week of it did the next one need not do: so
single weeks of single zones are kept beside it.
"""

# Why it is so: infra/decisions/0055.
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from holdfast.place import outages, zones
from holdfast.place.traces import Recorded, Trace

# A run goes on at the beginning of the record when that is over, and the tiles of a path come to an end.
MOST_ROUNDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    each: Recorded
    any_zone: Recorded | None
    """Of several zones of one region, between which the job may move."""
    longest_h: float
    """Of work; the scarcest zone has no more for it."""
    weeks: tuple[Trace, ...] = ()
    """Single weeks of single zones, of all that had the gang: one of them is what comes."""


@cache
def record(accelerator: str, gang: int, region: str) -> Followed | None:
    """None for GPUs without a record, and for gangs of which it says too little."""
    if accelerator != outages.RECORDED_GPU or gang > outages.LARGEST_GANG:
        return None
    by_zone = {trace.name: trace for trace in recordings(gang)}
    believed = outages.prior(accelerator, gang, region)
    return of([by_zone[zone] for zone in believed.zones], region, halves(recordings(gang), 0, 1))


@cache
def recordings(gang: int) -> tuple[Trace, ...]:
    """Every zone of the record, up while it had the gang."""
    gap_h = outages.clock()[1]
    return tuple(Trace(name=z, gap_h=gap_h, up=n >= gang, counts=n) for z, n in outages.record().items())


def halves(traces: Sequence[Trace], *numbers: int) -> tuple[Trace, ...]:
    """Halves of the recordings that had the gang now and then in these halves taken together."""
    parts = [[trace.half(number) for number in numbers] for trace in traces]
    return tuple(part for each in parts if np.mean([p.up_share for p in each]) >= outages.HOPELESS for part in each)


def of(traces: list[Trace], region: str, weeks: tuple[Trace, ...] = ()) -> Followed | None:
    """These zones followed, as far as each of them has the gang now and then."""
    least_h = min(trace.up_share * trace.hours for trace in traces)
    if any(trace.up_share < outages.HOPELESS for trace in traces):
        return None
    own = len(traces) > 1 and all(trace.name.startswith(f"{region}-") for trace in traces)
    return Followed(
        each=Recorded.of(traces),
        any_zone=Recorded.of([zones.together(traces)]) if own else None,
        longest_h=MOST_ROUNDS * least_h,
        weeks=weeks,
    )
