"""At which hours of the day Spot is there: the public record has a rhythm of days, and none of weeks that holds.

Of all its zones together: by zone, two weeks are too few, and foretell the next one worse than no hours at all.
"""

import datetime
from dataclasses import dataclass
from functools import cache

import numpy as np

from holdfast.place import outages
from holdfast.place.runs import Floats, Ints

HOURS = 24
# Hours beside each other are alike; of one alone the record has six rounds a day.
WINDOW_H = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Rhythm:
    shares: tuple[float, ...]
    """Of moments at which the gang could be had, for each hour of the day in UTC, over WINDOW_H hours around it."""

    @property
    def best(self) -> int:
        return int(np.argmax(self.shares))

    @property
    def worst(self) -> int:
        return int(np.argmin(self.shares))


@cache
def rhythm(accelerator: str, gang: int) -> Rhythm | None:
    """None for GPUs without a record."""
    if accelerator != outages.RECORDED_GPU:
        return None
    up = available(gang)
    return Rhythm(shares=tuple(float(each) for each in by_hour(up, began_at(len(up)))))


def available(gang: int) -> Floats:
    """Share of the recorded zones that had the gang, round by round."""
    counts = list(outages.record().values())
    rounds = min(map(len, counts))
    size = min(gang, outages.LARGEST_GANG)
    return np.mean([each[:rounds] >= size for each in counts], axis=0)


def began_at(rounds: int) -> Ints:
    """The hour of the day, UTC, of each round of the record."""
    first, gap_h = outages.clock()
    begin = first.astimezone(datetime.UTC)
    return ((begin.hour + begin.minute / 60 + np.arange(rounds) * gap_h) % HOURS).astype(np.int64)


def by_hour(up: Floats, hour: Ints) -> Floats:
    """Means over the window around each hour; a day is a circle."""
    means = np.array([up[hour == each].mean() for each in range(HOURS)])
    return np.mean([np.roll(means, shift) for shift in range(-(WINDOW_H // 2), WINDOW_H // 2 + 1)], axis=0)
