"""The rhythm of a day is in the record and holds from one week to the next; that of a week is not shown."""

import numpy as np
import pytest

from holdfast.place import hours
from holdfast.place.hours import HOURS

L4, H100 = "nvidia-l4", "nvidia-h100-80gb"


def halves(gang: int) -> tuple[hours.Floats, hours.Ints, int]:
    up = hours.available(gang)
    return up, hours.began_at(len(up)), len(up) // 2


@pytest.mark.parametrize("gang", [1, 8, 16])
def test_hours_of_one_week_foretell_those_of_the_next(gang: int) -> None:
    up, hour, half = halves(gang)
    before, after = (hours.by_hour(up[part], hour[part]) for part in (slice(half), slice(half, None)))
    assert np.corrcoef(before, after)[0, 1] > 0.9
    # At the hour that was best in the first week, against the worst of it, in the second.
    assert after[before.argmax()] > 1.1 * after[before.argmin()]


@pytest.mark.parametrize("gang", [1, 8, 16])
def test_weekends_of_the_record_foretell_nothing(gang: int) -> None:
    """So nothing is said of them. With a longer record this may fail: then they are worth a line."""
    up, hour, half = halves(gang)
    day = np.cumsum(np.diff(hour, prepend=hour[0]) < 0)  # the record begins on a Saturday, UTC
    weekend = day % 7 < 2
    assert hours.outages.clock()[0].isoweekday() == 5 and hour[0] == 0
    first, rest = np.arange(len(up)) < half, np.arange(len(up)) >= half
    apart = up[first & weekend].mean() - up[first & ~weekend].mean()
    plain, forecast = (
        up[first].mean(),
        up[first].mean() + apart * np.where(weekend, 1 - weekend.mean(), -weekend.mean()),
    )
    assert np.mean((up[rest] - forecast[rest]) ** 2) > np.mean((up[rest] - plain) ** 2)


def test_the_best_hour_is_the_evening_of_america_and_other_gpus_have_none() -> None:
    found = hours.rhythm(H100, 8)
    assert found is not None and len(found.shares) == HOURS
    assert (found.best, found.worst) == (5, 15)
    assert hours.rhythm(H100, 64) == hours.rhythm(H100, 16)
    assert hours.rhythm(L4, 1) is None
