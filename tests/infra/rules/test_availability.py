"""Hours of maintenance in the worst 32 days, as GKE counts them."""

from dataclasses import replace

import pytest

from infra.environments.schema import Freeze
from infra.rules.availability import MIN_HOURS, least_hours
from tests.infra.samples import EXAMPLE

CLUSTER = replace(EXAMPLE.cluster, maintenance_start="2026-01-03T02:00:00Z", maintenance_end="2026-01-03T08:00:00Z")
YEAR_END = Freeze(name="year-end", start="2026-12-19T00:00:00Z", end="2027-01-04T00:00:00Z")
# From three hours into a window, to one hour before the end of another; of 31 windows that are whole 18 are lost.
RAGGED = replace(YEAR_END, start="2026-12-18T05:00:00Z", end="2027-01-04T07:00:00Z")


@pytest.mark.parametrize(
    ("days", "freezes", "hours"),
    [
        pytest.param("FREQ=DAILY", (), 192, id="every night"),
        pytest.param("FREQ=WEEKLY;BYDAY=SA,SU", (), 48, id="weekends"),
        pytest.param("FREQ=WEEKLY;BYDAY=SU", (), 24, id="one night a week"),
        pytest.param("FREQ=WEEKLY;BYDAY=SA,SU", (YEAR_END,), 12, id="weekends around the end of the year"),
        pytest.param("FREQ=DAILY", (YEAR_END,), 96, id="every night around the end of the year"),
        pytest.param("FREQ=DAILY", (RAGGED,), 78, id="pieces under four hours do not count"),
    ],
)
def test_least_hours(days: str, freezes: tuple[Freeze, ...], hours: float) -> None:
    assert least_hours(replace(CLUSTER, maintenance_days=days, freezes=freezes)) == hours


def test_what_gke_asks_for_is_what_weekends_leave() -> None:
    assert least_hours(replace(CLUSTER, maintenance_days="FREQ=WEEKLY;BYDAY=SA,SU", freezes=())) == MIN_HOURS
